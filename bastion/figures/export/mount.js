// The component by itself: its own shadow root, the step in the address as #step=12.
const RUN = JSON.parse(document.getElementById("run").textContent);
const shadow = document.getElementById("host").attachShadow({ mode: "open" });
shadow.append(document.getElementById("view").content);

const asked = () => {
  const found = /^#step=(\d{1,8})$/.exec(location.hash);
  return found ? Number(found[1]) : null;
};

mount({
  data: { ...RUN, select: asked() ?? RUN.select }, parentElement: shadow,
  setStateValue: (name, value) => { if (name === "step") location.replace("#step=" + value.step); },
});

addEventListener("hashchange", () => {
  const app = APPS.get(shadow);
  const at = app.steps.findIndex((step) => step.i === asked());
  if (at >= 0) app.go(at);
});
