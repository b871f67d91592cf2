// Where nodes and labels of one step go, in pixels. Rows come from the payload, columns are depths.
const BESIDE = 66;        // narrower columns have no room beside a node: its label stands over it
const LABELS_UNDER = 256; // from here on only the accepted path, the bonus and the hovered node

function originOfNode(step, node) {
  if (node === step.bonus) return "bonus";
  if (node === 0) return "anchor";
  if (node >= step.n) return "not-bought";
  return step.accepted.includes(node) ? "accepted" : "rejected";
}

function placeNodes(step, width, height) {
  const columns = Math.max(4, ...step.depths);
  const left = 16, top = 30, bottom = 42;
  const roomy = (width - left - 78) / columns; // 78: a label beside the last column
  const column = Math.min(roomy < BESIDE ? (width - left - 40) / columns : roomy, 132);
  const rows = Math.max(...step.y);
  const row = Math.min((height - top - bottom) / Math.max(rows, 1), 27);
  const middle = top + (height - top - bottom) / 2;
  const nodes = step.y.map((y, i) => ({
    i, x: left + step.depths[i] * column, y: middle + (y - rows / 2) * row,
    origin: originOfNode(step, i), p: step.p[i] === null ? 0 : step.p[i],
  }));
  sizeNodes(nodes);
  return { nodes, column, row, left, top, bottom };
}

const FULL = 8; // radius at path probability 1; the area goes with the probability
const LEAST = { bonus: 3.4, accepted: 2.4, anchor: 2.4, rejected: 1.7, "not-bought": 1.6 };

// Where two neighbours of a column would touch, both give way by the same factor; what the target
// chose gives way last.
function sizeNodes(nodes) {
  const columns = new Map();
  for (const node of nodes) {
    node.r = Math.max(FULL * Math.sqrt(node.p), LEAST[node.origin]);
    if (!columns.has(node.x)) columns.set(node.x, []);
    columns.get(node.x).push(node);
  }
  for (const column of columns.values()) {
    column.sort((a, b) => a.y - b.y);
    const factor = column.map(() => 1);
    for (let i = 1; i < column.length; i += 1) {
      const [a, b] = [column[i - 1], column[i]];
      const apart = Math.max(b.y - a.y - 1.5, 0.5);
      const kept = (v) => v.origin === "accepted" || v.origin === "anchor" || v.origin === "bonus";
      const share = (own, other) => (kept(own) ? Math.max(apart - Math.min(other.r, LEAST.rejected), 1) / own.r
        : kept(other) ? Math.max(apart - other.r, 1) / own.r : apart / (own.r + other.r));
      factor[i - 1] = Math.min(factor[i - 1], share(a, b));
      factor[i] = Math.min(factor[i], share(b, a));
    }
    column.forEach((node, i) => { node.r = Math.max(node.r * factor[i], Math.min(node.r, LEAST[node.origin])); });
  }
}

// Labels stand to the right of their node and edges leave from the label's end, so no edge crosses
// a label of its own node. Most important first; one that would touch another is left out.
function placeLabels(step, plan, font, width) {
  const { nodes, column } = plan;
  const few = step.n < LABELS_UNDER;
  const parents = new Set(step.parents.slice(1));
  const weight = (v) => (v.origin === "bonus" || v.origin === "accepted" || v.origin === "anchor" ? 2 : v.p);
  const wanted = nodes.filter((v) => (few ? v.origin !== "not-bought" : weight(v) === 2)).sort((a, b) => weight(b) - weight(a));
  const taken = nodes.map((v) => ({ left: v.x - v.r, right: v.x + v.r, top: v.y - v.r, bottom: v.y + v.r, of: v.i }));
  const above = column < BESIDE;
  for (const node of wanted) {
    const parts = pieces(step.texts[step.tokens[node.i]]);
    const start = above ? node.x - node.r : node.x + node.r + 4;
    const limit = above ? column - 4 : parents.has(node.i) ? column - node.r - 4 - 24 : width - start - 4;
    const label = fitted(parts, Math.min(limit, 132), font);
    if (!label) continue;
    const y = above ? node.y - node.r - 10 : node.y;
    const box = { left: start - 2, right: start + label.width + 2, top: y - 6.5, bottom: y + 6.5, of: node.i };
    if (taken.some((t) => t.of !== node.i && t.left < box.right && t.right > box.left && t.top < box.bottom && t.bottom > box.top)) continue;
    taken.push(box);
    node.label = { ...label, x: start, y };
    node.out = above ? null : box.right;
  }
}

// Labels of the accepted path and the bonus alone, where columns are too narrow for one beside its node: over it,
// else under it, else a little further off, first the bonus, then along the path. What would touch a label or another node of the path is left
// out; nodes that were rejected may pass under a label, whose halo keeps it legible.
function labelPath(step, plan, font, width, height, longest) {
  const rank = { bonus: -1, anchor: Infinity };
  const path = plan.nodes.filter((v) => v.origin === "bonus" || v.origin === "accepted" || v.origin === "anchor")
    .sort((a, b) => (rank[a.origin] || step.depths[a.i]) - (rank[b.origin] || step.depths[b.i]));
  const around = (v) => ({ left: v.x - v.r, right: v.x + v.r, top: v.y - v.r, bottom: v.y + v.r, of: v.i });
  const taken = path.map(around);
  const others = plan.nodes.filter((v) => !path.includes(v)).map(around);
  const touches = (box, t) => t.of !== box.of && t.left < box.right && t.right > box.left && t.top < box.bottom && t.bottom > box.top;
  for (const node of path) {
    const label = fitted(pieces(step.texts[step.tokens[node.i]]), longest, font);
    if (!label || !label.width) continue;
    const start = Math.min(Math.max(node.x - label.width / 2, 2), width - label.width - 2);
    const places = [9, 14].flatMap((away) => [node.y - node.r - away, node.y + node.r + away]).map((y) => ({
      y, left: start - 2, right: start + label.width + 2, top: y - 6.5, bottom: y + 6.5, of: node.i,
    })).filter((box) => box.top >= 0 && box.bottom <= height && !taken.some((t) => touches(box, t)));
    const box = places.find((place) => !others.some((t) => touches(place, t))) || places[0];
    if (!box) continue;
    taken.push(box);
    node.label = { ...label, x: start, y: box.y };
  }
}

function fitted(parts, room, font) {
  const letters = parts.reduce((sum, p) => sum + [...p.text].length, 0);
  for (let n = letters; n >= Math.min(3, letters); n -= 1) {
    const shown = shortened(parts, n);
    const width = textWidth(shown.map((p) => p.text).join(""), font);
    if (width <= room) return { parts: shown, width };
  }
  return null;
}

function edgePath(parent, child) {
  const from = parent.out || parent.x + parent.r + 1;
  const to = child.x - (child.origin === "bonus" ? child.r * 1.25 : child.r) - 1;
  const bend = from + (to - from) * 0.55;
  return `M${from.toFixed(1)} ${parent.y.toFixed(1)}C${bend.toFixed(1)} ${parent.y.toFixed(1)} ${bend.toFixed(1)} ${child.y.toFixed(1)} ${to.toFixed(1)} ${child.y.toFixed(1)}`;
}
