// One lane: its elements, and what of its run stands at a given time. Only what changed is drawn.
class Lane {
  constructor(race, data) {
    this.race = race;
    this.data = data;
    this.shown = 0;      // steps whose text stands
    this.spans = [];     // per step shown, its spans
    this.total = data.steps.reduce((sum, step) => sum + step.words.length, 0);
    this.tokens = [];    // tokens emitted up to and with each step
    this.decoded = [];   // the same, the prefill's left out
    let all = 0;
    let own = 0;
    for (const step of data.steps) {
      all += step.words.length;
      if (step.kind !== "prefill") own += step.words.length;
      this.tokens.push(all);
      this.decoded.push(own);
    }
    this.reach = reachOf(this);
    this.build();
  }

  build() {
    const { data } = this;
    this.text = el("div", { class: "text", dir: "auto", tabindex: 0, "data-testid": "race-text", "aria-label": "Text of " + data.label });
    this.bar = el("i", {});
    this.state = el("span", { class: "state", "data-testid": "race-state" });
    this.rate = el("span", { class: "rate", "data-testid": "race-rate" });
    this.tree = el("div", { class: "tree", "data-testid": "race-tree" });
    this.caption = el("p", { class: "tree-caption", "data-testid": "race-tree-caption" });
    this.element = el("section", { class: "lane", "data-testid": "race-lane", "data-method": data.method, "aria-label": data.label },
      el("header", {}, el("h4", { title: data.label }, el("i", { class: "swatch" }), seen(data.label)), this.rate),
      el("div", { class: "bar" }, this.bar), this.state, this.text, this.caption, this.tree);
    this.element.style.setProperty("--method", data.colour === "#000000" ? "var(--ink)" : data.colour);
  }

  // Time in ms at which step k is over, on the clock in use.
  end(k) { return this.data.ends[k] + (this.race.withPrefill ? this.data.prefill : 0); }
  finish() { return this.data.ends.length ? this.end(this.data.ends.length - 1) : 0; }

  // Steps that are over at this time: their number, by bisection.
  over(time) {
    let low = 0;
    let high = this.data.ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.end(middle) <= time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  show(time) {
    const over = this.over(time);
    if (over !== this.shown || this.fresh) {
      this.write(over);
      this.drawState(over);
      drawLaneTree(this, over - 1);
      this.element.dataset.steps = over;
      this.fresh = false;
    }
  }

  write(over) {
    for (const span of this.newest || []) span.classList.remove("selected");
    while (this.spans.length > over) for (const span of this.spans.pop()) span.remove();
    while (this.spans.length < over) {
      const step = this.data.steps[this.spans.length];
      this.spans.push(step.words.map((word, place) => {
        const span = el("span", { class: "token " + originOf(step, place), "data-testid": "race-token", "data-step": step.i });
        writeToken(span, word);
        this.text.append(span);
        return span;
      }));
    }
    this.shown = over;
    this.newest = over < this.data.steps.length || !over ? this.spans[over - 1] || [] : [];
    for (const span of this.newest) span.classList.add("selected");
    this.text.scrollTop = this.text.scrollHeight;
  }

  drawState(over) {
    const { data } = this;
    const done = over === data.steps.length && over > 0;
    const tokens = over ? this.tokens[over - 1] : 0;
    this.bar.style.width = `${(100 * tokens) / Math.max(this.total, 1)}%`;
    const place = done ? this.race.place(this) : "";
    say(this.state, done
      ? `${data.whole ? "finished" : "stopped"} after ${milliseconds(this.finish())}, ${count(tokens)} tokens${place && data.whole ? `, ${place}` : ""}`
      : `${count(tokens)} of ${count(this.total)} tokens`);
    this.element.classList.toggle("done", done);
    const rounds = over ? this.decoded[over - 1] : 0;
    say(this.rate, rounds ? rate((1000 * rounds) / data.ends[over - 1]) : "");
  }
}
