// The run as it comes from the node: a whole view first, then what has changed.

const SILENCE = 15_000; // milliseconds; the server says something every five seconds
const FIRST_WAIT = 1_000;
const MOST_WAIT = 15_000;

/** A tree with a merge patch (RFC 7396) applied. What has not changed stays the same object. */
export function merged(tree, patch) {
  if (patch === null || typeof patch !== "object" || Array.isArray(patch)) return patch;
  const entries = new Map(
    Object.entries(tree !== null && typeof tree === "object" && !Array.isArray(tree) ? tree : {}),
  );
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) entries.delete(name);
    else entries.set(name, merged(entries.get(name) ?? null, value));
  }
  return Object.fromEntries(entries);
}

/** Follow the run for as long as the page is open: `onView` gets each view, `onConnection` whether there is one. */
export function follow(onView, onConnection) {
  let wait = FIRST_WAIT;
  const connect = () => {
    const source = new EventSource("events");
    let silence = 0;
    let view = null;
    const lose = () => {
      clearTimeout(silence);
      source.close();
      onConnection(false);
      setTimeout(connect, wait);
      wait = Math.min(MOST_WAIT, 2 * wait);
    };
    const listen = () => {
      clearTimeout(silence);
      silence = setTimeout(lose, SILENCE);
    };
    const take = (next) => {
      listen();
      wait = FIRST_WAIT;
      view = next;
      onView(view);
      onConnection(true);
    };
    source.addEventListener("error", lose);
    source.addEventListener("view", ({ data }) => take(JSON.parse(data)));
    source.addEventListener("change", ({ data }) => take(merged(view, JSON.parse(data))));
    source.addEventListener("beat", listen);
    listen();
  };
  connect();
}
