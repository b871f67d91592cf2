// The tree of the selected step, left to right.
const NAMES = {
  anchor: "root", accepted: "accepted", bonus: "bonus token", rejected: "rejected", "not-bought": "drafted, not bought",
};

function drawTree(app) {
  const step = app.step();
  const { drawing, width, height } = canvas(app.part("tree"), "Tree of the selected step");
  app.plan = null;
  if (!step || !step.n) {
    drawing.append(svg("text", { x: 16, y: height / 2, class: "quiet" }, step
      ? `The prompt in one pass: ${count(step.context)} tokens, ${milliseconds(step.ms.reduce((a, b) => a + b, 0))}. No tree is drafted here.`
      : app.note || "The first tree appears as soon as its step is done."));
    return;
  }
  const plan = placeNodes(step, width, height);
  placeLabels(step, plan, app.codeFont(11), width);
  app.plan = plan;
  drawDepths(drawing, plan, step, width);
  drawEdges(drawing, plan, step);
  drawing.append(svg("g", { class: "over edges-over" }));
  drawNodes(app, drawing, plan, step);
  drawing.append(svg("g", { class: "over nodes-over" }));
  drawing.append(legend(width, height, step));
  markNode(app);
}

function drawDepths(drawing, plan, step, width) {
  const deepest = Math.max(...step.depths);
  for (let d = 0; d <= deepest; d += 1) {
    const x = plan.left + d * plan.column;
    if (x < width - 8) {
      drawing.append(svg("text", { x: d ? x : x - 5, y: 12, class: "tick", "text-anchor": d ? "middle" : "start", "data-term": d ? null : "depth" },
        d ? String(d) : "depth 0"));
    }
  }
}

function drawEdges(drawing, plan, step) {
  const group = svg("g", { class: "edges" });
  const order = { "not-bought": 0, rejected: 1, bonus: 2, accepted: 3 };
  const children = plan.nodes.slice(1).sort((a, b) => order[a.origin] - order[b.origin]);
  for (const child of children) {
    group.append(svg("path", { d: edgePath(plan.nodes[step.parents[child.i]], child), class: "edge " + child.origin }));
  }
  drawing.append(group);
}

function labelText(at, parts, kind) {
  const text = svg("text", { x: at.x, y: at.y + 3.8, class: "label " + kind });
  const letters = parts.some((part) => !part.mark);
  for (const part of parts) text.append(svg("tspan", { class: part.mark && letters ? "mark" : null }, part.text));
  return text;
}

function drawNodes(app, drawing, plan, step) {
  const group = svg("g", { class: "nodes" });
  for (const node of plan.nodes) {
    const text = step.texts[step.tokens[node.i]];
    group.append(svg("g", {
      class: "node " + node.origin, tabindex: node.i === app.shownNode() ? 0 : -1, role: "button",
      "data-testid": "tree-node", "data-node": node.i, "data-origin": node.origin,
      "aria-label": `${plain(text)}, ${NAMES[node.origin]}, depth ${step.depths[node.i]}, path probability ${probability(step.p[node.i])}`,
    }, glyph(node.origin, node.x, node.y, node.r),
    node.label ? labelText(node.label, node.label.parts, node.origin) : null));
  }
  drawing.append(group);
}

function legend(width, height, step) {
  const group = svg("g", { class: "legend" });
  const items = [["anchor", "root"], ["accepted", "accepted"], ["bonus", "bonus token"], ["rejected", "rejected"]];
  if (step.tokens.length - (step.bonus >= step.n ? 1 : 0) > step.n) items.push(["not-bought", "drafted, not bought"]);
  let x = 16;
  const y = height - 9;
  for (const [origin, name] of items) {
    group.append(glyph(origin, x + 3, y - 3.5, origin === "rejected" || origin === "not-bought" ? 3 : 4));
    group.append(svg("text", { x: x + 12, y, class: "tick", "data-term": name }, name));
    x += 26 + name.length * 5.9;
  }
  if (x + 240 < width) {
    group.append(svg("text", { x, y, class: "tick", "data-term": "path probability" }, "path probability"));
    x += 100;
    for (const p of [1, 0.1, 0.01]) {
      const r = FULL * Math.sqrt(p);
      group.append(svg("circle", { cx: x, cy: y - 3.5, r, class: "scale" }));
      group.append(svg("text", { x: x + r + 4, y, class: "tick" }, String(p)));
      x += 2 * r + 16 + String(p).length * 6;
    }
  }
  return group;
}

