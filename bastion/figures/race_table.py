"""The table of a race as HTML: medians, and the range over the repeats under them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from bastion.analysis.race import Row, Spread
from bastion.figures import numbers
from bastion.figures.glossary import GLOSSARY
from bastion.figures.palette import method_colour
from bastion.token_text import show_token

YARDSTICK = "ar"
_MS = ", ms"

COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("speedup", "speedup", GLOSSARY["speedup"]), ("tau", "tau", GLOSSARY["tau"]),
    ("tokens_per_second", "tokens/s", "Tokens that decode steps emitted per second of decode steps."),
    ("nodes", "nodes a step", GLOSSARY["budget"]),
    ("draft", "draft" + _MS, "The drafter's forward pass, a step."), ("build", "build" + _MS, "Growing the tree, a step."),
    ("verify", "verify" + _MS, GLOSSARY["verify"]), ("commit", "commit" + _MS, "Keeping the accepted rows of the cache, a step."),
    ("prefill", "prefill" + _MS, GLOSSARY["prefill"]),
)

STYLE = """<style>
.race-table { overflow-x: auto; scrollbar-width: thin; container-type: inline-size }
.race-table table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; margin: 0; border: 0 }
.race-table th, .race-table td { border: 0; border-bottom: 1px solid color-mix(in srgb, currentColor 14%, transparent);
  padding: 6px 12px 6px 0; text-align: right; vertical-align: top; white-space: nowrap; font-weight: 400 }
.race-table thead th { font-size: 12.5px; opacity: 0.7; vertical-align: bottom; cursor: help }
.race-table tbody th, .race-table thead th:first-child { text-align: left }
.race-table tbody th { font-weight: 600 }
.race-table [data-field=same] { text-align: left }
.race-table th:last-child, .race-table td:last-child { padding-right: 0 }
.race-table .left-out { display: none; margin: 6px 0 0; font-size: 12.5px; opacity: 0.7 }
@container (max-width: 880px) { .race-table thead th { white-space: normal } .race-table .left-out { display: block } .race-table [data-field=build], .race-table [data-field=commit] { display: none } }
@container (max-width: 700px) { .race-table [data-field=draft], .race-table [data-field=nodes] { display: none } }
@container (max-width: 620px) { .race-table th, .race-table td { padding-right: 8px } .race-table [data-field=prefill] { display: none } }
.race-table small { display: block; font-size: 11.5px; opacity: 0.62; font-weight: 400 }
.race-table i { display: inline-block; width: 9px; height: 9px; border-radius: 50%; margin-right: 7px }
</style>"""


def race_html(rows: Sequence[Row], greedy: bool, dark: bool = False) -> str:
    """One row a lane. `greedy`: texts must agree, so a column says whether they do. In a narrow container the
    stages are left out one after the other, verify last (they are in the CSV); what is still too wide scrolls."""
    heads = "".join(f'<th data-field="{name}" title="{escape(help_)}">{escape(words)}</th>' for name, words, help_ in _columns(greedy))
    body = "".join(_row(row, greedy, dark) for row in rows)
    return (f'{STYLE}<div class="race-table" data-testid="race-table"><table><thead><tr><th title="What decodes.">method</th>{heads}</tr></thead>'
            f'<tbody>{body}</tbody></table><p class="left-out">The page is narrow: some columns are left out. The CSV has them.</p></div>')


SAME = ("same", "same text as ar", "Whether the emitted ids equal those of plain decoding, which at temperature 0 they must, ties apart.")


def _columns(greedy: bool) -> tuple[tuple[str, str, str], ...]:
    """What matters most comes first: a narrow page keeps the left end in sight."""
    return (*COLUMNS[:3], SAME, *COLUMNS[3:]) if greedy else COLUMNS


def _row(row: Row, greedy: bool, dark: bool) -> str:
    cells = "".join(f'<td data-field="{name}">{_same(row) if name == "same" else _cell(getattr(row, name), _write(name))}</td>'
                    for name, _, _ in _columns(greedy))
    repeats = numbers.counted(row.repeats, "repeat") if row.repeats else "no whole repeat"
    return (f'<tr data-lane="{escape(row.label)}"><th><i style="background:{method_colour(row.method, dark)}"></i>{escape(row.label)}'
            f"<small>{repeats}</small></th>{cells}</tr>")


def _cell(value: Spread | None, write: Callable[[float], str]) -> str:
    if value is None:
        return numbers.NONE
    if value.count < 2 or write(value.low) == write(value.high):
        return escape(write(value.median)) + "<small>&nbsp;</small>"
    return f"{escape(write(value.median))}<small>{escape(write(value.low))}–{escape(write(value.high))}</small>"


def _write(name: str) -> Callable[[float], str]:
    if name == "speedup":
        return numbers.ratio
    if name in ("draft", "build", "verify", "commit", "prefill"):
        return _milliseconds
    return numbers.significant


def _milliseconds(seconds: float) -> str:
    """Under ten microseconds the clock itself is what is seen."""
    return "<0.01" if 0 < seconds < 1e-5 else numbers.significant(1e3 * seconds)


def _same(row: Row) -> str:
    if row.method == YARDSTICK and row.repeats and row.difference is None:
        return "the yardstick<small>&nbsp;</small>"
    if row.identical is None:
        return numbers.NONE
    if row.difference is None:
        return "yes<small>&nbsp;</small>"
    return f"no, from token {numbers.count(row.difference.position + 1)}<small>{row.identical} of {numbers.counted(row.repeats, 'repeat')} the same</small>"


def difference_words(row: Row) -> str:
    """One sentence on where a lane's text parts from plain decoding's; empty where it does not."""
    found = row.difference
    if found is None:
        return ""
    def token(text: str | None) -> str:
        return "nothing more" if text is None else f"“{show_token(text)}”"

    gap = "" if found.top2_gap is None else f" The target's two largest logits were {numbers.significant(found.top2_gap)} apart there."
    return (f"{row.label} parts from ar at token {numbers.count(found.position + 1)} (repeat {found.repeat}): ar wrote "
            f"{token(found.yardstick_token)}, {row.label} {token(found.token)}.{gap}")
