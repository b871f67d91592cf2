// Play, restart, speed, scrub, the clock in use; and the same by keys.
const SPEEDS = [0.25, 0.5, 1, 2, 4];
const ICONS = { play: "M5 3L12 8L5 13Z", pause: "M5.5 3V13M10.5 3V13", restart: "M4 3V13M13 3L7 8L13 13" };
const icon = (name) => svg("svg", { width: 16, height: 16, viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: ICONS[name], class: "icon" }));
const speedText = (speed) => `${speed}\u00d7`;

function buildControls(race) {
  race.part("play").addEventListener("click", () => race.play(!race.playing));
  const restart = race.part("restart");
  restart.append(icon("restart"));
  attributes(restart, { "aria-label": "Back to the start (Home)", title: "Back to the start (Home)" });
  restart.addEventListener("click", () => race.seek(0));
  race.speedButtons = SPEEDS.map((speed) => {
    const button = el("button", { type: "button", "data-testid": `race-speed-${speed}`, title: `Replay at ${speedText(speed)} the measured pace` }, speedText(speed));
    button.addEventListener("click", () => race.setSpeed(speed));
    race.part("speeds").append(button);
    return button;
  });
  race.part("scrub").addEventListener("input", (event) => race.seek(Number(event.target.value)));
  race.part("prefill").addEventListener("click", () => race.countPrefill(!race.withPrefill));
  for (const [origin, name] of [["accepted", "accepted"], ["bonus", "bonus token"], ["prefill", "prefill"]]) {
    race.part("key").append(el("span", { class: "token " + origin, "data-term": name, tabindex: 0 }, el("span", { class: "word" }, name)), " ");
  }
  document.addEventListener("keydown", (event) => pressedKey(race, event), { signal: race.ended.signal });
}

function drawControls(race) {
  const play = race.part("play");
  const label = race.playing ? "Pause (space)" : "Play (space)";
  if (play.getAttribute("aria-label") !== label) {
    play.replaceChildren(icon(race.playing ? "pause" : "play"));
    attributes(play, { "aria-label": label, title: label });
  }
  SPEEDS.forEach((speed, i) => race.speedButtons[i].setAttribute("aria-pressed", String(speed === race.speed)));
  const prefill = race.part("prefill");
  prefill.setAttribute("aria-pressed", String(race.withPrefill));
  say(prefill, race.withPrefill ? "Prefill counted" : "Prefill left out");
  prefill.title = race.withPrefill ? "The clock begins with reading the prompt. Click to leave that out." : "The clock begins once the prompt is read. Click to count the prefill too.";
  say(race.part("note"), `Measured times, replayed at ${speedText(race.speed)}. `
    + (race.withPrefill ? "The clock counts the prefill; tokens/s leaves it out." : "The clock and tokens/s leave the prefill out."));
}

const TAKES_KEYS = "input:not([type=range]), textarea, select, [contenteditable], [role=slider], [role=listbox], [role=combobox], [role=tablist], [role=radiogroup], [role=menu], [role=grid]";

// Arrows work unless the control that has the focus takes them; Home, End and space only inside.
function pressedKey(race, event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  const target = event.composedPath()[0];
  const inside = event.composedPath().includes(race.base);
  if (!inside && !(target.closest && !target.closest(TAKES_KEYS))) return;
  const moves = { ArrowLeft: () => race.step(-1), ArrowRight: () => race.step(1) };
  if (inside) {
    moves.Home = () => race.seek(0);
    moves.End = () => race.seek(race.duration());
    if (!target.closest("button")) moves[" "] = () => race.play(!race.playing);
  }
  if (!moves[event.key]) return;
  moves[event.key]();
  event.preventDefault();
}
