// The race: one clock, its lanes, and the order in which they finish. All times are measured ms.
const LANE_WIDTH = 224;       // the least a lane is given before lanes wrap
const SLOW_FRAME = 500;       // ms between paints where motion is to be reduced

class Race {
  constructor(root) {
    this.root = root;
    this.base = root.querySelector(".bs");
    this.parts = new Map([...root.querySelectorAll("[data-part]")].map((node) => [node.dataset.part, node]));
    this.ended = new AbortController();
    this.still = window.matchMedia("(prefers-reduced-motion: reduce)");
    Object.assign(this, { race: null, lanes: [], time: 0, speed: 1, playing: false, withPrefill: false, frame: 0, marks: [] });
    buildControls(this);
    listenTerms(this);
    this.resizes = new ResizeObserver(() => this.resize());
    this.resizes.observe(this.base);
    document.fonts.addEventListener("loadingdone", () => { widths.clear(); this.resize(true); }, { signal: this.ended.signal });
  }

  part(name) { return this.parts.get(name); }

  receive({ data }) {
    if (!data || data.race === this.race) return;
    this.play(false);
    this.race = data.race;
    this.lanes = data.lanes.map((lane) => new Lane(this, lane));
    this.part("lanes").replaceChildren(...this.lanes.map((lane) => lane.element));
    this.reclock();
    this.resize(true);
    this.seek(this.duration());
  }

  duration() { return Math.max(0, ...this.lanes.map((lane) => lane.finish())); }

  // The marks are the moments at which anything happens: the arrow keys go from one to the next.
  reclock() {
    this.marks = [...new Set(this.lanes.flatMap((lane) => lane.data.ends.map((_, k) => lane.end(k))))].sort((a, b) => a - b);
    this.part("scrub").max = String(this.duration());
    const clock = this.part("clock");
    const widest = clockText(this.duration());
    clock.style.minWidth = `${Math.ceil(textWidth(`${widest} of ${widest}`, `15px ${getComputedStyle(clock).fontFamily}`)) + 6}px`;
    this.finished = [...this.lanes].filter((lane) => lane.data.whole).sort((a, b) => a.finish() - b.finish());
  }

  place(lane) {
    const at = this.finished.indexOf(lane) + 1;
    return at && this.finished.length > 1 ? at + (["th", "st", "nd", "rd"][(at % 100 > 10 && at % 100 < 14) || at % 10 > 3 ? 0 : at % 10]) : "";
  }

  resize(force = false) {
    const width = this.base.clientWidth;
    if (!width || (!force && width === this.width)) return;
    this.width = width;
    const fit = Math.max(Math.floor((width + 24) / (LANE_WIDTH + 24)), 1);
    const rows = Math.ceil(this.lanes.length / fit);
    this.part("lanes").style.setProperty("--columns", String(Math.max(Math.ceil(this.lanes.length / Math.max(rows, 1)), 1)));
    if (this.lanes.length) this.codeFont = `11px ${getComputedStyle(this.lanes[0].tree).fontFamily}`;
    for (const lane of this.lanes) { sizes.delete(lane.tree); lane.fresh = true; }
    this.draw();
  }

  setSpeed(speed) {
    this.speed = speed;
    drawControls(this);
  }

  countPrefill(on) {
    this.withPrefill = on;
    this.reclock();
    for (const lane of this.lanes) lane.fresh = true;
    this.seek(Math.min(this.time, this.duration()));
  }

  seek(time) {
    this.time = Math.min(Math.max(time, 0), this.duration());
    this.draw();
  }

  step(by) {
    this.play(false);
    const next = by > 0 ? this.marks.find((mark) => mark > this.time) : this.marks.findLast((mark) => mark < this.time);
    if (next !== undefined) this.seek(next);
  }

  play(on) {
    cancelAnimationFrame(this.frame);
    this.playing = on && this.lanes.length > 0;
    if (this.playing) {
      if (this.time >= this.duration()) this.seek(0);
      this.last = this.painted = performance.now();
      this.frame = requestAnimationFrame(() => this.tick());
    }
    drawControls(this);
  }

  // Time goes on by what has passed since the last frame, times the speed: no easing, no rounding to frames.
  tick() {
    const now = performance.now();
    this.time = Math.min(this.time + (now - this.last) * this.speed, this.duration());
    this.last = now;
    const over = this.time >= this.duration();
    if (over || !this.still.matches || now - this.painted >= SLOW_FRAME) {
      this.painted = now;
      this.draw();
    }
    if (over) return this.play(false);
    this.frame = requestAnimationFrame(() => this.tick());
    return undefined;
  }

  draw() {
    if (!this.lanes.length) return;
    for (const lane of this.lanes) lane.show(this.time);
    const whole = this.duration();
    const scrub = this.part("scrub");
    scrub.value = String(this.time);
    scrub.setAttribute("aria-valuetext", `${milliseconds(this.time)} of ${milliseconds(whole)}`);
    scrub.style.setProperty("--done", `${(100 * this.time) / (whole || 1)}%`);
    say(this.part("clock"), `${clockText(this.time)} of ${clockText(whole)}`);
    this.base.dataset.time = String(this.time);
    this.drawOrder();
    drawControls(this);
  }

  drawOrder() {
    const over = this.finished.filter((lane) => lane.finish() <= this.time);
    const lengths = new Set(this.lanes.map((lane) => lane.total));
    if (over.length < this.finished.length || this.finished.length < 2) return say(this.part("order"), "\u00a0");
    const [first, ...rest] = over;
    return say(this.part("order"), `Finished: ${seen(first.data.label)} ${milliseconds(first.finish())}; `
      + rest.map((lane) => `${seen(lane.data.label)} ${milliseconds(lane.finish())}`).join("; ") + "."
      + (lengths.size > 1 ? " The texts differ in length, so the first to finish need not be the fastest: compare tokens/s." : ""));
  }

  end() {
    this.ended.abort();
    this.resizes.disconnect();
    cancelAnimationFrame(this.frame);
  }
}

// A clock that keeps its digits: whole milliseconds, hundredths of a second from 10 s on.
const clockText = (ms) => (ms < 9999.5 ? count(Math.round(ms)) + THIN + "ms" : `${(ms / 1000).toFixed(2)}${THIN}s`);

const RACES = new WeakMap();
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
  let race = RACES.get(root);
  if (race && !race.base.isConnected) { race.end(); race = null; }
  if (!race) RACES.set(root, (race = new Race(fresh(root))));
  race.receive(component);
  return () => { race.end(); RACES.delete(root); };
}
