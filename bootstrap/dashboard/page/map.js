// The map: a row for each stage, a cell for each peer. Every cell is a button; Tab goes from row to row, arrows from cell
// to cell.

import { button, make, said, show, showItems } from "./elements.js";
import { count, several, short, whole } from "./words.js";
import { standing } from "./swarm.js";

const LARGE_CELLS = 24; // so many peers have cells with words in them
const DENSE_CELLS = 200; // and more than these have small ones on a phone
const MOST_CELLS = 800; // of all rows, before one asks for more
const SHADES = 4;

const current = new Map(); // by row: the key of the cell that Tab goes to
const unfolded = new Set(); // the rows whose cells are all shown

/** Show the rows of the swarm with the cells that match. */
export function showMap(element, { rows, peers }, matches) {
  const shown = rows
    .map((row) => ({ ...row, cells: row.cells.filter(matches), all: row.cells }))
    .filter((row) => row.cells.length || !row.all.length);
  const total = shown.reduce((sum, row) => sum + row.cells.length, 0);
  const most = total > MOST_CELLS ? Math.floor(MOST_CELLS / shown.length) : Infinity;
  const fastest = { datacenter: 1, volunteer: 1 };
  for (const peer of peers) fastest[peer.role] = Math.max(fastest[peer.role] ?? 1, peer.tokens_per_second);
  const isLarge = total <= LARGE_CELLS;
  element.dataset.size = isLarge ? "large" : "small";
  element.classList.toggle("dense", total > DENSE_CELLS);
  const some = (row) =>
    row.cells.length > most && !unfolded.has(row.key) ? worst(row.cells).slice(0, most) : row.cells;
  const filled = shown.map((row) => ({ ...row, matched: row.cells.length, cells: some(row) }));
  show(element, filled.map(oneRow));
  filled.forEach(({ key, cells }, index) => {
    const tab = cells.some((cell) => cell.key === current.get(key)) ? current.get(key) : cells[0]?.key;
    const items = cells.map((cell) => item(cell, cell.key === tab, isLarge, fastest));
    showItems(element.children[index].querySelector(".cells"), items, (one) => Object.values(one).join("|"), oneCell);
  });
}

/** Where not all cells are shown, those in trouble come first. */
const worst = (cells) => cells.toSorted((one, other) => rank(one) - rank(other));
const rank = ({ peer }) => (peer?.state === "training" ? 2 : peer?.state === "waiting" ? 1 : 0);

function oneRow({ key, name, cells, matched, all }) {
  const words = matched < all.length ? `${whole(matched)} of ${tally(all)}` : tally(all);
  return make(
    "div",
    { class: "row", "data-key": key, role: "group", "aria-label": `${name}: ${words}` },
    make("p", { class: "row-name", "aria-hidden": "true" }, make("strong", {}, name), " ", words),
    make("div", { class: "cells", "data-own": true }),
    matched > cells.length &&
      button(`Show ${whole(matched - cells.length)} more of ${name.toLowerCase()}`, { more: key }),
  );
}

/** "62: 60 training, 2 lost" */
function tally(cells) {
  if (!cells.length) return "nobody";
  const states = new Map();
  for (const { peer } of cells) states.set(peer?.state ?? "missing", (states.get(peer?.state ?? "missing") ?? 0) + 1);
  const [[state]] = states;
  if (states.size === 1) return cells.length === 1 ? state : `${whole(cells.length)}, all ${state}`;
  const parts = [...states].sort((one, other) => other[1] - one[1]).map(([name, number]) => `${whole(number)} ${name}`);
  return `${whole(cells.length)}: ${parts.join(", ")}`;
}

