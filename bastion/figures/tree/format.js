// Numbers and tokens as text. The number rules are those of bastion/figures/numbers.py.
const THIN = "\u2009";
const WORD_SPACE = "\u00a0";
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
const rate = (v, unit = "tokens/s") => (missing(v) ? NONE : significant(v) + WORD_SPACE + unit);

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

// In running text: characters that draw nothing, or that reorder what stands around them, are
// spelled out; joiners, which emoji and many scripts need, are left alone.
const UNSEEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;
const spelled = (c) => "<U+" + c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0") + ">";
const seen = (text) => text.replace(UNSEEN, spelled);

// A token, as show_token of bastion/token_text.py has written it, in pieces: marks for white space
// are drawn lighter than letters.
function pieces(text) {
  if (text === "") return [{ text: "empty", mark: true }];
  return text.split(/([\u2423\u23ce\u2192]+)/).filter(Boolean).map((part) => ({ text: part, mark: /^[\u2423\u23ce\u2192]/.test(part) }));
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
