"""The live parts of the Benchmark page as HTML: the table in the paper's layout, and how far each cell is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from bastion.analysis.benchmark import MEAN, TableCell
from bastion.analysis.benchmark_published import Published
from bastion.figures import numbers
from bastion.figures.benchmark_tables import columns
from bastion.figures.glossary import GLOSSARY
from bastion.figures.palette import ACCEPTED, GROUND, method_colour

STYLE = """<style>
.bench { overflow-x: auto }
.bench table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; margin: 0; border: 0; width: auto }
.bench th, .bench td { border: 0; border-bottom: 1px solid color-mix(in srgb, currentColor 14%, transparent);
  padding: 5px 12px 5px 0; text-align: right; vertical-align: top; white-space: nowrap; font-weight: 400 }
.bench thead th { font-size: 12.5px; color: color-mix(in srgb, currentColor 70%, transparent); vertical-align: bottom }
.bench thead tr:first-child th { border-bottom: 0; padding-bottom: 0; font-weight: 600; text-align: center }
.bench th[title] { cursor: help }
.bench tbody th, .bench thead th:first-child { text-align: left; padding-right: 20px }
.bench tbody th { font-weight: 600 }
.bench tbody th, .bench thead th:first-child { position: sticky; left: 0; background: GROUND }
.bench .sum { border-left: 1px solid color-mix(in srgb, currentColor 14%, transparent); padding-left: 12px }
.bench small { display: block; font-size: 11px; color: color-mix(in srgb, currentColor 62%, transparent); font-weight: 400 }
.bench i { display: inline-block; width: 9px; height: 9px; border-radius: 50%; margin-right: 7px; box-sizing: border-box }
.bench .published th, .bench .published td { font-style: italic; font-weight: 400 }
.bench b { display: block; height: 3px; margin-top: 3px; min-width: 84px; background: color-mix(in srgb, currentColor 12%, transparent) }
.bench b > u { display: block; height: 3px; background: BAR }
</style>""".replace("BAR", ACCEPTED)


def _style(dark: bool) -> str:
    return STYLE.replace("GROUND", GROUND["dark" if dark else "light"])


SETS_IN_FULL = 3   # columns of sets, the mean included, that have room for every field
SAME = "Conversations whose ids equal plain decoding's at temperature 0, where they must, rounding apart."
FIELDS = (("speedup", GLOSSARY["speedup"]), ("tau", GLOSSARY["tau"]), ("tokens/s", "Tokens that decode steps emitted per second of decode steps."),
          ("nodes", GLOSSARY["budget"]), ("same as ar", SAME))


def table_html(cells: Sequence[TableCell], published: Sequence[Published] = (), dark: bool = False) -> str:
    """The table at one temperature: for each set speedup with its interval (a dash below five prompts), tau, tokens/s, nodes a step, same ids.

    Of many sets only speedup and tau, as the paper has them, and the rest for the mean, so that it stays in sight.
    """
    sets = columns(cells)
    greedy = any(cell.identical is not None for cell in cells)
    every = FIELDS if greedy else FIELDS[:-1]
    shown = {name: every[:2] if len(sets) > SETS_IN_FULL and name != MEAN else every for name in sets}
    counts = {name: max((cell.prompts for cell in cells if cell.prompt_set == name), default=0) for name in sets}
    top = "".join(f'<th colspan="{len(shown[name])}" class="sum">{escape(name)}<small>{_prompts(counts[name])}</small></th>' for name in sets)
    heads = "".join(f'<th title="{escape(words)}"{_first(i)}>{name}</th>' for one in sets for i, (name, words) in enumerate(shown[one]))
    rows = []
    for method in dict.fromkeys(cell.method for cell in cells):
        own = {cell.prompt_set: cell for cell in cells if cell.method == method}
        body = "".join(_measured(own[name], counts[name], len(shown[name])) if name in own else _blank(len(shown[name])) for name in sets)
        rows.append(f'<tr data-method="{escape(method)}"><th><i style="background:{method_colour(method, dark)}"></i>{escape(method)}</th>{body}</tr>')
    for one in published:
        if one.prompt_set in sets:
            body = "".join(_published(one, len(shown[name])) if name == one.prompt_set else _blank(len(shown[name])) for name in sets)
            rows.append(f'<tr class="published" data-published="{escape(one.method)}"><th><i style="border:2px solid {method_colour(one.method, dark)}"></i>'
                        f"{escape(one.method)}, published<small>{escape(one.target)}, {escape(one.device)}</small></th>{body}</tr>")
    return (f'{_style(dark)}<div class="bench" data-testid="bench-table"><table><thead><tr><th></th>{top}</tr><tr><th>method</th>{heads}</tr></thead>'
            f"<tbody>{''.join(rows)}</tbody></table></div>")


def _prompts(count: int) -> str:
    return f"{numbers.count(count)} prompt{'s' * (count != 1)}"


def _measured(cell: TableCell, prompts: int, width: int) -> str:
    """The first `width` fields of one method on one set; prompts are said again where they are fewer than the set's head says."""
    interval = "" if cell.method == "ar" or cell.speedup is None else f"<small>{_interval(cell)}</small>"
    notes = [_prompts(cell.prompts)] if cell.prompts != prompts else []
    notes += [f"{numbers.count(cell.skipped)} too long"] if cell.skipped else []
    fewer = f"<small>{', '.join(notes)}</small>" if notes else ""
    texts = [("speedup", numbers.ratio(cell.speedup) + interval), ("tau", numbers.significant(cell.tau) + fewer),
             ("tokens_per_second", numbers.significant(cell.tokens_per_second)), ("nodes", numbers.significant(cell.nodes_mean))]
    texts.append(("same", numbers.NONE if cell.identical is None or not cell.prompts else f"{cell.identical} of {cell.prompts}"))
    name = escape(cell.prompt_set)
    return "".join(f'<td data-set="{name}" data-field="{field}"{_first(i)}>{text}</td>' for i, (field, text) in enumerate(texts[:width]))


