// Downloads of the plotly chart that stands in the same keyed container, and a link that leads back to it.
const SVG = "http://www.w3.org/2000/svg";

// The chart's place on the page: what a container with the key "chart-NAME" is rendered as.
function frameOf(root) {
  const host = root.getRootNode().host || root;
  return host.closest(`[class*="st-key-chart-"]`);
}

// Plotly stacks several drawings of one size, text and hover layers apart: one file holds them all.
function drawingOf(frame) {
  const layers = [...frame.querySelectorAll(".js-plotly-plot svg.main-svg")];
  if (!layers.length) return null;
  const width = layers[0].clientWidth;
  const height = layers[0].clientHeight;
  const file = document.createElementNS(SVG, "svg");
  for (const [name, value] of [["xmlns", SVG], ["width", width], ["height", height], ["viewBox", `0 0 ${width} ${height}`]]) file.setAttribute(name, value);
  for (const layer of layers) {
    const group = document.createElementNS(SVG, "g");
    const ground = layer.style.background || layer.style.backgroundColor;
    if (ground && ground !== "transparent" && !file.children.length) {
      const sheet = document.createElementNS(SVG, "rect");
      for (const [name, value] of [["width", width], ["height", height], ["fill", ground]]) sheet.setAttribute(name, value);
      file.append(sheet);
    }
    for (const child of layer.children) if (!child.matches(".hoverlayer, .draglayer")) group.append(child.cloneNode(true));
    file.append(group);
  }
  return { text: new XMLSerializer().serializeToString(file), width, height };
}

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

async function download(root, name, kind) {
  const drawing = drawingOf(frameOf(root));
  if (!drawing) return;
  const blob = new Blob([drawing.text], { type: "image/svg+xml" });
  if (kind === "svg") return save(blob, `bastion-${name}.svg`);
  const picture = new Image();
  const address = URL.createObjectURL(blob);
  await new Promise((done, failed) => { picture.onload = done; picture.onerror = failed; picture.src = address; });
  const sheet = Object.assign(document.createElement("canvas"), { width: drawing.width * 2, height: drawing.height * 2 });
  sheet.getContext("2d").drawImage(picture, 0, 0, sheet.width, sheet.height);
  URL.revokeObjectURL(address);
  return sheet.toBlob((png) => save(png, `bastion-${name}.png`), "image/png");
}

function addressOf(name) {
  const here = new URL(location.href);
  here.hash = name;
  return here.href;
}

export default function ({ parentElement, data }) {
  const root = parentElement.querySelector(".tools");
  const name = data.name;
  const frame = frameOf(root);
  const act = async (event) => {
    const kind = event.target.dataset.kind;
    if (!kind) return;
    if (kind !== "link") return download(root, name, kind);
    // The page's address holds everything that was chosen, so it is read at the click.
    event.target.href = addressOf(name);
    if (!navigator.clipboard || event.metaKey || event.ctrlKey) return;
    event.preventDefault();
    history.replaceState(history.state, "", event.target.href);
    await navigator.clipboard.writeText(event.target.href).catch(() => {});
    event.target.textContent = "Copied";
    setTimeout(() => { event.target.textContent = "Link"; }, 1500);
  };
  root.addEventListener("click", act);
  for (const [kind, words] of [["svg", "Download this chart as SVG"], ["png", "Download this chart as PNG"], ["link", "Copy a link to this chart, with everything chosen on this page"]]) {
    const part = root.querySelector(`[data-kind=${kind}]`);
    part.title = words;
    part.setAttribute("aria-label", words);
    part.dataset.testid = `chart-${kind}-${name}`;
  }
  if (frame && decodeURIComponent(location.hash.slice(1)) === name) frame.scrollIntoView({ block: "start" });
  return () => root.removeEventListener("click", act);
}
