// What follows from a view, without any element: who is in which row of the map, the verdict, and the problems.

import { count, several, short, time, whole } from "./words.js";

export const AWAY = new Set(["gone", "lost", "paused"]);
const HELD_UP = 0.1; // of the groups: fewer that stand still for a moment are usual in a large run
const SEVERAL = 4; // groups that stand still are counted before they are listed
const MANY_LATE = 0.1; // of the contributions of a round

const byAddress = (one, other) => (one < other ? -1 : one > other ? 1 : 0);
const capital = (words) => words.charAt(0).toUpperCase() + words.slice(1);

/** The peers of a view, its groups in their order, and the group of each member. */
export function swarm(view) {
  const peers = Object.values(view.peers);
  const groups = Object.values(view.groups).sort(
    (one, other) => one.slot - other.slot || byAddress(one.replica, other.replica),
  );
  const groupOf = new Map();
  groups.forEach((group, index) => group.members.forEach((member) => member && groupOf.set(member, index)));
  return { peers, groups, groupOf, rows: rows(view, peers, groups, groupOf) };
}

/** The rows of the map: each stage, with its members by group and then those without; datacenters, observers, and who
 * has gone. A seat of a group that nobody has is a cell without a peer. */
function rows(view, peers, groups, groupOf) {
  const stages = Array.from({ length: view.stages }, (_, stage) => ({
    key: `stage ${stage}`,
    name: `Stage ${stage}`,
    cells: [],
  }));
  const others = ["datacenter", "observer", "gone"].map((key) => ({
    key,
    name: { datacenter: "Datacenters", observer: "Observers", gone: "Gone" }[key],
    cells: [],
  }));
  groups.forEach((group, index) =>
    stages.forEach(({ cells }, stage) => {
      const member = group.members[stage] ?? "";
      const peer = view.peers[member];
      cells.push(
        peer
          ? { key: member, peer, group: index }
          : { key: `${group.replica} ${stage}`, peer: null, group: index, stage, member, leader: group.replica },
      );
    }),
  );
  for (const peer of peers) {
    if (groupOf.has(peer.id)) continue;
    const row =
      peer.state === "gone"
        ? others[2]
        : peer.role === "volunteer"
          ? stages[peer.stage]
          : others[peer.role === "observer" ? 1 : 0];
    row?.cells.push({ key: peer.id, peer, group: null });
  }
  return [...stages, ...others.filter(({ cells }) => cells.length)];
}

/** "stage 2", "datacenter", "observer" */
export const standing = (peer) => (peer.role === "volunteer" ? `stage ${peer.stage}` : peer.role);

const standStill = (some, all) => `${whole(some)} of ${several(all, "group")} ${some === 1 ? "does" : "do"} not train`;

/** What one wants to know first: the level ("good", "warn" or "bad"), a headline, and a sentence. */
export function verdict(view, { peers, groups, groupOf }) {
  const since = time(view.state_since, view.now);
  const why = view.state_why ? `${capital(view.state_why)}.` : "";
  if (view.state === "finished")
    return { level: "good", head: "Finished", words: why || `All ${several(view.rounds, "round")} have ended.` };
  if (view.state === "stalled") return { level: "bad", head: `Stalled since ${since}`, words: why };
  if (view.state === "gathering") return { level: "warn", head: "Gathering peers", words: why };
  const broken = new Set(groups.flatMap((group, index) => (group.broken ? [index] : [])));
  const training = groups.length - broken.size;
  const isIdle = ({ id, role, state }) =>
    role === "volunteer" && !AWAY.has(state) && (!groupOf.has(id) || broken.has(groupOf.get(id)));
  const idle = peers.filter(isIdle).length;
  if (view.short && (idle >= view.stages || (idle && !training))) {
    const [head, ...rest] = view.short.split(": ");
    return {
      level: "warn",
      head: capital(head),
      words: `${capital(rest.join(": "))}. ${several(idle, "volunteer")} ${idle === 1 ? "waits" : "wait"}.`,
      short: true,
    };
  }
  if (broken.size && broken.size / groups.length >= HELD_UP) {
    return {
      level: "warn",
      head: standStill(broken.size, groups.length),
      words: training ? "The others do, and rounds end." : "Datacenters do, and rounds end.",
    };
  }
  const datacenters = peers.filter((peer) => peer.role === "datacenter" && !AWAY.has(peer.state)).length;
  const whoTrains = [training && several(training, "group"), datacenters && several(datacenters, "datacenter")].filter(
    Boolean,
  );
  return {
    level: "good",
    head: "Healthy",
    words: `Rounds end; ${whoTrains.join(" and ") || "nobody"} ${training + datacenters === 1 ? "trains" : "train"}, ${count(view.tokens_per_second)} tokens a second.`,
  };
}

/** What is wrong, the worst first, and what would help: a level, words of ours, words of peers, and what shows more: a peer, a state or a
 * round. */
export function problems(view, { peers, groups }, judged) {
  const list = [];
  const lost = peers.filter((peer) => peer.state === "lost");
  if (lost.length) {
    const words = lost.length === 1 ? `Peer ${short(lost[0].id)} is lost` : `${whole(lost.length)} peers are lost`;
    const more = lost.length === 1 ? { peer: lost[0].id, said: lost[0].why } : { state: "lost", said: lostAt(lost) };
    list.push({ key: "lost", level: "bad", words, ...more });
  }
  const broken = groups.filter((group) => group.broken).length;
  if (broken >= SEVERAL) list.push({ key: "broken", level: "bad", words: standStill(broken, groups.length) });
  groups.forEach((group, index) => {
    const problem = { key: group.replica, peer: group.members.find(Boolean) };
    if (group.broken)
      list.push({ ...problem, level: "bad", words: `Group ${index + 1} does not train`, said: group.broken });
  });
  groups.forEach((group, index) => {
    const problem = { key: group.replica, peer: group.members.find(Boolean) };
    if (group.slow) list.push({ ...problem, level: "warn", words: `Group ${index + 1} is slow`, said: group.slow });
  });
  if (view.short && !judged.short) list.push({ key: "short", level: "note", words: capital(view.short) });
  const ended = Object.values(view.history).findLast((round) => round.ended !== undefined);
  if (ended?.late_count && ended.late_count >= MANY_LATE * (ended.late_count + ended.contributions_count))
    list.push({
      key: "late",
      level: "note",
      words: `Round ${ended.round}: ${several(ended.late_count, "peer")} came late`,
      round: ended.round,
    });
  return list;
}

/** "12 at stage 2, 3 datacenters" */
function lostAt(lost) {
  const places = new Map();
  for (const peer of lost) places.set(standing(peer), (places.get(standing(peer)) ?? 0) + 1);
  return [...places]
    .map(([name, number]) => (name.startsWith("stage") ? `${whole(number)} at ${name}` : several(number, name)))
    .join(", ");
}
