// The charts under the tree. Predicted is dashed, measured is solid, everywhere.
function note(app, name, title, caption) {
  say(app.part(name + "-title"), title);
  say(app.part(name + "-caption"), caption);
}
function framed(app, name, x, y, pad) {
  const chart = frame(app.part(name), app.part(name + "-title").textContent, x, y, pad);
  chart.font = app.readingFont(10.5);
  return chart;
}
function blank(app, name, words) {
  const { drawing, height } = canvas(app.part(name), words);
  drawing.append(svg("text", { x: 0, y: height / 2, class: "quiet" }, words));
}

const STOPS = {
  "fixed budget": "fixed budget", price: "the next node was not worth its price", "max nodes": "the most nodes allowed",
  exhausted: "no candidates left", chain: "one path, the most probable", beam: "a beam of fixed width",
};
const why = (step) => STOPS[step.stop] || step.stop;
const nodesAxis = (app) => ({ from: 1, to: Math.max(app.reach, 16), log: true, name: "nodes, root included", term: "budget" });

function drawStopping(app) {
  const step = app.step();
  if (!step || !step.n) {
    note(app, "stopping", "Why did it stop?", "");
    return blank(app, "stopping", step ? "The prefill grows no tree." : "Waiting for the first tree.");
  }
  const n = step.n;
  if (!step.gains || !step.gains.length) {
    note(app, "stopping", n === 1 ? "The root alone was verified" : `${count(n)} nodes: ${why(step)}`, "");
    return blank(app, "stopping", n === 1 ? "Nothing was drafted, so nothing had to stop." : "This method grows without a stop rule.");
  }
  if (step.gains.every(missing)) return drawFixed(app, step, n);
  const next = n - 1;
  const finding = next < step.gains.length && !missing(step.gains[next]);
  note(app, "stopping", `Why it stopped at ${count(n)} ${n === 1 ? "node" : "nodes"}`,
    (finding && step.stop === "price"
      ? `The next node would gain ${significant(step.gains[next])} and cost ${significant(step.prices[next])} token\u00b7ms. `
      : `Not by price: ${why(step)}. `) + "Predicted.");
  const [low, high] = app.sides;
  const chart = framed(app, "stopping", nodesAxis(app), { from: low, to: high, log: true, name: "token\u00b7ms", term: "gain" });
  stopLine(chart, n);
  chart.drawing.append(line(step.prices.map((v, i) => [chart.sx(i + 2), missing(v) ? null : chart.sy(v)]), { class: "series price predicted" }));
  popDots(chart, step, step.gains);
  keyRow(chart, [["glyph rejected", "gain", "gain"], ["price predicted", "price", "price"]]);
}

// A popped node carries the mark it has in the tree; all that look alike are one path.
function popDots(chart, step, values) {
  const paths = { "not-bought": "", rejected: "", accepted: "", bonus: "" };
  values.forEach((value, i) => {
    if (missing(value)) return;
    const origin = originOfNode(step, i + 1);
    const r = origin === "accepted" ? 3 : origin === "bonus" ? 3.8 : 2.2;
    const [x, y] = [chart.sx(i + 2) - r, chart.sy(value)].map((v) => v.toFixed(1));
    paths[origin] += origin === "bonus" ? `M${x} ${y}l${r} ${-r}l${r} ${r}l${-r} ${r}Z` : `M${x} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`;
  });
  for (const [origin, d] of Object.entries(paths)) if (d) chart.drawing.append(svg("path", { d, class: "glyph " + origin }));
}

// A fixed budget has no price; what can be shown is how probable each next node was.
function drawFixed(app, step, n) {
  note(app, "stopping", `Stopped at ${count(n)} nodes: ${why(step)}`,
    "No price was asked. Path probability of each node in the order taken, by the drafter.");
  const chart = framed(app, "stopping", nodesAxis(app), { from: app.leastPath, to: 1, log: true, name: "path probability", term: "path probability" });
  stopLine(chart, n);
  popDots(chart, step, step.p.slice(1, step.gains.length + 1));
  keyRow(chart, [["glyph accepted", "accepted", "accepted"], ["glyph rejected", "rejected", "rejected"], ["glyph not-bought", "not bought", "drafted, not bought"]]);
}

function stopLine(chart, n) {
  const x = (chart.sx(n) + chart.sx(n + 1)) / 2;
  chart.drawing.append(svg("line", { x1: x, x2: x, y1: chart.box.top - 2, y2: chart.box.bottom, class: "here" }));
}

