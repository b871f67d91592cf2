// Elements, with text set by textContent alone: token text is never read as markup.
const SVG = "http://www.w3.org/2000/svg";

function attributes(node, values) {
  for (const [name, value] of Object.entries(values)) {
    if (value === null || value === undefined || value === false) continue;
    node.setAttribute(name, typeof value === "number" ? String(Math.round(value * 100) / 100) : String(value));
  }
  return node;
}
function fill(node, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === "") continue;
    node.append(typeof child === "string" ? document.createTextNode(child) : child);
  }
  return node;
}
const el = (tag, values = {}, ...children) => fill(attributes(document.createElement(tag), values), children);
const svg = (tag, values = {}, ...children) => fill(attributes(document.createElementNS(SVG, tag), values), children);
const empty = (node) => node.replaceChildren();
function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Sizes of holders, read once: asking the browser in the midst of drawing makes it lay out anew.
const sizes = new WeakMap();
function sizeOf(holder) {
  if (!sizes.has(holder)) sizes.set(holder, { width: Math.max(holder.clientWidth, 120), height: Math.max(holder.clientHeight, 60) });
  return sizes.get(holder);
}

// A drawing of the size of its holder; everything in it is in CSS pixels.
function canvas(holder, label) {
  const { width, height } = sizeOf(holder);
  let drawing = holder.firstElementChild;
  if (!drawing) holder.append((drawing = svg("svg", { role: "group" })));
  attributes(drawing, { width, height, viewBox: `0 0 ${width} ${height}`, "aria-label": label });
  empty(drawing);
  return { drawing, width, height };
}

// Accepted: circle. Bonus: diamond. Everything that marks an origin goes through here.
function glyph(origin, x, y, r, values = {}) {
  if (origin === "bonus") {
    const d = r * 1.25;
    return svg("path", { d: `M${x} ${y - d}L${x + d} ${y}L${x} ${y + d}L${x - d} ${y}Z`, class: "glyph bonus", ...values });
  }
  return svg("circle", { cx: x, cy: y, r, class: "glyph " + origin, ...values });
}

let measuring = null;
const widths = new Map();
function textWidth(text, font) {
  const key = font + "|" + text;
  let width = widths.get(key);
  if (width === undefined) {
    measuring = measuring || document.createElement("canvas").getContext("2d");
    measuring.font = font;
    width = measuring.measureText(text).width;
    if (widths.size > 20000) widths.clear();
    widths.set(key, width);
  }
  return width;
}
