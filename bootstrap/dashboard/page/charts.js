// The charts, each with its sentence and its table: who cannot see a chart reads one of these.

import { make, show, table } from "./elements.js";
import { bytes, count, nats, whole } from "./words.js";

const CONFIG = { displayModeBar: false, responsive: true };

/** What is drawn and said of the history. */
export function charts(view) {
  const rounds = [...view.history].sort((one, other) => one.round - other.round);
  losses(rounds);
  tokens(rounds, view);
  sent(rounds);
}

function losses(rounds) {
  const known = rounds.filter((each) => each.loss !== null || each.loss_plain !== null);
  const first = known.find((each) => each.loss !== null);
  const last = known.findLast((each) => each.loss !== null);
  const words = last
    ? `${nats(first.loss)} after round ${first.round}, ${nats(last.loss)} after round ${last.round}, in nats per token.`
    : "Not evaluated yet: an observer does, or the node itself with --evaluate.";
  draw("loss", words, [
    line(known, (each) => each.loss, "through the boundaries", "--accent", "solid"),
    line(known, (each) => each.loss_plain, "plain", "--second", "dot"),
  ], { yaxis: { tickformat: ".2~f" } });
  rows("loss", known, ["Round", "Through the boundaries", "Plain"], (each) => [nats(each.loss), nats(each.loss_plain)]);
}

function tokens(rounds, view) {
  const before = Math.max(0, view.tokens - rounds.reduce((sum, each) => sum + each.tokens, 0));
  let sum = before;
  const summed = rounds.map((each) => ({ round: each.round, own: each.tokens, sum: (sum += each.tokens) }));
  draw("tokens", `${count(view.tokens)} in all, ${count(view.tokens_per_second)} a second now.`, [
    { ...line(summed, (each) => each.sum, "tokens in all", "--accent", "solid"), fill: "tozeroy", fillcolor: colour("--wash") },
  ], { yaxis: { tickformat: ".2~s", rangemode: "tozero" } });
  rows("tokens", summed, ["Round", "In it", "In all"], (each) => [whole(each.own), whole(each.sum)]);
}

/** What fraction of the bytes compression saves, over all these rounds; null if nothing is known of it. */
export function saved(rounds) {
  const sum = (of) => rounds.reduce((total, each) => total + of(each), 0);
  const all = sum((each) => each.uncompressed_bytes);
  return all ? 1 - sum((each) => each.pipeline_bytes + each.outer_bytes) / all : null;
}

/** 0.987 as "98.7 %"; never rounded up to all of it. */
export const percent = (fraction) => `${(Math.floor(fraction * 1000) / 10).toFixed(1)} %`;

function sent(rounds) {
  const known = rounds.filter((each) => each.pipeline_bytes + each.outer_bytes + each.uncompressed_bytes > 0);
  const last = known.findLast((each) => each.ended !== null) ?? known.at(-1);
  const share = saved(known);
  const words = last
    ? `Round ${last.round}: ${bytes(last.pipeline_bytes + last.outer_bytes)} sent` +
      (last.uncompressed_bytes ? `; ${bytes(last.uncompressed_bytes)} without compression.` : ".") +
      (share !== null ? ` Saved over all rounds: ${percent(share)}.` : "")
    : "Nothing has been sent yet.";
  const some = (number) => number || null;
  draw("bytes", words, [
    line(known, (each) => some(each.uncompressed_bytes), "uncompressed", "--muted", "dash"),
    line(known, (each) => some(each.pipeline_bytes), "pipeline", "--accent", "solid"),
    line(known, (each) => some(each.outer_bytes), "contributions", "--second", "dot"),
  ], { yaxis: { type: "log", exponentformat: "SI", dtick: 1, ticksuffix: "B" } });
  const cells = (each) => [bytes(each.pipeline_bytes), bytes(each.outer_bytes), bytes(each.uncompressed_bytes)];
  rows("bytes", known, ["Round", "Pipeline", "Contributions", "Without compression"], cells);
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function line(rounds, of, name, color, dash) {
  return {
    x: rounds.map((each) => each.round),
    y: rounds.map(of),
    name,
    mode: rounds.length < 40 ? "lines+markers" : "lines",
    connectgaps: true,
    cliponaxis: false,
    line: { color: colour(color), width: 2.2, dash },
    marker: { size: 5 },
  };
}

/** So many rounds between two marks of the axis that there are eight marks at most. */
const apart = (rounds) => Math.max(1, Math.ceil(((rounds.at(-1) ?? 1) - (rounds[0] ?? 0)) / 8));

function draw(name, words, traces, more) {
  show(document.getElementById(`${name}-words`), words);
  const place = document.getElementById(name);
  if (!globalThis.Plotly) {
    place.textContent = "The chart library did not load; the table below has the numbers.";
    return;
  }
  const axis = { gridcolor: colour("--line"), zeroline: false, linecolor: colour("--line"), fixedrange: true, automargin: true };
  const layout = {
    font: { family: colour("--font"), size: 12, color: colour("--muted") },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { t: 8, r: 8, b: 8, l: 8 },
    height: 250,
    dragmode: false,
    hovermode: "x unified",
    hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--line"), font: { color: colour("--text") } },
    showlegend: traces.length > 1,
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 11 }, itemclick: false, itemdoubleclick: false },
    xaxis: { ...axis, showgrid: false, title: { text: "round", standoff: 8 }, tickformat: "d", tick0: 0, dtick: apart(traces[0].x), hoverformat: "d" },
    yaxis: { ...axis, nticks: 5, ...more.yaxis },
  };
  globalThis.Plotly.react(place, traces, layout, CONFIG);
}

function rows(name, rounds, columns, cells) {
  const title = document.getElementById(`${name}-title`).textContent;
  const made = rounds.map((each) => ({ key: String(each.round), cells: [String(each.round), ...cells(each)] }));
  const region = { class: "scrolled", role: "region", "aria-label": title, tabindex: "0" };
  show(document.getElementById(`${name}-table`), make("div", region, table(title, columns, made, "numbers")));
}
