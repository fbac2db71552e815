// Elements made from values, and put in the place of older ones. What peers say becomes text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false)
      element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((child) => child || child === 0));
  return element;
}

/** An element with attributes and children; strings become text, and what is null or false is left out. */
export const make = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);

/** The same of a drawing. */
export const svg = (tag, attributes = {}, ...children) =>
  filled(document.createElementNS(SVG, tag), attributes, children);

/** A table: each column has a name, and maybe a class, and each row a key and cells, the first of them its header. */
export function table(caption, columns, rows, attributes = {}) {
  const cell = (tag, index, child, more) => make(tag, { class: columns[index].kind, ...more }, child);
  return make(
    "table",
    attributes,
    make("caption", { class: "unseen" }, caption),
    make(
      "thead",
      {},
      make(
        "tr",
        {},
        columns.map(({ name, sorted }, index) => cell("th", index, name, { scope: "col", "aria-sort": sorted })),
      ),
    ),
    make(
      "tbody",
      {},
      rows.map(({ key, cells }) =>
        make(
          "tr",
          { "data-key": key },
          cells.map((child, index) => (index ? cell("td", index, child) : cell("th", index, child, { scope: "row" }))),
        ),
      ),
    ),
  );
}

/** Words that another peer chose, whatever their direction. */
export const said = (words) => make("bdi", {}, words);

/** A button that shows more. `data` says of what, for whoever listens. */
export const button = (words, data, attributes = {}) =>
  make(
    "button",
    {
      type: "button",
      ...Object.fromEntries(Object.entries(data).map(([name, value]) => [`data-${name}`, value])),
      ...attributes,
    },
    words,
  );

/** Show these children in an element. What is there already stays, so that focus, selection, what is unfolded and where
 * a screen reader reads stay where they are. */
export function show(place, ...children) {
  const fresh = place.cloneNode(false);
  fresh.append(...children.flat(3).filter((child) => child || child === 0));
  keepFocus(() => fit(place, fresh));
}

/** Show an element for each item, in an element that is marked `data-own`. Items have keys; an element is made only where
 * the item's signature is another than before. */
export function showItems(place, items, signature, build) {
  const old = new Map(Array.from(place.children, (element) => [element.dataset.key, element]));
  let next = place.firstElementChild;
  keepFocus(() => {
    for (const item of items) {
      const sign = signature(item);
      let element = old.get(item.key);
      old.delete(item.key);
      if (!element) element = build(item);
      else if (element.signature !== sign) fit(element, build(item));
      element.signature = sign;
      if (element === next) next = next.nextElementSibling;
      else place.insertBefore(element, next);
    }
    for (const element of old.values()) element.remove();
  });
}

/** Change what is shown; an element that is only moved keeps the focus. */
function keepFocus(change) {
  const focused = document.activeElement;
  change();
  if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
}

function fit(old, fresh) {
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (old.attributes.length !== fresh.attributes.length) {
    for (const { name } of [...old.attributes]) {
      const unfolded = name === "open" && old.nodeName === "DETAILS";
      if (!unfolded && !fresh.hasAttribute(name)) old.removeAttribute(name);
    }
  }
  if (fresh.hasAttribute("data-own") || (!old.firstChild && !fresh.firstChild)) return;
  const keyed = new Map();
  for (const child of old.children) if (child.dataset.key) keyed.set(child.dataset.key, child);
  let place = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const key = child.dataset?.key;
    const match = key ? keyed.get(key) : place;
    if (match && alike(match, child)) {
      if (match === place) place = place.nextSibling;
      else old.insertBefore(match, place);
      if (child.nodeType === Node.ELEMENT_NODE) fit(match, child);
      else if (match.data !== child.data) match.data = child.data;
    } else {
      old.insertBefore(child, place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

function alike(old, fresh) {
  return old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName && old.dataset?.key === fresh.dataset?.key;
}
