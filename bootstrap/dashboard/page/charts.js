// Lines over rounds, drawn as SVG. Each chart has a sentence that says the same, and the table of rounds has the numbers.

import { make, show, svg } from "./elements.js";
import { bytes, count, nats } from "./words.js";

const HEIGHT = 190;
const NARROW = 500; // pixels
const NARROW_HEIGHT = 140;
const MARGIN = { top: 8, right: 10, bottom: 22, left: 52 };
const ROUND_MARKS = 8;
const DIGITS = 5; // pixels for half of a mark's digits

const widths = {}; // by the name of a chart: to ask an element for it would lay out the whole page once more

/** Learn how wide the charts are, and call `update` when one is shown, or is wider or narrower than before. */
export function watchWidths(update) {
  const observer = new ResizeObserver((entries) => {
    for (const { target, contentRect } of entries) widths[target.id] = Math.floor(contentRect.width);
    update(Object.values(widths).join());
  });
  for (const chart of document.querySelectorAll(".chart")) observer.observe(chart);
}

/** Through the boundaries, and plain. */
export function losses(rounds) {
  const evaluated = rounds.filter((round) => round.loss !== undefined);
  const [first, last] = [evaluated[0], evaluated.at(-1)];
  const words = last
    ? `${nats(last.loss)} nats per token, ${nats(first.loss)} after round ${first.round}.`
    : "Not evaluated yet: an observer does, or the node itself with --evaluate.";
  draw(
    "loss",
    words,
    [
      { name: "through the boundaries", points: points(evaluated, (round) => round.loss) },
      { name: "plain", points: points(evaluated, (round) => round.loss_plain) },
    ],
    { marks: marks(5), label: (value) => value.toFixed(2), value: nats },
  );
}

/** In all. */
export function tokens(rounds, view) {
  let sum = Math.max(0, view.tokens - rounds.reduce((total, round) => total + round.tokens, 0));
  const summed = rounds.map((round) => ({ round: round.round, sum: (sum += round.tokens) }));
  const words = `${count(view.tokens)} in all, ${count(view.tokens_per_second)} a second now.`;
  draw("tokens", words, [{ name: "tokens in all", points: points(summed, (round) => round.sum) }], {
    marks: marks(4, 0),
    label: count,
    value: count,
  });
}

/** The part of the bytes that compression saves, over all these rounds; null if nothing is known of it. */
export function saved(rounds) {
  const sum = (of) => rounds.reduce((total, round) => total + of(round), 0);
  const all = sum((round) => round.uncompressed_bytes);
  return all ? 1 - sum((round) => round.pipeline_bytes + round.outer_bytes) / all : null;
}

/** 0.987 as "98.7 %"; never rounded up to all of it. */
export const percent = (fraction) => `${(Math.floor(fraction * 1000) / 10).toFixed(1)} %`;

/** Of a round, with compression and without. */
export function sent(rounds) {
  const counted = rounds.filter((round) => round.pipeline_bytes + round.outer_bytes + round.uncompressed_bytes > 0);
  const last = counted.findLast((round) => round.ended !== undefined) ?? counted.at(-1);
  const share = saved(counted);
  const words = last
    ? `Round ${last.round}: ${bytes(last.pipeline_bytes + last.outer_bytes)} sent` +
      (last.uncompressed_bytes ? `; ${bytes(last.uncompressed_bytes)} without compression.` : ".") +
      (share !== null ? ` Saved over all rounds: ${percent(share)}.` : "")
    : "Nothing has been sent yet.";
  const some = (number) => number || undefined;
  draw(
    "bytes",
    words,
    [
      { name: "pipeline", points: points(counted, (round) => some(round.pipeline_bytes)) },
      { name: "contributions", points: points(counted, (round) => some(round.outer_bytes)) },
      { name: "uncompressed", points: points(counted, (round) => some(round.uncompressed_bytes)) },
    ],
    { marks: decades, label: (value) => bytes(value).replace(".0 ", " "), value: bytes, scale: Math.log10 },
  );
}

const points = (rounds, of) =>
  rounds.map((round) => [round.round, of(round)]).filter(([, value]) => value !== undefined);

