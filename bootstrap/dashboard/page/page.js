// The page follows the run: it hears of each new view, shows it, and says when it hears nothing more.

import { charts, percent, saved } from "./charts.js";
import { make, show } from "./elements.js";
import { beside, credit, log, pipeline, rounds, replicas } from "./sections.js";
import { count, duration, nats, several, short, time, whole } from "./words.js";

const SILENCE = 15_000; // milliseconds; the server says something every five seconds
const FIRST_WAIT = 1_000;
const MOST_WAIT = 15_000;
const NEWS_PAUSE = 4_000; // between two things said to who listens
const AWAY = new Set(["gone", "lost"]);

const place = (id) => document.getElementById(id);
let latest = null;
let wait = FIRST_WAIT;

function follow() {
  const source = new EventSource("events");
  let silence = 0;
  const heard = () => {
    clearTimeout(silence);
    silence = setTimeout(lose, SILENCE);
  };
  const lose = () => {
    clearTimeout(silence);
    source.close();
    tellConnection(false);
    setTimeout(follow, wait);
    wait = Math.min(MOST_WAIT, 2 * wait);
  };
  source.addEventListener("error", lose);
  source.addEventListener("view", ({ data }) => {
    heard();
    wait = FIRST_WAIT;
    take(JSON.parse(data));
    tellConnection(true);
  });
  source.addEventListener("beat", heard);
  heard();
}

function tellConnection(there) {
  const sign = place("connection");
  if (!there) {
    const since = latest ? ` What you see is from ${time(latest.now, latest.now)}.` : "";
    show(sign, `Connection lost.${since} Trying again…`);
  } else if (sign.dataset.is !== "live") {
    show(sign, "Live");
  }
  sign.dataset.is = there ? "live" : "lost";
  document.body.classList.toggle("lost", !there);
}

function take(view) {
  const before = latest;
  latest = view;
  const known = new Map(view.peers.map((peer) => [peer.id, peer]));
  document.title = `Round ${view.round} of ${view.rounds} · hetpeer ${view.run_id.slice(0, 8)}`;
  show(place("run"), view.run_id.slice(0, 12));
  show(place("state"), state(view));
  show(place("figures"), figures(view));
  show(place("pipeline"), pipeline(view, known));
  show(place("whole"), replicas(view));
  show(place("beside"), beside(view));
  show(place("rounds"), rounds(view));
  show(place("credit"), credit(view));
  show(place("log"), log(view));
  if (!before || JSON.stringify(before.history) !== JSON.stringify(view.history)) charts(view);
  if (before) tell(changes(before, view));
}

/** The run's state, since when, and for want of what. */
function state(view) {
  if (!view.state) return "";
  return `${view.state} since ${time(view.state_since, view.now)}${view.state_why ? `: ${view.state_why}` : ""}`;
}

function figures(view) {
  const lost = view.peers.filter((peer) => peer.state === "lost").length;
  const there = view.peers.filter((peer) => !AWAY.has(peer.state)).length;
  const evaluated = view.history.findLast((each) => each.loss !== null);
  const share = saved(view.history);
  const figure = (name, value, more = "", kind = "") =>
    make("div", { class: kind || null }, make("dt", {}, name), make("dd", {}, make("strong", {}, value), more && make("span", {}, more)));
  return [
    make(
      "dl", { class: "figures" },
      figure("Round", whole(view.round), `of ${whole(view.rounds)}`),
      figure("Tokens", count(view.tokens)),
      figure("Tokens a second", count(view.tokens_per_second)),
      figure("Held-out loss", evaluated ? nats(evaluated.loss) : "–"),
      figure("Peers", whole(there), lost ? `${whole(lost)} lost` : "", lost ? "alarming" : ""),
      figure("Bytes saved", share === null ? "–" : percent(share)),
      figure("Running for", duration(view.now - view.started)),
      figure("Left", view.seconds_left === null ? "–" : duration(view.seconds_left)),
    ),
    make("progress", { class: "course", max: view.rounds, value: Math.min(view.round, view.rounds), "aria-label": "Rounds of the run" }),
  ];
}

/** What has changed that somebody who cannot look should be told. */
function changes(before, view) {
  const old = new Map(before.peers.map((peer) => [peer.id, peer.state]));
  const now = (state) => view.peers.filter((peer) => peer.state === state && old.has(peer.id) && old.get(peer.id) !== state);
  const back = view.peers.filter((peer) => !AWAY.has(peer.state) && old.get(peer.id) === "lost");
  const named = (peers, what) =>
    peers.length > 3 ? [`${several(peers.length, "peer")} ${what}.`] : peers.map((peer) => `Peer ${short(peer.id)} ${what}.`);
  return [
    ...named(now("lost"), "is lost"),
    ...named(back, "is back"),
    ...(view.state !== before.state && view.state ? [`The run is ${view.state}.`] : []),
    ...(view.round > before.round ? [`Round ${view.round} of ${view.rounds}.`] : []),
  ];
}

const untold = [];
let telling = 0;

function tell(sentences) {
  untold.push(...sentences);
  if (!untold.length || telling) return;
  place("news").textContent = untold.splice(0).slice(-5).join(" ");
  telling = setTimeout(() => {
    telling = 0;
    tell([]);
  }, NEWS_PAUSE);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => latest && charts(latest));
follow();
