// The table of peers, which one sorts, and the details of a peer or of a round.

import { button, make, said, table } from "./elements.js";
import { bytes, count, duration, nats, rate, several, short, whole } from "./words.js";
import { AWAY, standing } from "./swarm.js";

const FIRST_ROWS = 20;
const MORE_ROWS = 100;
const FIRST_NAMES = 40;

const ago = (seconds, now) => (seconds ? `${duration(now - seconds)} ago` : "never");
const link = (id) => button(short(id), { peer: id }, { class: "id plain", title: id });
const state = (peer) =>
  make(
    "span",
    { class: "state", "data-is": peer.state },
    make("span", { class: "sign", "data-is": peer.state, "aria-hidden": "true" }),
    peer.state,
  );

/** The columns: what each shows of a peer, and by what it sorts; those with a `kind` are not on a phone. */
const COLUMNS = [
  { key: "id", name: "Peer", cell: (peer) => link(peer.id), value: (peer) => short(peer.id) },
  {
    key: "place",
    name: "Place",
    cell: standing,
    value: (peer) => `${peer.role === "volunteer"} ${String(peer.stage).padStart(4)} ${peer.role}`,
  },
  { key: "state", name: "State", cell: state, value: (peer) => peer.state },
  {
    key: "speed",
    name: "Tokens/s",
    kind: "number wide",
    most: true,
    cell: (peer) => count(peer.tokens_per_second),
    value: (peer) => peer.tokens_per_second,
  },
  {
    key: "credit",
    name: "Credit",
    kind: "number",
    most: true,
    cell: (peer) => count(peer.credit),
    value: (peer) => peer.credit,
  },
  {
    key: "sent",
    name: "Sent",
    kind: "number wide",
    most: true,
    cell: (peer) => bytes(peer.sent),
    value: (peer) => peer.sent,
  },
  {
    key: "joined",
    name: "Joined",
    kind: "number wide",
    cell: (peer, now) => ago(peer.joined, now),
    value: (peer) => peer.joined,
  },
  {
    key: "heard",
    name: "Heard",
    kind: "number wide",
    most: true,
    cell: (peer, now) => ago(peer.heard, now),
    value: (peer) => peer.heard,
  },
];

/** By what the table is sorted, which way, and how many rows it has. */
export const order = { by: "credit", down: true, rows: FIRST_ROWS };

/** Sort by a column; a second time, the other way. */
export function sortBy(key) {
  order.down = order.by === key ? !order.down : Boolean(COLUMNS.find((column) => column.key === key).most);
  order.by = key;
}

/** Show more rows. */
export const moreRows = () => (order.rows += MORE_ROWS);

/** The table of peers, sorted. */
export function peerTable(peers, now) {
  const { value } = COLUMNS.find((column) => column.key === order.by);
  const compared = (one, other) => (value(one) < value(other) ? -1 : value(one) > value(other) ? 1 : 0);
  const sorted = [...peers].sort(
    (one, other) => (order.down ? -1 : 1) * compared(one, other) || (one.id < other.id ? -1 : 1),
  );
  const columns = COLUMNS.map(({ key, name, kind }) => ({
    name: button(
      [name, make("span", { class: "way", "aria-hidden": "true" }, order.by === key ? (order.down ? "▼" : "▲") : "")],
      { sort: key },
      { class: "plain" },
    ),
    kind,
    sorted: order.by === key ? (order.down ? "descending" : "ascending") : null,
  }));
  const rows = sorted
    .slice(0, order.rows)
    .map((peer) => ({ key: peer.id, cells: COLUMNS.map(({ cell }) => cell(peer, now)) }));
  const more = sorted.length - rows.length;
  return [
    table("Peers and their credit", columns, rows, { class: "list" }),
    more > 0 &&
      button(
        `Show ${whole(Math.min(more, MORE_ROWS))} more of ${whole(sorted.length)}`,
        { rows: "more" },
        { class: "more" },
      ),
  ];
}

const facts = (entries) =>
  make(
    "dl",
    { class: "facts" },
    entries
      .filter(Boolean)
      .map(([name, ...value]) => make("div", { "data-key": name }, make("dt", {}, name), make("dd", {}, value))),
  );

