// The tree of a lane's newest step. A lane keeps one scale over all its steps, and its root never moves.
const LANE_ROW = 22;
const LANE_COLUMN = 72;
const LANE_LABEL = 84; // the longest label, px

// What the trees of a lane need: depths, and rows over and under the root.
function reachOf(lane) {
  const reach = { depth: 2, over: 1, under: 1 };
  for (const step of lane.data.steps) {
    if (!step.n) continue;
    const top = Math.min(...step.y);
    reach.depth = Math.max(reach.depth, ...step.depths);
    reach.over = Math.max(reach.over, step.y[0] - top);
    reach.under = Math.max(reach.under, Math.max(...step.y) - step.y[0]);
  }
  return reach;
}

function placeInLane(step, width, height, reach) {
  const left = 14, right = 16, top = 22, bottom = 18; // over and under the outermost rows a label has room
  const column = Math.min((width - left - right) / reach.depth, LANE_COLUMN);
  const row = Math.min((height - top - bottom) / (reach.over + reach.under), LANE_ROW);
  const spare = Math.max(height - top - bottom - row * (reach.over + reach.under), 0) / 2;
  const root = top + spare + reach.over * row;
  const nodes = step.y.map((y, i) => ({
    i, x: left + step.depths[i] * column, y: root + (y - step.y[0]) * row,
    origin: originOfNode(step, i), p: step.p[i] === null ? 0 : step.p[i],
  }));
  sizeNodes(nodes);
  return { nodes, column, row, left, top, bottom };
}

function drawLaneTree(lane, at) {
  const step = at >= 0 ? lane.data.steps[at] : null;
  const { drawing, width, height } = canvas(lane.tree, "Tree of the newest step");
  lane.tree.dataset.step = step ? step.i : "";
  if (!step || !step.n) {
    say(lane.caption, step ? `Prefill: ${count(step.context)} tokens of prompt in ${milliseconds(lane.data.prefill)}` : "Reading the prompt");
    return;
  }
  const accepted = step.accepted.length - 1;
  say(lane.caption, `Step ${count(step.i)}: ${count(step.n)} ${step.n === 1 ? "node" : "nodes"}, ${count(accepted)} accepted, ${milliseconds(step.ms.reduce((a, b) => a + b, 0))}`);
  const plan = placeInLane(step, width, height, lane.reach);
  labelPath(step, plan, lane.race.codeFont, width, height, LANE_LABEL);
  drawEdges(drawing, plan, step);
  const group = svg("g", { class: "nodes" });
  const labels = svg("g", { class: "labels" }); // over all nodes, whose edges a label may cross
  for (const node of plan.nodes) {
    group.append(svg("g", { class: "node " + node.origin, "data-testid": "race-node", "data-origin": node.origin },
      svg("title", {}, `${plain(step.texts[step.tokens[node.i]])}, ${NAMES[node.origin]}`),
      glyph(node.origin, node.x, node.y, node.r)));
    if (node.label) labels.append(attributes(labelText(node.label, node.label.parts, node.origin), { "data-testid": "race-label", "data-node": node.i }));
  }
  drawing.append(group, labels);
}
