// Moving through the steps: buttons, keys, a strip to drag on, play, follow.
const ICONS = {
  first: "M4 3V13M13 3L7 8L13 13", previous: "M11 3L5 8L11 13", next: "M5 3L11 8L5 13", last: "M12 3V13M3 3L9 8L3 13",
  play: "M5 3L12 8L5 13Z", pause: "M5.5 3V13M10.5 3V13",
};

function icon(name) {
  return svg("svg", { width: 16, height: 16, viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: ICONS[name], class: "icon" }));
}

function buildStepper(app) {
  const holder = app.part("buttons");
  const button = (name, label, act) => {
    const b = el("button", { type: "button", "data-testid": "step-" + name, "aria-label": label, title: label }, icon(name));
    b.addEventListener("click", act);
    holder.append(b);
    return b;
  };
  app.buttons = {
    first: button("first", "First step (Home)", () => app.go(0)),
    previous: button("previous", "Previous step (left arrow)", () => app.go(app.selected - 1)),
    play: button("play", "Play (space)", () => app.play(!app.playing)),
    next: button("next", "Next step (right arrow)", () => app.go(app.selected + 1)),
    last: button("last", "Last step (End)", () => app.go(app.steps.length - 1)),
  };
  app.buttons.follow = el("button", { type: "button", class: "follow", "data-testid": "step-follow", "aria-pressed": "false" }, "Follow");
  app.buttons.follow.addEventListener("click", () => app.followNewest(!app.follow));
  holder.append(app.buttons.follow);
}

function drawStepper(app) {
  const step = app.step();
  const total = app.last();
  say(app.part("step-label"), !step ? "No step yet" : step.kind === "prefill" ? `Prefill, then ${count(total)} ${total === 1 ? "step" : "steps"}` : `Step ${count(step.i)} of ${count(total)}`);
  app.part("summary").replaceChildren(...summary(step));
  say(app.part("tree-title"), !step ? "Tree" : `Tree of step ${count(step.i)} of ${count(total)}`);
  say(app.part("tree-caption"), step && step.n ? "Size: path probability, by the drafter. Accepted and bonus: by the target." : "");
  const b = app.buttons;
  b.first.disabled = b.previous.disabled = app.selected <= 0;
  b.next.disabled = b.last.disabled = app.selected >= app.steps.length - 1;
  b.play.replaceChildren(icon(app.playing ? "pause" : "play"));
  b.play.setAttribute("aria-label", app.playing ? "Pause (space)" : "Play (space)");
  b.play.title = b.play.getAttribute("aria-label");
  b.play.disabled = app.steps.length < 2;
  b.follow.hidden = !app.live;
  b.follow.setAttribute("aria-pressed", String(app.follow));
  b.follow.title = app.follow ? "The newest step is shown as it comes" : "Show the newest step as it comes";
  drawStrip(app);
}

function summary(step) {
  if (!step) return [];
  if (!step.n) return [`${count(step.context)} tokens of prompt`];
  const term = (name, words) => el("span", { "data-term": name }, words);
  const words = [
    term("budget", `${count(step.n)} ${step.n === 1 ? "node" : "nodes"}`),
    term("acceptance length", `${count(step.accepted.length - 1)} accepted + 1 bonus`),
    term("surrogate", `${significant(step.S)} expected`),
    term("context", `context ${count(step.context)}`),
  ];
  return words.flatMap((word, i) => (i ? [" \u00b7 ", word] : [word]));
}

// One bar a step: accepted tokens below, the bonus token on top. Drag to move.
function drawStrip(app) {
  const holder = app.part("strip");
  const { drawing, width, height } = canvas(holder, "Acceptance length of each step");
  drawing.setAttribute("aria-hidden", "true");
  const steps = app.steps;
  const pitch = Math.min(14, (width - 2) / Math.max(steps.length, 1));
  app.pitch = pitch;
  const unit = (height - 8) / Math.max(app.longest, 4);
  const base = height - 3;
  drawing.append(svg("line", { x1: 0, x2: width, y1: base + 0.5, y2: base + 0.5, class: "axis" }));
  const wide = Math.max(pitch - (pitch > 4 ? 1.5 : 0.4), 0.8);
  // One path a kind, however many steps; the selected step's bars are drawn over them.
  const bars = { prefill: "", accepted: "", bonus: "" };
  const chosen = { ...bars };
  steps.forEach((step, k) => {
    const paths = k === app.selected ? chosen : bars;
    const bar = (kind, from, tall) => {
      if (tall > 0) paths[kind] += `M${(1 + k * pitch).toFixed(2)} ${(base - from).toFixed(2)}v${-tall.toFixed(2)}h${wide.toFixed(2)}v${tall.toFixed(2)}Z`;
    };
    if (step.kind === "prefill") return bar("prefill", 0, unit);
    const bonus = step.words.length >= step.accepted.length ? 1 : 0;
    const drafted = (step.words.length - bonus) * unit;
    bar("accepted", 0, drafted);
    if (bonus) bar("bonus", drafted + (drafted ? 0.75 : 0), unit - 0.75);
  });
  for (const [paths, kind] of [[bars, "bars"], [chosen, "bars selected"]]) {
    drawing.append(svg("g", { class: kind }, ...Object.entries(paths).map(([origin, d]) => d && svg("path", { d, class: "bar-" + origin }))));
  }
  if (steps.length) {
    const x = 1 + app.selected * pitch + wide / 2;
    drawing.append(svg("path", { d: `M${x - 3.5} ${height}L${x} ${height - 4}L${x + 3.5} ${height}Z`, class: "pointer" }));
  }
  attributes(holder, { "aria-valuemin": 0, "aria-valuemax": Math.max(steps.length - 1, 0), "aria-valuenow": app.selected, "aria-valuetext": app.part("step-label").textContent });
}

function listenStepper(app) {
  const strip = app.part("strip");
  const move = (event) => {
    const x = event.clientX - strip.getBoundingClientRect().left;
    app.go(Math.min(Math.max(Math.floor((x - 1) / app.pitch), 0), app.steps.length - 1));
  };
  strip.addEventListener("pointerdown", (event) => {
    strip.setPointerCapture(event.pointerId);
    app.dragging = true;
    move(event);
  });
  strip.addEventListener("pointermove", (event) => app.dragging && move(event));
  for (const name of ["pointerup", "pointercancel"]) strip.addEventListener(name, () => { app.dragging = false; });
  document.addEventListener("keydown", (event) => pressed(app, event), { signal: app.ended.signal });
}

const TAKES_ARROWS = "input, textarea, select, [contenteditable], [role=slider], [role=listbox], [role=combobox], [role=tablist], [role=radiogroup], [role=menu], [role=grid]";

// Arrows work unless the control that has the focus takes them; Home, End and space only inside.
function pressed(app, event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  const target = event.composedPath()[0];
  const inside = event.composedPath().includes(app.base);
  const free = target.closest && !target.closest(TAKES_ARROWS);
  if (!inside && !free) return;
  const moves = { ArrowLeft: () => app.go(app.selected - 1), ArrowRight: () => app.go(app.selected + 1) };
  if (inside) {
    moves.Home = () => app.go(0);
    moves.End = () => app.go(app.steps.length - 1);
    moves.Escape = () => app.pin(null);
    if (!target.closest("button")) moves[" "] = () => app.play(!app.playing);
  }
  if (!moves[event.key]) return;
  moves[event.key]();
  event.preventDefault();
}
