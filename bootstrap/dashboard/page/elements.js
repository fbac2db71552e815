// Elements made from values, and put in the place of older ones. What peers say becomes text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; strings become text, and what is null or false is left out. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((each) => each !== null && each !== false && each !== ""));
  return element;
}

/** A drawing of 16 × 16, for eyes alone: the words are beside it. */
export function drawing(path, name) {
  const svg = document.createElementNS(SVG, "svg");
  for (const [key, value] of Object.entries({ viewBox: "0 0 16 16", class: `icon ${name}`, "aria-hidden": "true" })) {
    svg.setAttribute(key, value);
  }
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("d", path);
  svg.append(line);
  return svg;
}

/** A table that stays one for screen readers where narrow screens lay it out otherwise. Each row is a list of cells, the
 * first its header; a cell is a string or an element, and empty ones are not laid out there. */
export function table(caption, columns, rows, kind = "") {
  const head = columns.map((each) => make("th", { scope: "col", role: "columnheader" }, each));
  const body = rows.map(({ key, cells, kind: row = "" }) => {
    const made = cells.map((cell, column) => {
      const attributes = { "data-column": columns[column], "data-empty": cell === "" };
      return column === 0
        ? make("th", { scope: "row", role: "rowheader", ...attributes }, cell)
        : make("td", { role: "cell", ...attributes }, cell);
    });
    return make("tr", { role: "row", "data-key": key, class: row || null }, made);
  });
  return make(
    "table", { role: "table", class: kind || null },
    make("caption", { class: "unseen" }, caption),
    make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, head)),
    make("tbody", { role: "rowgroup" }, body),
  );
}

/** Show these children in an element. What is there already stays, so that focus, selection, what is unfolded and where
 * a screen reader reads stay where they are. */
export function show(place, ...children) {
  const fresh = place.cloneNode(false);
  fresh.append(...children.flat());
  fit(place, fresh);
}

function fit(old, fresh) {
  for (const { name, value } of [...fresh.attributes]) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    const unfolded = name === "open" && old.nodeName === "DETAILS";
    if (!unfolded && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  const keyed = new Map([...old.children].filter((each) => each.dataset.key).map((each) => [each.dataset.key, each]));
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