// The path to the node in question, its ring and, when it has none, its label.
function markNode(app) {
  const holder = app.part("tree");
  const edges = holder.querySelector(".edges-over");
  const over = holder.querySelector(".nodes-over");
  if (!edges || !app.plan) return;
  empty(edges);
  empty(over);
  const step = app.step();
  const node = app.plan.nodes[app.shownNode()];
  for (const old of holder.querySelectorAll('.node[tabindex="0"]')) old.setAttribute("tabindex", "-1");
  const element = holder.querySelector(`.node[data-node="${node.i}"]`);
  if (element) element.setAttribute("tabindex", "0");
  const pinned = app.pinned === node.i;
  holder.classList.toggle("pinned", pinned);
  for (const at of new Set([app.pinned, node.i])) {
    const place = at === null ? null : app.plan.nodes[at];
    if (place) over.append(svg("circle", { cx: place.x, cy: place.y, r: place.r + 3.5, class: at === app.pinned ? "ring pinned" : "ring" }));
  }
  if (app.hovered === null && !pinned) return;
  for (let at = node.i; at > 0; at = step.parents[at]) {
    if (app.plan.nodes[at].origin === "accepted") break; // the accepted path is seen as it is
    edges.append(svg("path", { d: edgePath(app.plan.nodes[step.parents[at]], app.plan.nodes[at]), class: "edge traced" }));
  }
  if (node.label) return;
  const parts = shortened(pieces(step.texts[step.tokens[node.i]]), 24);
  const wide = textWidth(parts.map((p) => p.text).join(""), app.codeFont(11));
  const width = Number(holder.firstElementChild.getAttribute("width"));
  const right = node.x + node.r + 6;
  const x = right + wide > width - 4 ? node.x - node.r - 6 - wide : right;
  over.append(labelText({ x, y: node.y }, parts, "raised"));
}

function listenTree(app) {
  const holder = app.part("tree");
  const nearest = (event) => {
    if (!app.plan) return null;
    const frame = holder.getBoundingClientRect();
    const x = event.clientX - frame.left;
    const y = event.clientY - frame.top;
    let best = null;
    let least = 15;
    for (const node of app.plan.nodes) {
      const beside = node.label && x > node.x && x < node.label.x + node.label.width && Math.abs(y - node.label.y) < 7;
      const away = beside ? 0 : Math.hypot(node.x - x, node.y - y) - node.r;
      if (away < least) { least = away; best = node.i; }
    }
    return best;
  };
  holder.addEventListener("pointermove", (event) => app.hover(nearest(event)));
  holder.addEventListener("pointerleave", () => app.hover(null));
  holder.addEventListener("click", (event) => app.pin(nearest(event)));
  holder.addEventListener("focusin", (event) => {
    const node = event.target.closest && event.target.closest(".node");
    if (node && event.target.matches(":focus-visible")) app.hover(Number(node.dataset.node));
  });
  holder.addEventListener("focusout", () => app.hover(null));
  holder.addEventListener("keydown", (event) => {
    const node = event.target.closest && event.target.closest(".node");
    if (!node || !app.plan) return;
    const at = Number(node.dataset.node);
    if (event.key === "Enter" || event.key === " ") app.pin(at);
    else if (event.key === "Escape") app.pin(null);
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") focusNext(app, at, event.key === "ArrowDown" ? 1 : -1);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
}

// Up and down walk the nodes as they are read: along a path, then the next branch.
function focusNext(app, at, by) {
  const step = app.step();
  const below = step.parents.map(() => []);
  for (let i = 1; i < step.parents.length; i += 1) below[step.parents[i]].push(i);
  const order = [];
  const stack = [0];
  while (stack.length) {
    const node = stack.pop();
    order.push(node);
    stack.push(...below[node].reverse());
  }
  const next = order[Math.min(Math.max(order.indexOf(at) + by, 0), order.length - 1)];
  const element = app.part("tree").querySelector(`.node[data-node="${next}"]`);
  if (element) element.focus();
}
