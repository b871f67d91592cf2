"""How numbers are written: three significant digits, a unit beside them, thin spaces.

`tree/format.js` writes the same text in the browser; a test compares the two.
"""

from __future__ import annotations

import math

THIN = "\u2009"
WORD_SPACE = "\u00a0"  # before a unit that is a word, where a thin space reads as none; never broken
MINUS = "\u2212"
NONE = "\u2013"  # an en dash stands where a number does not exist


def _missing(value: float | None) -> bool:
    return value is None or not math.isfinite(value)


def grouped(text: str) -> str:
    """Thin spaces between the thousands of a plain decimal text; four digits count as thousands."""
    sign, body = (MINUS, text[1:]) if text.startswith("-") else ("", text)
    whole, dot, rest = body.partition(".")
    head = len(whole) % 3 or 3
    groups = [whole[:head]] + [whole[i:i + 3] for i in range(head, len(whole), 3)]
    return sign + THIN.join(groups) + dot + rest


def significant(value: float | None, digits: int = 3) -> str:
    """`value` with `digits` significant digits and no exponent: 0.0123, 14.0, 1 230."""
    if _missing(value):
        return NONE
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    rounded = round(value, digits - 1 - exponent)
    exponent = math.floor(math.log10(abs(rounded)))  # 9.996 rounds up into the next power
    return grouped(f"{rounded:.{max(0, digits - 1 - exponent)}f}")


def count(value: int | None) -> str:
    """A whole number, exact, thousands separated."""
    return NONE if _missing(value) else grouped(str(int(value)))


def counted(value: int, one: str, more: str = "") -> str:
    """A whole number and what it counts: 1 run, 2 runs; `more` where the plural takes more than an s."""
    return f"{count(value)} {one if value == 1 else more or one + 's'}"


def seconds(value: float | None) -> str:
    """A duration given in seconds: milliseconds under 10 s, seconds from there."""
    if _missing(value):
        return NONE
    if abs(value) < 9.995:
        return significant(value * 1e3) + THIN + "ms"
    return significant(value) + THIN + "s"


def ratio(value: float | None) -> str:
    """1.62x, 12.3x, 0.912x."""
    return NONE if _missing(value) else significant(value) + "x"


def probability(value: float | None) -> str:
    """Two decimals from 0.1 up, two significant digits below, <0.0001 at the end: 0.37, 0.094."""
    if _missing(value):
        return NONE
    if value >= 1:
        return "1"
    if value >= 0.995:
        return ">0.99"
    if value >= 0.0995:
        return f"{value:.2f}"
    if value <= 0:
        return "0"
    if value < 0.0001:
        return "<0.0001"
    return f"{value:.{1 - math.floor(math.log10(value))}f}"


def percent(value: float | None) -> str:
    """A share of one as a whole percentage: 12 %."""
    if _missing(value):
        return NONE
    if 0 < value < 0.005:
        return "<1" + THIN + "%"
    return f"{round(value * 100)}" + THIN + "%"


def rate(value: float | None, unit: str = "tokens/s") -> str:
    """A rate with its unit: 45.2 tokens/s."""
    return NONE if _missing(value) else significant(value) + WORD_SPACE + unit


def storage(size: int) -> str:
    """Bytes on disk in powers of a thousand: 512 bytes, 53.1 kB, 6.30 MB, 1.20 GB."""
    if size < 1000:
        return f"{size}{WORD_SPACE}bytes"
    units = ((1e3, "kB"), (1e6, "MB"), (1e9, "GB"))
    factor, unit = next((pair for pair in units if size < 999.5 * pair[0]), units[-1])
    return significant(size / factor) + THIN + unit
