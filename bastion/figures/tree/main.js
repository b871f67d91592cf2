// One run in one component: what it holds, what is selected, and what it tells the page.
const REPORT_AFTER = 400; // ms since the last move
const ACKNOWLEDGE = 16;   // steps between two reports of what is held
const PACE = 650;         // ms a step when playing
const REMEMBER_FOR = 10000; // ms between the end of a component and its return
const REMEMBERED = (globalThis[Symbol.for("bastion.tree")] ??= { app: null }); // outlives this module's reload

class App {
  constructor(root) {
    this.root = root;
    this.base = root.querySelector(".bs");
    this.parts = new Map([...root.querySelectorAll("[data-part]")].map((node) => [node.dataset.part, node]));
    this.ended = new AbortController();
    this.clear(null);
    buildNode(this);
    buildStepper(this);
    buildDownloads(this);
    buildKey(this);
    for (const listen of [listenText, listenTree, listenStepper, listenCharts, listenTerms]) listen(this);
    this.measureHolders();
    // Widths measured before a font of the theme had come are those of its stand-in.
    document.fonts.addEventListener("loadingdone", () => { widths.clear(); this.measureHolders(); this.draw(); }, { signal: this.ended.signal });
    let width = 0;
    this.resizes = new ResizeObserver(() => {
      if (this.base.clientWidth === width) return;
      width = this.base.clientWidth;
      this.measureHolders();
      this.draw();
    });
    this.resizes.observe(this.base);
  }

  clear(run) {
    Object.assign(this, {
      run, steps: [], spans: [], underlined: [], written: 0, selected: -1, follow: true, live: false, playing: null,
      pinned: null, hovered: null, looked: null, plan: null, held: -1, wanted: null, note: "", yardstick: null, drafterDepth: null,
      series: [], stepCharts: new Map(), reach: 0, longest: 0, sides: [Infinity, 0], leastPath: 1,
      topPromise: 0, topVerify: 0, topStep: 0, topSpeed: 0,
    });
    empty(this.part("text"));
  }

  part(name) { return this.parts.get(name); }
  step() { return this.steps[this.selected] || null; }
  last() { return this.steps.length ? this.steps[this.steps.length - 1].i : 0; }
  codeFont(size) { return `${size}px ${this.fonts.code}`; }
  readingFont(size) { return `${size}px ${this.fonts.reading}`; }
  ground() { return getComputedStyle(this.part("tip")).backgroundColor; }

  receive({ data, setStateValue }) {
    this.setStateValue = setStateValue;
    if (!data) return;
    const before = this.shown();
    if (data.run !== this.run) {
      this.clear(data.run);
      this.wanted = data.select;
      this.follow = data.live && missing(data.select);
      this.held = data.start;
      this.remember();
    }
    const ended = this.live && !data.live;
    this.live = data.live;
    this.note = data.note;
    this.yardstick = data.yardstick;
    this.drafterDepth = data.drafter_depth;
    this.base.style.setProperty("--method", data.colour === "#000000" ? "var(--ink)" : data.colour || "var(--accepted)");
    for (const step of data.steps.slice(Math.max(this.steps.length - data.start, 0))) {
      if (data.start > this.steps.length) break;
      this.steps.push(step);
      this.measure(step);
    }
    this.topSpeed = niceCeiling(Math.max(this.topSpeed, this.yardstick ? this.yardstick.tokens_per_second * 1.15 : 0));
    this.acknowledge(data.start > this.steps.length);
    this.chooseStep(ended);
    if (this.shown() !== before) this.draw(); // most polls of a run whose yardstick is measured bring nothing new
  }

  // All that a drawing depends on and an update can change.
  shown() {
    return JSON.stringify([this.run, this.steps.length, this.selected, this.live, this.follow, this.steps.length ? "" : this.note, this.yardstick, this.drafterDepth]);
  }

  // A page under load may take the component away and bring it back: it goes on where it was.
  remember() {
    const kept = REMEMBERED.app;
    REMEMBERED.app = null;
    if (!kept || kept.run !== this.run || performance.now() - kept.at > REMEMBER_FOR) return;
    Object.assign(this, { live: kept.live, follow: kept.follow, wanted: null });
    for (const step of kept.steps) {
      this.steps.push(step);
      this.measure(step);
    }
    Object.assign(this, { selected: kept.selected, pinned: kept.pinned });
  }

  chooseStep(ended) {
    const count = this.steps.length;
    if (!missing(this.wanted)) {
      const at = this.steps.findIndex((s) => s.i === this.wanted);
      if (at < 0 && this.live) { this.selected = count - 1; return; }
      this.selected = at < 0 ? count - 1 : at;
      this.wanted = null;
    } else if (this.follow && (this.live || ended)) {
      if (this.selected !== count - 1) this.release();
      this.selected = count - 1;
    } else if (this.selected < 0) {
      this.selected = Math.min(1, count - 1);
    }
  }

