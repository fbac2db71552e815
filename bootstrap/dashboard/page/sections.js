// What the page shows of a view, section by section: each function makes elements of it, and knows nothing of the page.

import { drawing, make, table } from "./elements.js";
import { bytes, count, duration, nats, rate, several, short, time, whole } from "./words.js";

const NEWEST_ROUNDS = 8;
const NEWEST_LINES = 40;

const ICONS = {
  training: "M5 3.5v9l7-4.5z",
  waiting: "M8 2.5a5.5 5.5 0 1 0 0 11a5.5 5.5 0 0 0 0-11M8 5v3.2l2 1.3",
  "catching up": "M3 4l4 4-4 4M8.5 4l4 4-4 4",
  "on trial": "M8 2.5l5.5 5.5-5.5 5.5-5.5-5.5z",
  paused: "M5.5 3.5v9M10.5 3.5v9",
  leaving: "M2.5 8h10M8.5 4l4 4-4 4",
  gone: "M3.5 8h9",
  lost: "M4 4l8 8M12 4l-8 8",
};
const AWAY = new Set(["gone", "lost"]);

const id = (peer) => make("span", { class: "id", title: peer }, short(peer));
const said = (words) => make("bdi", {}, words);
const none = (words) => [make("p", { class: "none" }, words)];

function state(peer) {
  return make("span", { class: "state", "data-is": peer.state }, drawing(ICONS[peer.state] ?? "", "sign"), peer.state);
}

const heard = (peer, now) => (peer.heard ? `${duration(now - peer.heard)} ago` : "never");

function links(peer) {
  return [
    make("span", { class: "rate" }, drawing("M8 13V3M4 7l4-4 4 4", "way"), make("span", { class: "unseen" }, "up "), rate(peer.up)),
    make("span", { class: "rate" }, drawing("M8 3v10M4 9l4 4 4-4", "way"), make("span", { class: "unseen" }, "down "), rate(peer.down)),
  ];
}

function readings(device) {
  const degrees = device.temperature !== null && `${whole(device.temperature)} °C`;
  const charge = device.battery !== null && `battery ${device.battery} %`;
  return [degrees, charge].filter(Boolean).join(" · ");
}

const reached = (peer) => (peer.relayed ? "relayed" : "direct");

function card(peer, view) {
  const step = `round ${peer.round}, step ${peer.step}${peer.step > view.inner_steps ? "" : ` of ${view.inner_steps}`}`;
  return make(
    "div", { class: "peer", "data-is": peer.state, "data-peer": peer.id },
    make("p", { class: "top" }, state(peer), id(peer.id)),
    peer.why && make("p", { class: "why" }, said(peer.why)),
    AWAY.has(peer.state)
      ? make("p", {}, `last heard: ${heard(peer, view.now)}`)
      : [
          make("p", { class: "speed" }, make("strong", {}, count(peer.tokens_per_second)), " tokens/s"),
          make("p", {}, step),
          readings(peer.device) && make("p", {}, readings(peer.device)),
          make("p", { class: "links" }, links(peer), make("span", {}, reached(peer))),
        ],
  );
}

function missing(member, stage) {
  const words = member ? ["nothing known of ", id(member)] : ["nobody"];
  return make("div", { class: "peer", "data-is": "missing" }, make("p", {}, words, ` serves stage ${stage}`));
}

/** Groups × stages. */
export function pipeline(view, known) {
  const lacking = view.short ? [make("p", { class: "none" }, said(view.short))] : [];
  if (!view.groups.length) return [...none("No group of volunteers trains now."), ...lacking];
  const stages = [...Array(view.stages).keys()];
  const rows = view.groups.map((group, index) => ({
    key: group.replica || String(index),
    kind: group.broken ? "broken" : "",
    cells: [
      make(
        "div", { class: "group" },
        make("span", { class: "name" }, `Group ${index + 1}`),
        make("span", {}, group.compression > 1 ? `sends 1/${whole(group.compression)}` : "sends all"),
        group.broken && make("span", { class: "why" }, "does not train: ", said(group.broken)),
        group.slow && make("span", { class: "why" }, "is slow: ", said(group.slow)),
      ),
      ...stages.map((stage) => {
        const peer = known.get(group.members[stage]);
        return peer ? card(peer, view) : missing(group.members[stage], stage);
      }),
    ],
  }));
  const columns = ["Group", ...stages.map((stage) => `Stage ${stage}`)];
  return [
    scrolled("Groups and their stages", table("Groups of volunteers by stage", columns, rows, "grid")),
    ...lacking,
  ];
}

function scrolled(label, content) {
  return make("div", { class: "scrolled", role: "region", "aria-label": label, tabindex: "0" }, content);
}

