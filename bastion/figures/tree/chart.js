// Axes, grid and marks of the small charts. Domains only ever grow within a run.
const PAD = { left: 44, right: 12, top: 18, bottom: 30 };

function niceCeiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find((m) => m * power >= value * 0.999) * power;
}
function linearTicks(from, to, about) {
  const raw = (to - from) / about;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((m) => m * power >= raw) * power;
  const ticks = [];
  for (let t = Math.ceil(from / step) * step; t <= to * 1.0001; t += step) ticks.push(Number(t.toPrecision(12)));
  return ticks;
}
function logTicks(from, to, base) {
  const ticks = [];
  for (let e = Math.ceil(Math.log(from) / Math.log(base) - 1e-9); base ** e <= to * 1.0001; e += 1) ticks.push(base ** e);
  return ticks;
}
const tickText = (t) => (t !== 0 && Math.abs(t) < 1 ? String(Number(t.toPrecision(3))) : grouped(String(Number(t.toPrecision(4)))));

// axis: {from, to, log, name, unit, ticks}. Returns the drawing with its two scales.
function frame(holder, label, x, y, pad = PAD) {
  const { drawing, width, height } = canvas(holder, label);
  const box = { left: pad.left, right: width - pad.right, top: pad.top, bottom: height - pad.bottom };
  const scale = (axis, a, b) => (v) => {
    const share = axis.log
      ? (Math.log(Math.min(Math.max(v, axis.from), axis.to)) - Math.log(axis.from)) / (Math.log(axis.to) - Math.log(axis.from))
      : (v - axis.from) / (axis.to - axis.from || 1);
    return a + share * (b - a);
  };
  const sx = scale(x, box.left, box.right);
  const sy = scale(y, box.bottom, box.top);
  const ticksX = x.ticks || (x.log ? logTicks(x.from, x.to, 2) : linearTicks(x.from, x.to, 5));
  const ticksY = y.ticks || (y.log ? logTicks(y.from, y.to, 10) : linearTicks(y.from, y.to, 3));
  const axes = svg("g", { class: "axes" });
  for (const t of ticksY) {
    axes.append(svg("line", { x1: box.left, x2: box.right, y1: sy(t), y2: sy(t), class: t === y.from || (!y.log && t === 0) ? "axis" : "grid" }));
    axes.append(svg("text", { x: box.left - 6, y: sy(t) + 3.5, class: "tick", "text-anchor": "end" }, tickText(t)));
  }
  axes.append(svg("line", { x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom, class: "axis" }));
  const name = svg("text", { x: box.right, y: height - 3, class: "tick name", "text-anchor": "end", "data-term": x.term }, x.name);
  for (const t of ticksX) {
    axes.append(svg("line", { x1: sx(t), x2: sx(t), y1: box.bottom, y2: box.bottom + 3, class: "axis" }));
    axes.append(svg("text", { x: sx(t), y: box.bottom + 13, class: "tick", "text-anchor": "middle" }, tickText(t)));
  }
  axes.append(name);
  axes.append(svg("text", { x: 0, y: 9, class: "tick name", "data-term": y.term }, y.name));
  drawing.append(axes);
  return { drawing, sx, sy, box, width, height };
}

function line(points, values) {
  let d = "";
  let pen = false;
  for (const [x, y] of points) {
    if (missing(x) || missing(y)) { pen = false; continue; }
    d += `${pen ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = true;
  }
  return svg("path", { d, fill: "none", ...values });
}

// Key of a chart, in its top right corner: [kind, name] with kind a class of its sample stroke.
function keyRow(chart, items) {
  const group = svg("g", { class: "legend" });
  let x = chart.box.right;
  for (const [kind, name, term] of [...items].reverse()) {
    const wide = textWidth(name, chart.font);
    group.append(svg("text", { x: x - wide, y: 9, class: "tick", "data-term": term }, name));
    x -= wide + 6;
    if (kind.startsWith("glyph")) {
      group.append(glyph(kind.slice(6), x - 3, 5.5, 2.8));
      x -= 20;
    } else {
      group.append(svg("line", { x1: x - 18, x2: x, y1: 5.5, y2: 5.5, class: "series " + kind }));
      x -= 32;
    }
  }
  chart.drawing.append(group);
}

// An end for an axis of steps that does not move with every step: 16, 24, 32, 48, 64, ...
function stepEnd(last) {
  for (let end = 16; ; end *= 2) {
    if (last <= end) return end;
    if (last <= end * 1.5) return end * 1.5;
  }
}
