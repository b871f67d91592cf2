// The text so far: one span a token, added as steps arrive; the selected step is underlined.
function originOf(step, place) {
  if (step.kind === "prefill") return "prefill";
  return place < step.accepted.length - 1 ? "accepted" : "bonus";
}
function nodeOf(step, place) {
  if (step.kind === "prefill") return null;
  return place < step.accepted.length - 1 ? step.accepted[place + 1] : step.bonus;
}

function appendTokens(app) {
  const holder = app.part("text");
  for (; app.written < app.steps.length; app.written += 1) {
    const step = app.steps[app.written];
    const spans = step.words.map((word, i) => {
      const origin = originOf(step, i);
      const span = el("span", {
        class: "token " + origin, "data-testid": "text-token", "data-step": step.i, "data-origin": origin,
        "data-place": i,
      });
      writeToken(span, word);
      holder.append(span);
      return span;
    });
    app.spans.push(spans);
  }
}

function writeToken(span, text) {
  empty(span);
  const lead = text.match(/^ */)[0]; // no line is drawn under the space before a word
  if (lead) span.append(lead);
  for (const part of text.slice(lead.length).split(/(\n|\r|\t)/)) {
    if (part === "\n") span.append(el("span", { class: "mark" }, "\u23ce"), "\n");
    else if (part === "\r") span.append(el("span", { class: "mark" }, "\u240d"));
    else if (part === "\t") span.append(el("span", { class: "mark" }, "\u2192"), "\t");
    else if (part) span.append(el("span", { class: "word" }, seen(part)));
  }
}

function drawText(app) {
  appendTokens(app);
  const box = app.part("text");
  for (const span of app.underlined) span.classList.remove("selected");
  app.underlined = app.spans[app.selected] || [];
  for (const span of app.underlined) span.classList.add("selected");
  const last = app.underlined[app.underlined.length - 1];
  if (!last) return;
  // Scroll the text box alone; scrollIntoView would move the page.
  const line = last.getBoundingClientRect();
  const frame = box.getBoundingClientRect();
  const tall = app.lineHeight;
  const whole = (pixels) => Math.ceil(pixels / tall - 0.25) * tall; // whole lines, so that none is cut
  if (line.bottom > frame.bottom + 2) box.scrollTop += whole(line.bottom - frame.bottom);
  const first = app.underlined[0].getBoundingClientRect();
  if (first.top < frame.top - 2) box.scrollTop -= whole(frame.top - first.top);
}

function listenText(app) {
  app.part("text").addEventListener("click", (event) => {
    const span = event.target.closest(".token");
    if (!span) return;
    const index = Number(span.dataset.step);
    app.go(app.steps.findIndex((s) => s.i === index));
    app.look(nodeOf(app.step(), Number(span.dataset.place)));
  });
}