/** A peer: its title and what is known of it; null if it is known no more. */
export function peerDetails(view, { groups, groupOf }, id) {
  const peer = view.peers[id];
  if (!peer) return null;
  const group = groupOf.has(id) ? groups[groupOf.get(id)] : null;
  const device = [
    peer.device?.temperature !== undefined && `${whole(peer.device.temperature)} °C`,
    peer.device?.battery !== undefined && `battery ${peer.device.battery} %`,
  ].filter(Boolean);
  const step = `${whole(peer.round)}, step ${whole(peer.step)}${peer.step > view.inner_steps ? "" : ` of ${view.inner_steps}`}`;
  return [
    make("h2", { id: "details-title" }, "Peer ", make("span", { class: "id" }, short(id))),
    make("p", {}, state(peer), peer.why && [": ", said(peer.why)]),
    facts([
      ["Place", standing(peer), group && `, group ${groupOf.get(id) + 1}`],
      !AWAY.has(peer.state) && ["Round", step],
      !AWAY.has(peer.state) && ["Speed", `${count(peer.tokens_per_second)} tokens/s`],
      peer.loss !== undefined && ["Training loss", nats(peer.loss)],
      ["Links", `up ${rate(peer.up)}, down ${rate(peer.down)}, ${peer.relayed ? "relayed" : "direct"}`],
      ["Sent", bytes(peer.sent)],
      ["Credit", `${whole(peer.credit)} tokens`],
      device.length && ["Machine", device.join(", ")],
      ["Heard", ago(peer.heard, view.now)],
      peer.joined && ["Joined", ago(peer.joined, view.now)],
      peer.address && ["Address", said(peer.address)],
      peer.version && ["Version", said(peer.version)],
      ["Id", make("span", { class: "id" }, id)],
    ]),
    group && [
      make("h3", {}, `Group ${groupOf.get(id) + 1}`),
      group.broken && make("p", { class: "why" }, "Does not train: ", said(group.broken)),
      group.slow && make("p", { class: "why" }, "Is slow: ", said(group.slow)),
      make(
        "p",
        {},
        group.compression > 1
          ? `It sends 1/${whole(group.compression)} of each activation.`
          : "It sends whole activations.",
      ),
      make(
        "ol",
        { class: "members", start: "0" },
        group.members.map((member, stage) => {
          const mate = view.peers[member];
          return make(
            "li",
            {},
            `Stage ${stage}: `,
            mate
              ? [link(member), " ", state(mate)]
              : member
                ? ["nothing known of ", make("span", { class: "id" }, short(member))]
                : "nobody",
          );
        }),
      ),
    ],
  ];
}

/** A round: its title, numbers, and who contributed, was late or left; null if it is known no more. */
export function roundDetails(view, number, all) {
  const round = view.history[number];
  if (!round) return null;
  const taken =
    round.ended === undefined
      ? `going on for ${duration(view.now - round.began)}`
      : duration(round.ended - round.began);
  return [
    make("h2", { id: "details-title" }, `Round ${round.round}`),
    facts([
      ["Took", taken],
      round.loss !== undefined && ["Held-out loss", `${nats(round.loss)}; plain ${nats(round.loss_plain)}`],
      round.evaluated_by && round.loss !== undefined && ["Evaluated by", link(round.evaluated_by)],
      ["Tokens", whole(round.tokens)],
      [
        "Sent",
        `${bytes(round.pipeline_bytes)} in pipelines, ${bytes(round.outer_bytes)} of contributions; ${bytes(round.uncompressed_bytes)} without compression`,
      ],
    ]),
    ...names("Late", round.late, round.late_count, all, (why) => said(why)),
    ...names("Left", round.left, round.left_count, all, (why) => said(why)),
    ...names("Contributed", round.contributions, round.contributions_count, all, (steps) => several(steps, "step")),
  ];
}

function names(title, entries, number, all, words) {
  if (!number) return [];
  const list = Object.entries(entries ?? {});
  const shown = all ? list : list.slice(0, FIRST_NAMES);
  return [
    make("h3", {}, `${title} (${whole(number)})`),
    list.length
      ? make(
          "ul",
          { class: "names" },
          shown.map(([peer, value]) => make("li", { "data-key": peer }, link(peer), " ", words(value))),
        )
      : make("p", {}, "Who they were is in the JSON: the round is an older one."),
    shown.length < list.length &&
      button(`Show ${whole(list.length - shown.length)} more`, { names: "all" }, { class: "more" }),
  ];
}
