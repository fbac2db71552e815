// The page: it shows each view, and does what who looks at it asks for.

import { losses, percent, saved, sent, tokens, watchWidths } from "./charts.js";
import { button, make, said, show } from "./elements.js";
import { lengthen, logLines, logWords, roundTable, roundWords } from "./history.js";
import { listenToMap, showMap, showStates } from "./map.js";
import { moreRows, peerDetails, peerTable, roundDetails, sortBy } from "./people.js";
import { follow } from "./stream.js";
import { AWAY, problems, standing, swarm, verdict } from "./swarm.js";
import { count, duration, nats, several, short, time, whole } from "./words.js";

const NEWS_PAUSE = 4_000; // milliseconds between two things said to who listens
const FIRST_PROBLEMS = 3;
const WIDE = 736; // pixels: rounds and log are unfolded at first

const at = (id) => document.getElementById(id);
let latest = null;
let crowd = null; // the swarm of the latest view
let drawn = ""; // the rounds that the charts show
let chartWidths = "";
let judged = null; // its verdict
const filter = { words: "", stage: "", states: new Set() };
const details = { peer: null, round: null, all: false };
let allProblems = false;

function take(view) {
  const [before, level] = [latest, judged?.level];
  latest = view;
  if (!before) for (const part of document.querySelectorAll("details")) part.open = innerWidth >= WIDE;
  update();
  if (before) tell(changes(before, view, level));
}

function update() {
  const view = latest;
  if (!view) return;
  crowd = swarm(view);
  const history = Object.values(view.history);
  judged = verdict(view, crowd);
  document.title = `${judged.head} · round ${view.round} of ${view.rounds} · hetpeer ${view.run_id.slice(0, 8)}`;
  show(at("run"), view.run_id.slice(0, 12));
  at("made-up").hidden = !view.made_up;
  showVerdict();
  showProblems(problems(view, crowd, judged));
  show(at("figures"), figures(view, history));
  showPeers(view);
  show(at("rounds-words"), roundWords(history, view.now));
  show(at("log-words"), at("log-part").open ? "" : logWords(view.log));
  if (at("rounds-part").open) show(at("rounds"), roundTable(history, view.now));
  if (at("log-part").open) show(at("log"), logLines(view.log, view.now));
  showCharts(view, history);
  showDetails();
}

function showVerdict() {
  const { level, head, words } = judged;
  const section = at("verdict");
  section.dataset.level = level;
  show(
    section,
    make(
      "p",
      { class: "head" },
      make("span", { class: "mark", "aria-hidden": "true" }, { good: "✓", warn: "!", bad: "×" }[level]),
      head,
    ),
    words && make("p", {}, said(words)),
  );
}

function showProblems(list) {
  at("problems").hidden = !list.length;
  const items = list.slice(0, allProblems ? list.length : FIRST_PROBLEMS).map((problem) => {
    const open = problem.peer
      ? { peer: problem.peer }
      : problem.state
        ? { filter: problem.state }
        : problem.round
          ? { round: problem.round }
          : null;
    const label = problem.state ? "Show them" : problem.round ? "Who" : "Open";
    return make(
      "li",
      { "data-key": `${problem.key} ${problem.level}`, "data-level": problem.level },
      make("p", {}, make("strong", {}, problem.words), problem.said && [": ", said(problem.said)]),
      open && button(label, open, { "aria-label": `${label}: ${problem.words}` }),
    );
  });
  const rest = list.length - items.length;
  show(
    at("problems"),
    make("h2", {}, several(list.length, "problem")),
    make("ul", {}, items),
    rest > 0 && button(`Show ${whole(rest)} more`, { problems: "all" }, { class: "more" }),
  );
}

function figures(view, history) {
  const lost = crowd.peers.filter((peer) => peer.state === "lost").length;
  const present = crowd.peers.filter((peer) => !AWAY.has(peer.state) && peer.state !== "finished").length;
  const evaluated = history.findLast((round) => round.loss !== undefined);
  const share = saved(history);
  const end = view.seconds_left === undefined ? "" : `ends about ${time(view.now + view.seconds_left, view.now)}`;
  const figure = (name, value, more = "") =>
    make("div", {}, make("dt", {}, name), make("dd", {}, make("strong", {}, value), more && make("span", {}, more)));
  return [
    make(
      "dl",
      {},
      figure("Held-out loss", nats(evaluated?.loss), evaluated && `after round ${evaluated.round}`),
      figure("Time left", view.seconds_left === undefined ? "–" : duration(view.seconds_left), end),
      figure("Round", whole(view.round), `of ${whole(view.rounds)}, in ${duration(view.now - view.started)}`),
      figure("Peers", whole(present), lost ? `${whole(lost)} lost` : ""),
      figure("Tokens", count(view.tokens), `${count(view.tokens_per_second)} a second`),
      figure("Bytes saved", share === null ? "–" : percent(share), "by compression"),
    ),
    make("progress", {
      max: view.rounds,
      value: history.at(-1)?.ended === undefined ? view.round - 1 : view.round,
      "aria-label": "Rounds of the run",
    }),
  ];
}

