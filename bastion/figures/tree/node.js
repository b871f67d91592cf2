// The node panel: what drafter and target thought of the node that is pointed at or pinned.
const NODE_FIELDS = [
  ["depth", "depth", "depth"],
  ["rank", "rank", "rank"],
  ["marginal", "marginal", "marginal"],
  ["path", "path probability", "path probability"],
  ["target", "target", "target probability"],
];

function tokenSpan(text, values = {}) {
  const span = el("span", { class: "mono", ...values });
  for (const part of pieces(text)) span.append(el("span", { class: part.mark ? "mark" : null }, part.text));
  return span;
}

// Built once and then only refilled, so that the panel keeps its height and nothing flickers.
function buildNode(app) {
  const panel = app.part("node");
  const fields = el("dl");
  for (const [field, name, term] of NODE_FIELDS) {
    fields.append(el("dt", { "data-term": term, tabindex: 0 }, name), el("dd", { "data-field": field }));
  }
  const choices = el("ol", { class: "choices", "data-field": "choices" });
  for (let i = 0; i < 5; i += 1) {
    choices.append(el("li", { "data-choice": i }, el("span", { class: "who" }), el("span", { class: "bar" }, el("i")), el("span", { class: "p" })));
  }
  panel.append(
    el("header", {}, el("h4", { class: "token-name", "data-field": "token" }), el("p", { class: "key", "data-field": "status" })),
    fields,
    el("h5", { "data-part": "choices-title" }, "The target\u2019s choice after it"),
    choices,
    el("p", { class: "hint", "data-field": "hint" }),
  );
}

function drawNode(app) {
  const panel = app.part("node");
  const field = (name) => panel.querySelector(`[data-field="${name}"]`);
  const step = app.step();
  panel.classList.toggle("absent", !step || !step.n);
  if (!step || !step.n) {
    panel.removeAttribute("data-node");
    say(field("token"), "No node");
    say(field("status"), "");
    for (const [name] of NODE_FIELDS) say(field(name), NONE);
    drawChoices(field("choices"), step, null);
    say(field("hint"), "");
    return;
  }
  const node = app.shownNode();
  const origin = originOfNode(step, node);
  panel.dataset.node = node;
  field("token").replaceChildren(tokenSpan(step.texts[step.tokens[node]]));
  field("token").setAttribute("title", `token id ${step.ids[node]}`);
  const status = field("status");
  empty(status);
  const mark = svg("svg", { width: 12, height: 12, viewBox: "0 0 12 12", "aria-hidden": "true" }, glyph(origin, 6, 6, 3.6));
  status.append(mark, el("span", { "data-term": NAMES[origin], tabindex: 0 }, NAMES[origin]));
  say(field("depth"), count(step.depths[node]));
  say(field("rank"), missing(step.rank[node]) ? NONE : count(step.rank[node] + 1));
  say(field("marginal"), probability(step.m[node]));
  say(field("path"), probability(step.p[node]));
  const verified = node === 0 || !missing(step.target[node]);
  say(field("target"), verified ? probability(step.target[node]) : node >= step.n && node !== step.bonus ? "not verified" : NONE);
  drawChoices(field("choices"), step, node);
  say(field("hint"), app.pinned === node ? "Pinned. Click it again, or press Escape, to let go." : "Point at a node; a click pins it.");
}

function drawChoices(list, step, node) {
  const known = step && node !== null && step.choices && step.choices[node];
  const rows = [...list.children];
  rows.forEach((row, i) => {
    const who = row.querySelector(".who");
    empty(who);
    const there = known && i < step.choices[node].length;
    row.classList.toggle("none", !there);
    const p = there ? step.choice_p[node][i] : null;
    row.querySelector("i").style.width = there ? `${Math.max(p * 100, 0.5)}%` : "0";
    if (!there) {
      say(row.querySelector(".p"), "");
      if (i === 0) who.append(step && node !== null ? "Not known: not verified." : "");
      row.dataset.origin = "";
      return;
    }
    const text = step.texts[step.choices[node][i]];
    const child = step.parents.findIndex((parent, v) => parent === node && step.tokens[v] === step.choices[node][i]);
    const origin = child < 0 ? "" : originOfNode(step, child);
    row.dataset.origin = origin;
    who.append(tokenSpan(text));
    who.prepend(svg("svg", { width: 10, height: 10, viewBox: "0 0 10 10", "aria-label": origin ? NAMES[origin] : null }, origin ? glyph(origin, 5, 5, 3) : null));
    say(row.querySelector(".p"), probability(p));
  });
}
