// The rounds and the log, the newest first. Both are made only while they are unfolded.

import { button, make, said, table } from "./elements.js";
import { bytes, count, duration, nats, short, time, whole } from "./words.js";

const MORE = 50;

/** How many rows each shows. */
export const length = { rounds: 8, log: 15 };

/** Show more of one of them. */
export const lengthen = (name) => (length[name] += MORE);

const COLUMNS = [
  { name: "Round" },
  { name: "Took", kind: "number" },
  { name: "Loss", kind: "number" },
  { name: "Plain", kind: "number wide" },
  { name: "Tokens", kind: "number wide" },
  { name: "Contributed", kind: "number" },
  { name: "Late", kind: "number" },
  { name: "Left", kind: "number" },
  { name: "Pipeline", kind: "number wider" },
  { name: "Contributions", kind: "number wider" },
  { name: "Uncompressed", kind: "number wider" },
];

const taken = (round, now) =>
  round.ended === undefined ? `${duration(now - round.began)} so far` : duration(round.ended - round.began);

/** The newest round in a few words. */
export function roundWords(history, now) {
  const last = history.at(-1);
  return last
    ? `${last.round}: ${last.ended === undefined ? taken(last, now) : `took ${taken(last, now)}`}`
    : "None has begun.";
}

/** A table of rounds; each opens one. */
export function roundTable(history, now) {
  const newest = [...history].reverse();
  const rows = newest.slice(0, length.rounds).map((round) => ({
    key: String(round.round),
    cells: [
      button(String(round.round), { round: round.round }, { class: "plain", "aria-label": `Round ${round.round}` }),
      taken(round, now),
      nats(round.loss),
      nats(round.loss_plain),
      count(round.tokens),
      whole(round.contributions_count),
      whole(round.late_count),
      whole(round.left_count),
      bytes(round.pipeline_bytes),
      bytes(round.outer_bytes),
      bytes(round.uncompressed_bytes),
    ],
  }));
  return [table("Rounds", COLUMNS, rows, { class: "list" }), more("rounds", newest.length)];
}

/** What happened. */
export function logLines(log, now) {
  const lines = [...log].sort((one, other) => other.at - one.at);
  const items = lines
    .slice(0, length.log)
    .map((line) =>
      make(
        "li",
        { "data-key": `${line.at} ${line.kind} ${line.peer} ${line.words}` },
        make("time", { datetime: new Date(line.at * 1000).toISOString() }, time(line.at, now)),
        make("span", { class: "kind" }, said(line.kind)),
        make(
          "span",
          {},
          said(line.words),
          line.peer && [" ", button(short(line.peer), { peer: line.peer }, { class: "id plain" })],
        ),
      ),
    );
  return [make("ol", { class: "log" }, items), more("log", lines.length)];
}

/** The newest line. */
export const logWords = (log) =>
  log.length ? said(log.reduce((newest, line) => (line.at >= newest.at ? line : newest)).words) : "Nothing yet.";

const more = (name, all) =>
  all > length[name] &&
  button(
    `Show ${whole(Math.min(MORE, all - length[name]))} more of ${whole(all)}`,
    { lengthen: name },
    { class: "more" },
  );