/** Round numbers for the marks of an axis, so many at most, that enclose all values. */
const marks =
  (most, from = Infinity) =>
  (low, high) => {
    const bottom = Math.min(low, from);
    const rough = (high - bottom || Math.abs(high) || 1) / most;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999999);
    const begin = Math.floor(bottom / step);
    return Array.from({ length: Math.ceil(high / step) - begin + 1 || 1 }, (_, index) => (begin + index) * step);
  };

const decades = (low, high) => {
  const begin = Math.floor(Math.log10(low));
  const all = Array.from(
    { length: Math.max(2, Math.ceil(Math.log10(high)) - begin + 1) },
    (_, index) => 10 ** (begin + index),
  );
  const skip = Math.ceil(all.length / 6);
  return all.filter((_, index) => index % skip === 0 || index === all.length - 1);
};

function draw(name, words, lines, axis) {
  show(document.getElementById(`${name}-words`), words);
  const chart = document.getElementById(name);
  const width = widths[name] ?? 0;
  const height = width < NARROW ? NARROW_HEIGHT : HEIGHT;
  const drawn = lines.filter((line) => line.points.length);
  if (!drawn.length || !width) return show(chart);
  const all = drawn.flatMap((line) => line.points);
  const scale = axis.scale ?? ((value) => value);
  const heights = axis.marks(Math.min(...all.map(([, y]) => y)), Math.max(...all.map(([, y]) => y)));
  const [low, high] = [scale(heights[0]), scale(heights.at(-1))];
  const [first, last] = [Math.min(...all.map(([x]) => x)), Math.max(...all.map(([x]) => x))];
  const right = width - MARGIN.right;
  const bottom = height - MARGIN.bottom;
  const x = (round) =>
    last === first
      ? (MARGIN.left + right) / 2
      : MARGIN.left + ((round - first) / (last - first)) * (right - MARGIN.left);
  const y = (value) => bottom - ((scale(value) - low) / (high - low || 1)) * (bottom - MARGIN.top);
  const apart = Math.max(1, Math.ceil((last - first) / ROUND_MARKS));
  const ticks = Array.from({ length: Math.floor((last - first) / apart) + 1 }, (_, index) => first + index * apart);
  const dot = ([round, value]) => `${x(round).toFixed(1)},${y(value).toFixed(1)}`;
  const picture = svg(
    "svg",
    { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    heights.map((value) => [
      svg("line", { class: "rule", x1: MARGIN.left, x2: right, y1: y(value), y2: y(value) }),
      svg("text", { x: MARGIN.left - 8, y: y(value) + DIGITS - 1, "text-anchor": "end" }, axis.label(value)),
    ]),
    ticks.map((round) => svg("text", { x: x(round), y: height - DIGITS, "text-anchor": "middle" }, String(round))),
    lines.map(
      (line, index) =>
        line.points.length && svg("polyline", { class: `line-${index}`, points: line.points.map(dot).join(" ") }),
    ),
    drawn.length &&
      all.length < 60 &&
      lines.map((line, index) =>
        line.points.map((point) => svg("circle", { class: `line-${index}`, cx: x(point[0]), cy: y(point[1]), r: 2 })),
      ),
    svg("line", { class: "cursor", visibility: "hidden", y1: MARGIN.top, y2: bottom }),
  );
  const legend = make(
    "p",
    { class: "legend" },
    lines.map(
      (line, index) =>
        line.points.length &&
        make(
          "span",
          {},
          svg("svg", { width: 22, height: 8 }, svg("line", { class: `line-${index}`, x1: 0, x2: 22, y1: 4, y2: 4 })),
          line.name,
        ),
    ),
  );
  show(chart, picture, legend, make("p", { class: "readout" }, chart.querySelector(".readout")?.textContent ?? ""));
  chart.onpointermove = ({ clientX }) => {
    const rounds = [...new Set(all.map(([round]) => round))];
    const at = clientX - chart.getBoundingClientRect().left;
    const round = rounds.reduce((best, other) => (Math.abs(x(other) - at) < Math.abs(x(best) - at) ? other : best));
    const values = lines.flatMap((line) =>
      line.points.filter(([other]) => other === round).map(([, value]) => `${axis.value(value)} ${line.name}`),
    );
    const cursor = chart.querySelector(".cursor");
    for (const [name, value] of Object.entries({ x1: x(round), x2: x(round), visibility: "visible" }))
      cursor.setAttribute(name, value);
    chart.querySelector(".readout").textContent = `Round ${round}: ${values.join(", ")}`;
  };
}
