// A figure as one SVG file that needs no style sheet, and as a PNG drawn from that file.
const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "fill-opacity",
  "stroke-opacity", "opacity", "font-family", "font-size", "font-weight", "font-style", "text-anchor", "paint-order", "visibility", "display"];

let painter = null;
const plainColours = new Map();
// Any CSS colour as rgb plus opacity: programs other than browsers do not read color-mix().
function plainColour(value) {
  if (!value || value === "none" || value.startsWith("url")) return { colour: value, opacity: 1 };
  if (!plainColours.has(value)) {
    painter = painter || Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
    painter.clearRect(0, 0, 1, 1);
    painter.fillStyle = value;
    painter.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = painter.getImageData(0, 0, 1, 1).data;
    plainColours.set(value, { colour: `rgb(${r},${g},${b})`, opacity: a / 255 });
  }
  return plainColours.get(value);
}

function withStyles(original) {
  const copy = original.cloneNode(false);
  for (const name of [...copy.getAttributeNames()]) {
    if (name === "class" || name === "tabindex" || name === "role" || name.startsWith("data-") || name.startsWith("aria-")) copy.removeAttribute(name);
  }
  const style = getComputedStyle(original);
  for (const name of STYLES) {
    let value = style.getPropertyValue(name);
    if (name === "fill" || name === "stroke") {
      const { colour, opacity } = plainColour(value);
      value = colour;
      if (opacity < 1) copy.setAttribute(name + "-opacity", String(opacity * Number(style.getPropertyValue(name + "-opacity") || 1)));
    }
    if ((name === "fill-opacity" || name === "stroke-opacity") && copy.hasAttribute(name)) continue;
    if (value) copy.setAttribute(name, value);
  }
  for (const child of original.childNodes) copy.append(child.nodeType === 1 ? withStyles(child) : child.cloneNode());
  return copy;
}

function wrapped(words, width, font) {
  const lines = [];
  for (const word of words.split(" ")) {
    const longer = lines.length ? `${lines[lines.length - 1]} ${word}` : word;
    if (lines.length && textWidth(longer, font) <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return words ? lines : [];
}

function figureFile(app, figure) {
  const drawing = figure.querySelector("[data-drawing] > svg");
  const width = Number(drawing.getAttribute("width"));
  const height = Number(drawing.getAttribute("height"));
  const pad = 16;
  const look = getComputedStyle(app.base);
  const ink = plainColour(look.color).colour;
  const titles = wrapped(figure.querySelector("h4").textContent, width, app.readingFont(14));
  const captions = wrapped(figure.querySelector("figcaption").textContent, width, app.readingFont(11));
  const head = 10 + titles.length * 18;
  const total = { width: width + 2 * pad, height: head + height + captions.length * 15 + 2 * pad };
  const file = svg("svg", { xmlns: SVG, width: total.width, height: total.height, viewBox: `0 0 ${total.width} ${total.height}` });
  file.append(svg("rect", { width: total.width, height: total.height, fill: plainColour(app.ground()).colour }));
  const lines = (texts, y, step, values) => texts.forEach((t, i) =>
    file.append(svg("text", { x: pad, y: y + i * step, fill: ink, "font-family": look.fontFamily, ...values }, t)));
  lines(titles, pad + 12, 18, { "font-size": 14, "font-weight": 600 });
  const inner = svg("g", { transform: `translate(${pad} ${pad + head})` });
  for (const child of drawing.children) inner.append(withStyles(child));
  file.append(inner);
  lines(captions, pad + head + height + 14, 15, { "font-size": 11, "fill-opacity": 0.7 });
  return { text: new XMLSerializer().serializeToString(file), ...total };
}

function save(blob, name) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

async function saveFigure(app, figure, kind) {
  const step = app.step();
  const name = ["bastion", app.run, step ? "step-" + step.i : null, figure.dataset.figure].filter(Boolean).join("-").replace(/[^\w.-]+/g, "_");
  const file = figureFile(app, figure);
  const blob = new Blob([file.text], { type: "image/svg+xml" });
  if (kind === "svg") return save(blob, name + ".svg");
  const picture = new Image();
  const address = URL.createObjectURL(blob);
  await new Promise((done, failed) => { picture.onload = done; picture.onerror = failed; picture.src = address; });
  const sheet = Object.assign(document.createElement("canvas"), { width: file.width * 2, height: file.height * 2 });
  sheet.getContext("2d").drawImage(picture, 0, 0, sheet.width, sheet.height);
  URL.revokeObjectURL(address);
  return sheet.toBlob((png) => save(png, name + ".png"), "image/png");
}

function buildDownloads(app) {
  for (const figure of app.base.querySelectorAll("[data-figure]")) {
    const row = el("span", { class: "downloads" });
    for (const kind of ["svg", "png"]) {
      const button = el("button", { type: "button", "data-testid": `download-${figure.dataset.figure}-${kind}`, "aria-label": `Download this figure as ${kind.toUpperCase()}` }, kind.toUpperCase());
      button.addEventListener("click", () => saveFigure(app, figure, kind));
      row.append(button);
    }
    figure.append(row);
  }
}