function drawPromise(app) {
  const step = app.step();
  if (!step || !step.speeds || step.speeds.length < 2) {
    note(app, "promise", "Which size promised most?", "");
    return blank(app, "promise", !step ? "Waiting for the first tree." : !step.n ? "The prefill grows no tree."
      : step.speeds ? "One size only: nothing was drafted." : "No latency prediction for this step.");
  }
  const best = step.best_n;
  note(app, "promise", best === step.n ? `${count(step.n)} nodes promised most` : `${count(best)} nodes promised most, ${count(step.n)} were chosen`,
    "Predicted: S(n) over the step time." + (step.hindsight_n ? ` Hindsight, knowing what was accepted: ${count(step.hindsight_n)}.` : ""));
  const chart = framed(app, "promise", nodesAxis(app), { from: 0, to: app.topPromise, name: "tokens/s", term: "predicted speed" });
  const at = (n) => [chart.sx(n), chart.sy(step.speeds[n - 1])];
  chart.drawing.append(line(step.speeds.map((_, i) => at(i + 1)), { class: "series promise predicted" }));
  if (step.hindsight_n && step.hindsight_n <= step.speeds.length) {
    const [x, y] = at(step.hindsight_n);
    chart.drawing.append(svg("path", { d: `M${x - 4.5} ${y + 4}L${x} ${y - 4.5}L${x + 4.5} ${y + 4}Z`, class: "hindsight" }));
  }
  const [bx, by] = at(best);
  chart.drawing.append(svg("circle", { cx: bx, cy: by, r: 5.5, class: "best" }));
  if (step.n <= step.speeds.length) {
    const [cx, cy] = at(step.n);
    chart.drawing.append(svg("circle", { cx, cy, r: 3, class: "chosen" }));
  }
  const group = svg("g", { class: "legend" });
  let x = chart.box.right;
  for (const [kind, name, term] of [["hindsight", "hindsight", "hindsight"], ["best", "best", "predicted speed"], ["chosen", "chosen", "budget"]]) {
    const wide = textWidth(name, chart.font);
    group.append(svg("text", { x: x - wide, y: 9, class: "tick", "data-term": term }, name));
    x -= wide + 9;
    group.append(kind === "hindsight" ? svg("path", { d: `M${x - 4} 9L${x} 1.5L${x + 4} 9Z`, class: kind }) : svg("circle", { cx: x, cy: 5.5, r: kind === "best" ? 4 : 3, class: kind }));
    x -= 16;
  }
  chart.drawing.append(group);
}

const stepsAxis = (app) => ({ from: 1, to: stepEnd(app.last()), name: "step", ticks: [1, ...linearTicks(1, stepEnd(app.last()), 4).filter((t) => t > 1)] });
const decoded = (app) => app.steps.filter((s) => s.kind !== "prefill");

function hereLine(chart, step) {
  if (step.kind === "prefill") return;
  const x = chart.sx(step.i);
  chart.drawing.append(svg("line", { x1: x, x2: x, y1: chart.box.top - 2, y2: chart.box.bottom, class: "here" }));
}

function drawVerify(app) {
  const step = app.step();
  const steps = decoded(app);
  if (!steps.length) {
    note(app, "verify", "Was the price of verifying foreseen?", "");
    return blank(app, "verify", "Waiting for the first step.");
  }
  const foretold = step && step.n && !missing(step.predicted_ms);
  note(app, "verify", step && step.n
    ? foretold ? `Verify took ${milliseconds(step.ms[2])}, ${milliseconds(step.predicted_ms)} predicted` : `Verify took ${milliseconds(step.ms[2])}`
    : "Was the price of verifying foreseen?", "Verify time of each step, measured and predicted.");
  const chart = framed(app, "verify", stepsAxis(app), { from: 0, to: app.topVerify, name: "ms", term: "verify" });
  if (step) hereLine(chart, step);
  chart.drawing.append(line(steps.map((s) => [chart.sx(s.i), missing(s.predicted_ms) ? null : chart.sy(s.predicted_ms)]), { class: "series verify predicted" }));
  chart.drawing.append(line(steps.map((s) => [chart.sx(s.i), chart.sy(Math.min(s.ms[2], app.topVerify))]), { class: "series verify measured" }));
  if (step && step.n) {
    if (foretold) chart.drawing.append(svg("circle", { cx: chart.sx(step.i), cy: chart.sy(step.predicted_ms), r: 3, class: "best" }));
    chart.drawing.append(svg("circle", { cx: chart.sx(step.i), cy: chart.sy(step.ms[2]), r: 3, class: "chosen" }));
  }
  keyRow(chart, [["verify measured", "measured"], ["verify predicted", "predicted"]]);
  app.stepCharts.set("verify", chart);
}