/** What is seen of a cell: another element is made only where this is another. */
function item({ key, peer, group, stage, member, leader }, tab, isLarge, fastest) {
  const team = group === null ? "" : `, group ${group + 1}`;
  if (!peer) {
    const words = `${member ? `Nothing known of ${short(member)}` : "Nobody"} at stage ${stage}${team}`;
    return { key, opens: leader, state: "missing", words, tab, isLarge, shade: 0, id: "", more: "" };
  }
  const speed = peer.tokens_per_second;
  const words = `${short(peer.id)}, ${standing(peer)}${team}: ${peer.state}`;
  const more = !isLarge ? "" : speed ? `${count(speed)} tokens/s` : peer.why;
  const shade = Math.ceil((SHADES * speed) / fastest[peer.role]);
  return { key, opens: key, state: peer.state, words, tab, isLarge, shade, id: short(peer.id), more };
}

function oneCell({ key, opens, state, words, tab, isLarge, shade, id, more }) {
  const text = isLarge && [
    make("span", { class: "id" }, id),
    make("span", { class: "state" }, state),
    make("span", { class: "speed" }, said(more)),
  ];
  const label = isLarge && more ? `${words}, ${more}` : words;
  return button(
    text,
    { key, peer: opens, is: state, shade },
    { class: "cell", "aria-label": label, title: words, tabindex: tab ? 0 : -1 },
  );
}

/** Listen to the keys, and to what shows more of a row; `update` shows it. */
export function listenToMap(element, update) {
  element.addEventListener("focusin", ({ target }) => {
    const row = target.closest(".row");
    if (!target.matches(".cell")) return;
    current.set(row.dataset.key, target.dataset.key);
    for (const other of row.querySelectorAll('.cell[tabindex="0"]')) other.tabIndex = -1;
    target.tabIndex = 0;
  });
  element.addEventListener("click", ({ target }) => {
    const more = target.closest("[data-more]");
    if (!more) return;
    unfolded.add(more.dataset.more);
    more.parentElement.querySelector(".cell").focus();
    update();
  });
  element.addEventListener("keydown", (event) => {
    const cell = event.target.closest(".cell");
    const next = cell && !event.ctrlKey && !event.altKey && !event.metaKey && neighbour(element, cell, event.key);
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
}

function neighbour(element, cell, key) {
  const row = [...cell.parentElement.children];
  const at = row.indexOf(cell);
  if (key === "ArrowLeft") return row[at - 1];
  if (key === "ArrowRight") return row[at + 1];
  if (key === "Home") return row[0];
  if (key === "End") return row.at(-1);
  if (key !== "ArrowUp" && key !== "ArrowDown") return null;
  const from = cell.getBoundingClientRect();
  const sign = key === "ArrowDown" ? 1 : -1;
  const away = (box) => sign * (box.top - from.top);
  const boxes = [...element.querySelectorAll(".cell")]
    .map((other) => [other, other.getBoundingClientRect()])
    .filter(([, box]) => away(box) > 1);
  const nearest = Math.min(...boxes.map(([, box]) => away(box)));
  const line = boxes.filter(([, box]) => away(box) < nearest + 1);
  return line.sort(([, one], [, other]) => Math.abs(one.left - from.left) - Math.abs(other.left - from.left))[0]?.[0];
}

/** The signs of the states as choices: how many peers are in each, and whether it is chosen. */
export function showStates(element, { peers }, chosen) {
  const states = new Map();
  for (const peer of peers) states.set(peer.state, (states.get(peer.state) ?? 0) + 1);
  for (const state of chosen) if (!states.has(state)) states.set(state, 0);
  const items = [...states].sort(([one], [other]) => ORDER.indexOf(one) - ORDER.indexOf(other));
  show(
    element,
    items.map(([state, number]) =>
      button(
        [make("span", { class: "sign", "data-is": state, "aria-hidden": "true" }), `${state} ${whole(number)}`],
        { key: state, state },
        { "aria-pressed": String(chosen.has(state)), "aria-label": `${state}, ${several(number, "peer")}` },
      ),
    ),
  );
}

const ORDER = [
  "training",
  "waiting",
  "starting",
  "catching up",
  "on trial",
  "paused",
  "leaving",
  "lost",
  "failed",
  "finished",
  "gone",
];
