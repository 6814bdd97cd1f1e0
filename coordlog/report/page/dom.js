// Elements and texts. All texts of a job are untrusted: they become text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element with properties and children; strings and numbers become text nodes, null nothing. */
function el(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") element.className = value;
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else element.setAttribute(key, String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined).map(asNode));
  return element;
}

function asNode(child) {
  return child instanceof Node ? child : document.createTextNode(shown(String(child)));
}

const TEXT_MAX = 600;
const BRIEF_MAX = 150;
// Controls, line separators and the marks that turn the direction of the text after them.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** A text as it is shown: without characters that hide or turn others, and of bounded length. */
function shown(text) {
  const cut = text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX)}… (${number(text.length)} characters)` : text;
  return cut.replace(UNSEEN, (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** A text as a part of a sentence or of a row; details have it whole. */
function brief(text) {
  return text.length > BRIEF_MAX ? `${text.slice(0, BRIEF_MAX)}…` : text;
}

/** A text as one word of a command line. */
function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** A number with its noun, in the plural unless it is 1. */
function many(count, noun) {
  return `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
}

function number(value) {
  return value === null || value === undefined ? "?" : Number(value).toLocaleString("en-US");
}

function inBytes(count) {
  if (count === null || count === undefined) return "?";
  let size = count;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (size < (unit === "B" ? 1000 : 999.95)) return unit === "B" ? `${size} B` : `${size.toFixed(1)} ${unit}`;
    size /= 1000;
  }
  return `${size.toFixed(1)} TB`;
}

/** A duration in microseconds, for people. Each bound is that of the rounded text: never 1000 ms or 60 s. */
function lasted(us) {
  if (us === null || us === undefined) return "?";
  if (us < 999.5) return `${Math.round(us)} µs`;
  if (us < 999_500) return `${(us / 1e3).toFixed(us < 9_950 ? 1 : 0)} ms`;
  const s = us / 1e6;
  if (s < 119.95) return `${s.toFixed(s < 9.995 ? 2 : 1)} s`;
  const seconds = Math.round(s);
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  const minutes = Math.round(s / 60);
  if (minutes < 2880) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${(s / 86400).toFixed(1)} days`;
}

/** A command line, whose options are not broken between two lines. */
function commandLine(command) {
  const parts = command.split(/(?<= )(--[a-z-]{1,20})(?= )/);
  return el("p", { class: "command" }, el("code", {}, parts.map((part, at) => (at % 2 ? el("span", { class: "option" }, part) : part))));
}

/** Columns of a table: [name, class]; rows: lists of cells, or {cells, pick} with an action. */
function tableOf(columns, rows) {
  const head = el("tr", { role: "row" }, columns.map(([name, kind]) => el("th", { class: kind, scope: "col", role: "columnheader" }, name)));
  const body = rows.map((row) => {
    const { cells, pick } = Array.isArray(row) ? { cells: row, pick: null } : row;
    return el("tr", { role: "row", class: pick && "pick", onclick: pick }, cells.map((cell, at) => el("td",
      { class: columns[at][1], role: "cell", "data-column": columns[at][0] }, pick && at === 0 ? pickButton(cell) : cell)));
  });
  return el("div", { class: "scroll" }, el("table", { role: "table" }, el("thead", { role: "rowgroup" }, head), el("tbody", { role: "rowgroup" }, body)));
}

/** The button of a thing that can be selected; a press of it is a click of the row around it. */
function pickButton(...words) {
  return el("button", { type: "button", class: "pick" }, ...words);
}

/** Draw again in an element, whose focus and scrolling stay where they are. */
function keepPlaces(element, draw) {
  const boxes = () => [element, ...element.querySelectorAll(".scroll")];
  const stops = () => [...element.querySelectorAll("button, [tabindex], summary")];
  const focused = stops().indexOf(document.activeElement);
  const places = boxes().map((box) => [box.scrollTop, box.scrollLeft]);
  draw();
  boxes().slice(0, places.length).forEach((box, at) => { [box.scrollTop, box.scrollLeft] = places[at]; });
  if (focused >= 0 && document.activeElement === document.body) stops()[focused]?.focus({ preventScroll: true });
}

/** A canvas context in CSS pixels, sized for the screen. */
function contextOf(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

let colourCache = null;
/** The value of a CSS variable, as in `colour("bad")`. */
function colour(name) {
  if (colourCache === null) colourCache = new Map();
  let value = colourCache.get(name);
  if (value === undefined) {
    value = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
    colourCache.set(name, value);
  }
  return value;
}