const PARTS = ["draft", "build", "verify", "commit"];
function drawParts(app) {
  const step = app.step();
  if (!step) {
    note(app, "parts", "Where does a step\u2019s time go?", "");
    return blank(app, "parts", "Waiting for the first step.");
  }
  const total = step.ms.reduce((a, b) => a + b, 0);
  const share = step.ms[2] / (total || 1);
  note(app, "parts", step.kind === "prefill" ? `Prefill took ${milliseconds(total)}` : `Step took ${milliseconds(total)}, ${percent(share)} of it verify`,
    "Measured, device synchronised at each border." + (step.predicted_parts && !missing(step.predicted_ms) ? " Predicted: draft, verify, other." : ""));
  const { drawing, width, height } = canvas(app.part("parts"), app.part("parts-title").textContent);
  const top = step.kind === "prefill" ? niceCeiling(total) : app.topStep;
  const left = 0, right = width - 12, bottom = height - 30;
  const sx = (ms) => left + (ms / top) * (right - left);
  drawing.append(svg("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" }));
  for (const t of linearTicks(0, top, 5)) {
    drawing.append(svg("line", { x1: sx(t), x2: sx(t), y1: bottom, y2: bottom + 3, class: "axis" }));
    drawing.append(svg("text", { x: sx(t), y: bottom + 13, class: "tick", "text-anchor": t === 0 ? "start" : "middle" }, tickText(t)));
  }
  drawing.append(svg("text", { x: right, y: height - 3, class: "tick name", "text-anchor": "end", "data-term": "step time" }, "ms"));
  stack(app, drawing, sx, 6, "measured", PARTS.map((part, i) => [part, step.ms[i]]));
  if (step.predicted_parts && !missing(step.predicted_ms)) {
    const [draft, other] = step.predicted_parts;
    stack(app, drawing, sx, 6 + (bottom - 10) / 2, "predicted", [["draft", draft], ["verify", step.predicted_ms], ["other", other]]);
  }
}

// A bar of parts, and under it each part's name and time.
function stack(app, drawing, sx, y, kind, parts) {
  drawing.append(svg("text", { x: 0, y: y + 4, class: "tick name" }, kind));
  let at = 0;
  let x = 0;
  for (const [part, ms] of parts) {
    if (missing(ms)) continue;
    const from = sx(at);
    drawing.append(svg("rect", { x: from, y: y + 9, width: Math.max(sx(at + ms) - from - 1, 0.75), height: 13, class: `part ${part} ${kind}` }));
    at += ms;
    const words = `${part} ${significant(ms, ms < 1 ? 2 : 3)}`;
    drawing.append(svg("rect", { x: x + 0.5, y: y + 28, width: 6, height: 6, class: `part ${part} ${kind} swatch` }));
    drawing.append(svg("text", { x: x + 10, y: y + 35, class: "tick" }, words));
    x += textWidth(words, app.readingFont(10.5)) + 19;
  }
}

function drawSpeed(app) {
  const series = app.series;
  const step = app.step();
  if (!series.length) {
    note(app, "speed", "How fast so far?", "");
    return blank(app, "speed", "Waiting for the first step.");
  }
  const now = app.seriesAt(step);
  const stick = app.yardstick;
  const title = rate(now.speed) + (step.kind === "prefill" ? ` after ${count(now.count)} steps` : " so far") + (stick ? `, ${ratio(now.speed / stick.tokens_per_second)} plain decoding` : "");
  note(app, "speed", title, "Measured, prefill left out." + (stick ? (stick.measured ? " Plain decoding: measured, same prompt." : " Plain decoding: estimated until it is measured.") : ""));
  const chart = framed(app, "speed", stepsAxis(app), { from: 0, to: app.topSpeed, name: "tokens/s" });
  hereLine(chart, step);
  if (stick) {
    const y = chart.sy(stick.tokens_per_second);
    chart.drawing.append(svg("line", { x1: chart.box.left, x2: chart.box.right, y1: y, y2: y, class: "series plain " + (stick.measured ? "measured" : "predicted") }));
    chart.drawing.append(svg("text", { x: chart.box.right, y: y + 12, class: "tick", "text-anchor": "end", "data-term": "plain decoding" },
      `plain ${significant(stick.tokens_per_second)}${stick.measured ? "" : ", estimated"}`));
  }
  chart.drawing.append(line(series.map((s) => [chart.sx(s.i), chart.sy(s.speed)]), { class: "series speed measured" }));
  if (step.kind !== "prefill") chart.drawing.append(svg("circle", { cx: chart.sx(step.i), cy: chart.sy(now.speed), r: 3, class: "chosen" }));
  app.stepCharts.set("speed", chart);
}