/** Those who hold all stages in one place. */
export function replicas(view) {
  const peers = view.peers.filter((peer) => peer.role === "datacenter");
  if (!peers.length) return none("None has joined.");
  return [make("ul", { class: "cards" }, peers.map((peer) => make("li", { "data-key": peer.id }, card(peer, view))))];
}

/** Volunteers who are in no group now, and observers. */
export function beside(view) {
  const members = new Set(view.groups.flatMap((group) => group.members));
  const peers = view.peers.filter((peer) => peer.role !== "datacenter" && !members.has(peer.id));
  if (!peers.length) return none("Nobody.");
  const rows = peers.map((peer) => ({
    key: peer.id,
    cells: [
      id(peer.id),
      peer.role === "observer" ? "observer" : AWAY.has(peer.state) ? `was at stage ${peer.stage}` : `volunteer, stage ${peer.stage}`,
      state(peer),
      peer.why ? said(peer.why) : "",
      reached(peer),
      heard(peer, view.now),
    ],
  }));
  return [table("Peers beside the groups", ["Peer", "Role", "State", "Why", "Reached", "Heard"], rows, "list")];
}

/** Who contributed, who was late, who left and why, the newest round first. */
export function rounds(view) {
  if (!view.history.length) return none("No round has begun.");
  const newest = [...view.history].sort((one, other) => other.round - one.round);
  const items = newest.map((each) => round(each, view));
  return folded("ol", "rounds", items, NEWEST_ROUNDS, "older round");
}

function round(each, view) {
  const taken = each.ended === null ? `going on for ${duration(view.now - each.began)}` : `took ${duration(each.ended - each.began)}`;
  const facts = [
    taken,
    each.loss !== null && `held-out loss ${nats(each.loss)}`,
    each.tokens > 0 && `${count(each.tokens)} tokens`,
  ].filter(Boolean);
  const contributed = Object.entries(each.contributions);
  return make(
    "li", { "data-key": String(each.round), "data-is": each.ended === null ? "open" : "done" },
    make("h3", {}, `Round ${each.round}`),
    make("p", { class: "facts" }, facts.join(" · ")),
    make(
      "dl", {},
      who("Contributed", "done", contributed.map(([peer, steps]) => [id(peer), ` ${several(steps, "step")}`])),
      who("Late", "late", Object.entries(each.late).map(([peer, why]) => [id(peer), " ", said(why)])),
      who("Left", "left", Object.entries(each.left).map(([peer, why]) => [id(peer), " ", said(why)])),
    ),
  );
}

function who(title, kind, entries) {
  if (!entries.length) return [];
  const icon = { done: "M3 8.5l3.5 3.5L13 4.5", late: ICONS.waiting, left: ICONS.lost }[kind];
  return [
    make("dt", { "data-is": kind }, drawing(icon, "sign"), `${title} (${entries.length})`),
    make("dd", { "data-is": kind }, make("ul", {}, entries.map((entry) => make("li", {}, entry)))),
  ];
}

function folded(tag, kind, items, newest, name) {
  const list = (some) => make(tag, { class: kind }, some);
  const older = items.length - newest;
  if (older <= 0) return [list(items)];
  const rest = make("details", {}, make("summary", {}, several(older, name)), list(items.slice(newest)));
  return [list(items.slice(0, newest)), rest];
}

/** What each volunteer gave. */
export function credit(view) {
  const peers = view.peers.filter((peer) => peer.role === "volunteer" || peer.credit > 0).sort((one, other) => other.credit - one.credit);
  if (!peers.length) return none("No volunteer has joined yet.");
  const most = Math.max(1, ...peers.map((peer) => peer.credit));
  const rows = peers.map((peer) => ({
    key: peer.id,
    cells: [
      id(peer.id),
      make("span", { class: "credit" }, make("progress", { max: most, value: peer.credit, "aria-hidden": "true" }), count(peer.credit)),
      peer.role === "volunteer" ? `stage ${peer.stage}` : peer.role,
      state(peer),
      bytes(peer.sent),
      peer.joined ? `${duration(view.now - peer.joined)} ago` : "",
    ],
  }));
  return [table("Credit by peer", ["Peer", "Credit", "Place", "State", "Sent", "Joined"], rows, "list")];
}

/** What happened, the newest first. */
export function log(view) {
  if (!view.log.length) return none("Nothing yet.");
  const newest = [...view.log].sort((one, other) => other.at - one.at);
  const items = newest.map((line) =>
    make(
      "li", { "data-key": `${line.at} ${line.kind} ${line.peer} ${line.words}` },
      make("time", { datetime: new Date(line.at * 1000).toISOString() }, time(line.at, view.now)),
      make("span", { class: "kind" }, said(line.kind)),
      make("span", { class: "words" }, said(line.words), line.peer && [" ", id(line.peer)]),
    ),
  );
  return folded("ol", "log", items, NEWEST_LINES, "older line");
}