  // Axes fit every step seen so far, so they stay where they are while stepping.
  measure(step) {
    if (step.kind === "prefill") return;
    const grow = (name, value) => { this[name] = Math.max(this[name], value); };
    grow("longest", step.words.length);
    grow("reach", Math.max(step.n, (step.gains || []).length + 1));
    grow("topVerify", niceCeiling(Math.max(step.ms[2], step.predicted_ms || 0)));
    const parts = step.predicted_parts || [];
    grow("topStep", niceCeiling(Math.max(step.ms.reduce((a, b) => a + b, 0), (step.predicted_ms || 0) + (parts[0] || 0) + (parts[1] || 0))));
    grow("topPromise", niceCeiling(Math.max(0, ...(step.speeds || []))));
    const sides = [...(step.gains || []), ...(step.prices || [])].filter((v) => v > 0);
    if (sides.length) {
      const high = 10 ** Math.ceil(Math.log10(Math.max(...sides)) - 1e-9);
      this.sides[1] = Math.max(this.sides[1], high);
      this.sides[0] = Math.max(Math.min(this.sides[0], 10 ** Math.floor(Math.log10(Math.min(...sides)) + 1e-9)), this.sides[1] / 1e5);
    }
    const least = Math.min(1, ...step.p.filter((p) => p > 0));
    this.leastPath = Math.min(this.leastPath, Math.max(10 ** Math.floor(Math.log10(least)), 1e-5));
    const before = this.series[this.series.length - 1] || { tokens: 0, ms: 0, count: 0 };
    const tokens = before.tokens + step.words.length;
    const ms = before.ms + step.ms.reduce((a, b) => a + b, 0);
    const count = before.count + 1;
    this.series.push({ i: step.i, tokens, ms, count, length: step.words.length, limit: step.limit, tau: tokens / count, speed: (1000 * tokens) / ms });
    if (this.series.length > 2 || !this.topSpeed) grow("topSpeed", niceCeiling((1100 * tokens) / ms));
  }

  // The prefill comes before all numbers: with it, those of all steps held are shown.
  seriesAt(step) {
    let found = this.series[step.kind === "prefill" ? this.series.length - 1 : 0];
    for (const s of this.series) if (s.i <= step.i) found = s;
    return found;
  }

  acknowledge(gap) {
    if (!gap && !(this.live && this.steps.length - this.held >= ACKNOWLEDGE)) return;
    if (gap && this.held === this.steps.length) return;
    this.held = this.steps.length;
    this.setStateValue("have", { run: this.run, have: this.held });
  }

  go(to) {
    const at = Math.min(Math.max(to, 0), this.steps.length - 1);
    if (at < 0) return;
    if (this.live) this.follow = at === this.steps.length - 1;
    this.wanted = null;
    if (at === this.selected) { this.draw(); return; }
    this.selected = at;
    this.release();
    this.draw();
    this.report();
  }

  report() {
    clearTimeout(this.reporting);
    this.reporting = setTimeout(() => {
      const step = this.step();
      if (step) this.setStateValue("step", { run: this.run, step: step.i });
    }, REPORT_AFTER);
  }

  followNewest(on) {
    this.follow = on;
    if (on) this.go(this.steps.length - 1);
    else this.draw();
  }

  play(on) {
    clearInterval(this.playing);
    this.playing = null;
    if (on && this.steps.length > 1) {
      if (this.selected >= this.steps.length - 1 && !this.live) this.go(0);
      this.playing = setInterval(() => {
        if (this.selected < this.steps.length - 1) this.go(this.selected + 1);
        else if (!this.live) this.play(false);
      }, PACE);
    }
    this.draw();
  }

  release() { this.pinned = this.hovered = this.looked = null; }

  shownNode() {
    if (this.hovered !== null) return this.hovered;
    if (this.pinned !== null) return this.pinned;
    if (this.looked !== null) return this.looked;
    const step = this.step();
    return step && step.n ? step.accepted[step.accepted.length - 1] : 0;
  }

  hover(node) {
    if (node === this.hovered) return;
    this.hovered = node;
    this.refresh();
  }

  pin(node) {
    this.pinned = node === this.pinned ? null : node;
    this.looked = null;
    this.refresh();
  }

  look(node) {
    this.looked = node;
    this.refresh();
  }

  refresh() {
    drawNode(this);
    markNode(this);
  }

  measureHolders() {
    this.fonts = { code: getComputedStyle(this.part("tree")).fontFamily, reading: getComputedStyle(this.base).fontFamily };
    for (const holder of [...this.root.querySelectorAll("[data-drawing]"), this.part("strip")]) { sizes.delete(holder); sizeOf(holder); }
    this.lineHeight = parseFloat(getComputedStyle(this.part("text")).lineHeight);
  }

  draw() {
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = 0;
      const focused = this.root.activeElement;
      const node = focused && focused.classList.contains("node");
      drawText(this);
      drawStepper(this);
      drawTree(this);
      drawNode(this);
      drawCharts(this);
      if (node) {
        const again = this.part("tree").querySelector('.node[tabindex="0"]');
        if (again) again.focus();
      }
      this.base.dataset.step = this.step() ? this.step().i : "";
    });
  }

  end() {
    if (this.steps.length) {
      const { run, steps, selected, follow, live, pinned } = this;
      REMEMBERED.app = { run, steps, selected, follow, live, pinned, at: performance.now() };
    }
    this.ended.abort();
    this.resizes.disconnect();
    clearInterval(this.playing);
    clearTimeout(this.reporting);
    cancelAnimationFrame(this.drawing);
  }
}

function buildKey(app) {
  for (const [origin, name] of [["accepted", "accepted"], ["bonus", "bonus token"], ["prefill", "prefill"]]) {
    app.part("text-key").append(el("span", { class: "token " + origin, "data-term": name, tabindex: 0 }, el("span", { class: "word" }, name)), " ");
  }
}

const APPS = new WeakMap();
const PRISTINE = new WeakMap();

// The page may end a component and start it again on the same elements: begin from untouched ones.
function fresh(root) {
  const base = root.querySelector(".bs");
  if (PRISTINE.has(root)) base.replaceWith(PRISTINE.get(root).cloneNode(true));
  else PRISTINE.set(root, base.cloneNode(true));
  return root;
}

// Called anew with every change of data, on the same parent element.
export default function (component) {
  const root = component.parentElement;
  let app = APPS.get(root);
  if (app && !app.base.isConnected) { app.end(); app = null; }
  if (!app) APPS.set(root, (app = new App(fresh(root))));
  app.receive(component);
  return () => { app.end(); APPS.delete(root); };
}
