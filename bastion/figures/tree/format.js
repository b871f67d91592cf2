// Numbers and tokens as text. The number rules are those of bastion/figures/numbers.py.
const THIN = "\u2009";
const NONE = "\u2013";
const missing = (v) => v === null || v === undefined || !Number.isFinite(v);

function grouped(text) {
  const negative = text.startsWith("-");
  const [whole, rest] = (negative ? text.slice(1) : text).split(".");
  const body = whole.replace(/\B(?=(\d{3})+$)/g, THIN);
  return (negative ? "\u2212" : "") + body + (rest === undefined ? "" : "." + rest);
}

function significant(value, digits = 3) {
  if (missing(value)) return NONE;
  if (value === 0) return "0";
  // toExponential rounds first, so that 9.996 counts its decimals as 10.0
  const exponent = Number(value.toExponential(digits - 1).split("e")[1]);
  const decimals = digits - 1 - exponent;
  return grouped(decimals >= 0 ? value.toFixed(decimals) : String(Number(value.toPrecision(digits))));
}

const count = (v) => (missing(v) ? NONE : grouped(String(Math.trunc(v))));
const milliseconds = (ms) =>
  missing(ms) ? NONE : Math.abs(ms) < 9995 ? significant(ms) + THIN + "ms" : significant(ms / 1000) + THIN + "s";
const ratio = (v) => (missing(v) ? NONE : significant(v) + "x");
const rate = (v, unit = "tokens/s") => (missing(v) ? NONE : significant(v) + THIN + unit);

function probability(v) {
  if (missing(v)) return NONE;
  if (v >= 1) return "1";
  if (v >= 0.995) return ">0.99";
  if (v >= 0.0995) return v.toFixed(2);
  if (v <= 0) return "0";
  if (v < 0.0001) return "<0.0001";
  return v.toFixed(1 - Math.floor(Math.log10(v)));
}

function percent(share) {
  if (missing(share)) return NONE;
  return (share > 0 && share < 0.005 ? "<1" : String(Math.round(share * 100))) + THIN + "%";
}

// Characters that draw nothing, or that reorder what stands around them, are spelled out.
const UNSEEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;
const spelled = (c) => "<U+" + c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0") + ">";
const seen = (text) => text.replace(UNSEEN, spelled);

// A token as pieces for a tree: spaces, newlines and tabs as marks, lighter than letters.
const MARKS = { " ": "\u2423", "\n": "\u23ce", "\t": "\u2192", "\r": "\u240d" };
function pieces(text) {
  if (text === "") return [{ text: "empty", mark: true }];
  const out = [];
  const lead = text.length - text.trimStart().length;
  for (let at = 0; at < text.length; ) {
    const c = text[at];
    const blank = c === " " && (at < lead || at === text.length - 1);
    if (blank || c === "\n" || c === "\t" || c === "\r") {
      const last = out[out.length - 1];
      if (last && last.mark) last.text += MARKS[c];
      else out.push({ text: MARKS[c], mark: true });
      at += 1;
      continue;
    }
    let end = at + 1;
    while (end < text.length && !"\n\t\r".includes(text[end]) && !(text[end] === " " && end === text.length - 1)) end += 1;
    out.push({ text: seen(text.slice(at, end)), mark: false });
    at = end;
  }
  return out;
}
const plain = (text) => pieces(text).map((p) => p.text).join("");

// The first `room` characters of a token's pieces, with an ellipsis where something is left out.
function shortened(parts, room) {
  let left = room;
  const out = [];
  const total = parts.reduce((sum, p) => sum + [...p.text].length, 0);
  if (total <= room) return parts;
  for (const part of parts) {
    const letters = [...part.text];
    if (letters.length >= left) {
      out.push({ text: letters.slice(0, Math.max(left - 1, 0)).join("") + "\u2026", mark: part.mark });
      return out;
    }
    out.push(part);
    left -= letters.length;
  }
  return out;
}
