// Numbers, times and names in words.

const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** 1.2M */
export const count = (number) => COMPACT.format(number);

/** 1,234,567 */
export const whole = (number) => WHOLE.format(number);

/** Of a loss in nats. */
export const nats = (number) => (number === undefined ? "–" : number.toFixed(3));

/** 1.2 MB */
export function bytes(number) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (number >= 999.5 && unit < units.length - 1) {
    number /= 1000;
    unit += 1;
  }
  return `${unit && number < 100 ? number.toFixed(1) : number.toFixed(0)} ${units[unit]}`;
}

export const rate = (number) => `${bytes(number)}/s`;

/** 42 s, 3 min, 2.5 h, 4 days */
export function duration(seconds) {
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 36 * 3600) return `${(seconds / 3600).toFixed(1)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

const CLOCK = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hour12: false,
});
const DAY = new Intl.DateTimeFormat(undefined, {
  month: "short",
  day: "numeric",
  hour: "2-digit",
  minute: "2-digit",
  hour12: false,
});

const SOON = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hour12: false });

/** The time of day, with the day where it is more than one from `now`; without seconds where it is to come. */
export function time(seconds, now) {
  const format = Math.abs(now - seconds) >= 86400 ? DAY : seconds > now ? SOON : CLOCK;
  return format.format(new Date(seconds * 1000));
}

export const several = (number, one, more = `${one}s`) => `${whole(number)} ${number === 1 ? one : more}`;

/** As everywhere in hetpeer: the end of a peer's id. */
export const short = (id) => id.slice(-8);