function drawAcceptance(app) {
  const step = app.step();
  const series = app.series;
  if (!series.length) {
    note(app, "acceptance", "How many tokens does a step emit?", "");
    return blank(app, "acceptance", "Waiting for the first step.");
  }
  const now = app.seriesAt(step);
  const upto = series.filter((s) => s.i <= now.i);
  const limit = upto.filter((s) => s.limit).length / (upto.length || 1);
  note(app, "acceptance", `tau ${significant(now.tau)} ` + (step.kind === "prefill" ? `over ${count(now.count)} steps` : "so far"),
    "Measured: tokens of each step, and their mean." + (app.drafterDepth ? ` ${percent(limit)} of the steps hit the drafter\u2019s depth limit.` : ""));
  const end = Math.max(app.longest, 4) + 0.5;
  const histogram = 64;
  const chart = framed(app, "acceptance", stepsAxis(app),
    { from: 0.5, to: end, name: "tokens a step", term: "acceptance length", ticks: linearTicks(1, end - 0.5, 3).filter((t) => Number.isInteger(t)) },
    { ...PAD, right: PAD.right + histogram });
  hereLine(chart, step);
  const fade = Math.min(Math.max(90 / series.length, 0.35), 0.8);
  const dots = series.map((s) => `M${(chart.sx(s.i) - 2).toFixed(1)} ${chart.sy(s.length).toFixed(1)}a2 2 0 1 0 4 0a2 2 0 1 0 -4 0`);
  chart.drawing.append(svg("path", { d: dots.join(""), class: "dot length", "fill-opacity": fade }));
  chart.drawing.append(line(series.map((s) => [chart.sx(s.i), chart.sy(s.tau)]), { class: "series tau measured" }));
  if (step.kind !== "prefill") chart.drawing.append(svg("circle", { cx: chart.sx(step.i), cy: chart.sy(now.length), r: 3.5, class: "dot here-dot" }));
  drawHistogram(app, chart, upto, histogram);
  app.stepCharts.set("acceptance", chart);
}

// The margin of the chart beside it shares its vertical axis.
function drawHistogram(app, chart, upto, room) {
  const counts = new Map();
  for (const s of upto) counts.set(s.length, (counts.get(s.length) || 0) + 1);
  const most = Math.max(...counts.values());
  const x = chart.box.right + 14;
  const tall = Math.min(Math.abs(chart.sy(1) - chart.sy(2)) - 2, 11);
  chart.drawing.append(svg("line", { x1: x - 0.5, x2: x - 0.5, y1: chart.box.top, y2: chart.box.bottom, class: "axis" }));
  for (const [length, n] of counts) {
    const wide = Math.max((n / most) * (room - 34), 1);
    const atLimit = app.drafterDepth && length > app.drafterDepth;
    chart.drawing.append(svg("rect", { x, y: chart.sy(length) - tall / 2, width: wide, height: tall, class: atLimit ? "bin limit" : "bin" }));
    if (tall > 6) chart.drawing.append(svg("text", { x: x + wide + 4, y: chart.sy(length) + 3.5, class: "tick" }, count(n)));
  }
  chart.drawing.append(svg("text", { x: chart.width - 2, y: chart.height - 3, class: "tick name", "text-anchor": "end" }, "steps"));
}

function drawCharts(app) {
  for (const draw of [drawStopping, drawPromise, drawVerify, drawParts, drawSpeed, drawAcceptance]) draw(app);
}

function listenCharts(app) {
  for (const name of ["verify", "speed", "acceptance"]) {
    app.part(name).addEventListener("click", (event) => {
      const chart = app.stepCharts.get(name);
      if (!chart) return;
      const x = event.clientX - app.part(name).getBoundingClientRect().left;
      const share = (x - chart.box.left) / (chart.box.right - chart.box.left);
      if (share > 1.02) return;
      const wanted = 1 + share * (stepEnd(app.last()) - 1);
      app.go(Math.round(Math.min(Math.max(wanted, 1), app.steps.length - 1)));
    });
  }
}
