"""Charts of a benchmark: speedup and tau of each method on each prompt set, ours measured, the paper's published."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go

from bastion.analysis.benchmark import FEWEST, MEAN, TableCell
from bastion.analysis.benchmark_published import Published
from bastion.figures import numbers
from bastion.figures.benchmark_tables import columns
from bastion.figures.frame import from_zero, house_figure, ink_colour, shade
from bastion.figures.palette import REJECTED, bar_fill, method_colour

YARDSTICK = "ar"
LEVEL_NAMES, LONGEST_NAME = 5, 24   # names that fit side by side; characters that there is room for


def speedup_figure(cells: Sequence[TableCell], published: Sequence[Published] = (), dark: bool = False) -> go.Figure:
    """Bars with 95 % intervals for one temperature, plain decoding as the line at 1; published bars are hollow and hatched."""
    best = _best(cells)
    title = "Speedup per prompt set" if best is None else \
        f"{escape(best.method)}: {numbers.ratio(best.speedup)} plain decoding {_over(best)}"
    caption = f"Measured; lines are 95 % bootstrap intervals, of {FEWEST} prompts or more. Plain decoding is 1."
    used = [one for one in published if one.prompt_set in columns(cells) and one.speedup is not None]
    if used:
        caption += "<br>Hatched: published, another target on another device (" + \
            escape("; ".join(dict.fromkeys(f"{one.target}, {one.device}" for one in used))) + ")."
    figure = house_figure(title, caption, "prompt set", "speedup, plain decoding = 1", dark)
    drawn = [1.0]
    for method in dict.fromkeys(cell.method for cell in cells):
        own = [cell for cell in cells if cell.method == method and cell.speedup is not None]
        if method == YARDSTICK or not own:
            continue
        drawn += [value for cell in own for value in (cell.speedup, cell.high) if value is not None]
        figure.add_bar(
            x=[escape(cell.prompt_set) for cell in own], y=[cell.speedup for cell in own], name=escape(method), offsetgroup=method,
            marker=bar_fill(method, dark),
            error_y={"type": "data", "symmetric": False, "color": shade(ink_colour(dark), 0.7), "thickness": 1.2, "width": 3,
                     "array": [(cell.high or cell.speedup) - cell.speedup for cell in own],
                     "arrayminus": [cell.speedup - (cell.low or cell.speedup) for cell in own]},
            customdata=[_hover(cell) for cell in own], hovertemplate="%{x}: %{customdata}<extra>" + escape(method) + "</extra>")
    for one in used:
        drawn.append(one.speedup)
        colour = method_colour(one.method, dark)
        figure.add_bar(
            x=[escape(one.prompt_set)], y=[one.speedup], name=f"{escape(one.method)}, published", offsetgroup=f"published {one.method}",
            marker={"color": "rgba(0,0,0,0)", "line": {"color": colour, "width": 1.4},
                    "pattern": {"shape": "/", "fgcolor": colour, "bgcolor": "rgba(0,0,0,0)", "size": 7, "solidity": 0.2}},
            customdata=[f"{numbers.ratio(one.speedup)} on {escape(one.target)}, {escape(one.device)}"],
            hovertemplate="%{x}: %{customdata}<extra>published</extra>")
    figure.layout.annotations[0].align = "left"
    figure.add_hline(1, line={"color": REJECTED, "width": 1.2})
    _order(figure, cells)
    return from_zero(figure, drawn)


def tau_figure(cells: Sequence[TableCell], dark: bool = False) -> go.Figure:
    """Bars of tau for one temperature."""
    known = [cell for cell in cells if cell.tau is not None]
    top = max(known, key=lambda cell: cell.tau, default=None)
    title = "Tokens a step, per prompt set" if top is None else f"tau reaches {numbers.significant(top.tau)}: {escape(top.method)} on {escape(top.prompt_set)}"
    figure = house_figure(title, "Measured: tokens a step emits, on average; plain decoding emits one.", "prompt set", "tau, tokens a step", dark)
    for method in dict.fromkeys(cell.method for cell in cells):
        own = [cell for cell in known if cell.method == method]
        if method != YARDSTICK and own:
            figure.add_bar(x=[escape(cell.prompt_set) for cell in own], y=[cell.tau for cell in own], name=escape(method),
                           offsetgroup=method, marker=bar_fill(method, dark),
                           customdata=[f"tau {numbers.significant(cell.tau)}, {numbers.significant(cell.nodes_mean)} nodes a step" for cell in own],
                           hovertemplate="%{x}: %{customdata}<extra>" + escape(method) + "</extra>")
    figure.add_hline(1, line={"color": REJECTED, "width": 1.2})
    _order(figure, cells)
    return from_zero(figure, [1.0, *(cell.tau for cell in known)])


def _order(figure: go.Figure, cells: Sequence[TableCell]) -> None:
    names = [escape(name) for name in columns(cells)]
    figure.update_layout(barmode="group", bargap=0.3, bargroupgap=0.06, showlegend=True)
    figure.update_xaxes(categoryorder="array", categoryarray=names, range=[-0.5, max(len(names), 1) - 0.5])
    if len(names) > LEVEL_NAMES:   # names lean, and axis title and caption make room for the longest
        room = int(16 + 3.6 * min(max(map(len, columns(cells))), LONGEST_NAME))
        figure.update_xaxes(tickangle=-35)
        figure.update_layout(height=figure.layout.height + room, margin_b=figure.layout.margin.b + room)
        figure.layout.annotations[0].yshift -= room


def _best(cells: Sequence[TableCell]) -> TableCell | None:
    """The fastest method, by the mean over sets where there is one."""
    known = [cell for cell in cells if cell.speedup is not None and cell.method != YARDSTICK]
    means = [cell for cell in known if cell.prompt_set == MEAN]
    return max(means or known, key=lambda cell: cell.speedup, default=None)


def _over(cell: TableCell) -> str:
    return "on the mean over sets" if cell.prompt_set == MEAN else f"on {escape(cell.prompt_set)}"


def _hover(cell: TableCell) -> str:
    interval = f", {numbers.significant(cell.low)} to {numbers.significant(cell.high)}" if cell.low is not None else ", no interval"
    return f"{numbers.ratio(cell.speedup)}{interval}; tau {numbers.significant(cell.tau)}, {numbers.counted(cell.prompts, 'prompt')}"