def _interval(cell: TableCell) -> str:
    return numbers.NONE if cell.low is None else f"{numbers.significant(cell.low)} to {numbers.significant(cell.high)}"


def _published(one: Published, width: int) -> str:
    texts = [numbers.ratio(one.speedup), numbers.significant(one.tau), *[""] * (width - 2)]
    return "".join(f'<td data-field="{field}"{_first(i)}>{text}</td>' for i, (text, field) in enumerate(
        zip(texts, ["speedup", "tau", *[""] * (width - 2)])))


def _blank(width: int) -> str:
    return "".join(f"<td{_first(i)}></td>" for i in range(width))


def _first(place: int) -> str:
    return ' class="sum"' if place == 0 else ""


def progress_html(counts: Mapping[tuple[str, str], tuple[int, int]], sets: Sequence[str], methods: Sequence[str], dark: bool = False) -> str:
    """Sets down, methods across: decodes done of all, with a bar."""
    heads = "".join(f'<th><i style="background:{method_colour(m, dark)}"></i>{escape(m)}</th>' for m in methods)
    rows = []
    for name in sets:
        body = "".join(_bar(name, method, *counts.get((name, method), (0, 0))) for method in methods)
        rows.append(f"<tr><th>{escape(name)}</th>{body}</tr>")
    return (f'{_style(dark)}<div class="bench" data-testid="bench-progress"><table><thead><tr></tr><tr><th>prompt set</th>{heads}</tr></thead>'
            f"<tbody>{''.join(rows)}</tbody></table></div>")


def _bar(name: str, method: str, done: int, total: int) -> str:
    share = 100 * done / total if total else 0
    return (f'<td data-set="{escape(name)}" data-method="{escape(method)}">{numbers.count(done)} of {numbers.count(total)}'
            f'<b><u style="width:{share:.1f}%"></u></b></td>')


__all__ = ["MEAN", "progress_html", "table_html"]