function matches({ peer, group }) {
  if (!peer) return !filter.words && !filter.states.size && !filter.stage;
  const words =
    `${peer.id} ${peer.role} ${peer.state} ${peer.address} ${peer.why} ${group === null ? "" : `group ${group + 1}`}`.toLowerCase();
  return (
    (!filter.words || words.includes(filter.words)) &&
    (!filter.states.size || filter.states.has(peer.state)) &&
    (!filter.stage || standing(peer) === filter.stage)
  );
}

function showPeers(view) {
  const cells = crowd.peers.map((peer) => ({ peer, group: crowd.groupOf.get(peer.id) ?? null }));
  const chosen = cells.filter(matches).map(({ peer }) => peer);
  const places = [...Array.from({ length: view.stages }, (_, stage) => `stage ${stage}`), "datacenter", "observer"];
  show(at("matches"), chosen.length === cells.length ? "" : `${whole(chosen.length)} of ${whole(cells.length)}`);
  if (at("stage").children.length !== places.length + 1) {
    at("stage").replaceChildren(
      make("option", { value: "" }, "All places"),
      ...places.map((name) => make("option", { value: name }, name)),
    );
    at("stage").value = filter.stage;
  }
  showStates(at("states"), crowd, filter.states);
  showMap(at("map"), crowd, matches);
  if (at("table-part").open)
    show(
      at("table"),
      chosen.length
        ? peerTable(chosen, view.now)
        : make("p", {}, cells.length ? "No peer matches." : "Nobody has joined."),
    );
}

function showCharts(view, history) {
  const ended = history.filter((round) => round.ended !== undefined);
  const now = `${ended.length} ${ended.at(-1)?.round} ${ended.at(-1)?.loss} ${at("rounds-part").open} ${chartWidths}`;
  if (now === drawn) return;
  drawn = now;
  losses(ended);
  if (!at("rounds-part").open) return;
  tokens(ended, view);
  sent(ended);
}

function showDetails() {
  const dialog = at("details");
  if (!dialog.open) return;
  const body = details.peer
    ? peerDetails(latest, crowd, details.peer)
    : roundDetails(latest, details.round, details.all);
  show(
    at("details-body"),
    body ?? [make("h2", { id: "details-title" }, "Nothing known"), make("p", {}, "The node knows no more of it.")],
  );
}

function openDetails(peer, round) {
  Object.assign(details, { peer, round, all: false });
  if (!at("details").open) at("details").showModal();
  showDetails();
  at("details").scrollTop = 0;
}

/** What has changed that somebody who cannot look should be told. */
function changes(before, view, level) {
  const was = (peer) => before.peers[peer.id]?.state;
  const now = (state) =>
    crowd.peers.filter((peer) => peer.state === state && was(peer) !== undefined && was(peer) !== state);
  const back = crowd.peers.filter((peer) => !AWAY.has(peer.state) && was(peer) === "lost");
  const named = (peers, what, whatAll) =>
    peers.length > 3
      ? [`${several(peers.length, "peer")} ${whatAll}.`]
      : peers.map((peer) => `Peer ${short(peer.id)} ${what}.`);
  return [
    ...named(now("lost"), "is lost", "are lost"),
    ...named(back, "is back", "are back"),
    ...(judged.level !== level ? [`${judged.head}.`] : []),
    ...(view.round > before.round ? [`Round ${view.round} of ${view.rounds}.`] : []),
  ];
}

const untold = [];
let telling = 0;

function tell(sentences) {
  untold.push(...sentences);
  if (!untold.length || telling) return;
  at("news").textContent = untold.splice(0).slice(-5).join(" ");
  telling = setTimeout(() => {
    telling = 0;
    tell([]);
  }, NEWS_PAUSE);
}

function tellConnection(live) {
  const sign = at("connection");
  if (!live) {
    const since = latest ? ` What you see is from ${time(latest.now, latest.now)}.` : "";
    show(sign, `Connection lost.${since} Trying again…`);
  } else if (sign.dataset.is !== "live") {
    show(sign, "Live");
  }
  sign.dataset.is = live ? "live" : "lost";
  document.body.classList.toggle("lost", !live);
}

document.addEventListener("click", ({ target }) => {
  const data = target.closest("button")?.dataset ?? {};
  if (data.peer) openDetails(data.peer, null);
  else if (data.round) openDetails(null, data.round);
  else if (data.state) filter.states.delete(data.state) || filter.states.add(data.state);
  else if (data.filter) showOnly(data.filter);
  else if (data.sort) sortBy(data.sort);
  else if (data.rows) moreRows();
  else if (data.lengthen) lengthen(data.lengthen);
  else if (data.problems) allProblems = true;
  else if (data.names) details.all = true;
  else return;
  update();
});

function showOnly(state) {
  filter.states = new Set([state]);
  at("peers-title").scrollIntoView({ block: "start" });
  at("search").focus({ preventScroll: true });
}

at("filter").addEventListener("submit", (event) => event.preventDefault());
at("search").addEventListener("input", ({ target }) => {
  filter.words = target.value.trim().toLowerCase();
  update();
});
at("stage").addEventListener("change", ({ target }) => {
  filter.stage = target.value;
  update();
});
for (const part of document.querySelectorAll("details")) part.addEventListener("toggle", update);
at("details").addEventListener("click", ({ target }) => target === at("details") && target.close());
watchWidths((widths) => {
  chartWidths = widths;
  update();
});
listenToMap(at("map"), update);
follow(take, tellConnection);
