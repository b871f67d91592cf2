"""The speedups of a race as a chart: one row a method, one point a decode, the same axes from start to end."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from statistics import median

import pandas as pd
import plotly.graph_objects as go

from bastion.analysis.race_live import LivePoint, axis_end
from bastion.figures import numbers
from bastion.figures.frame import house_figure, ink_colour, shade
from bastion.figures.palette import GROUND, method_colour

YARDSTICK = "ar"
ROW_HEIGHT, AROUND = 40, 166   # pixels


def speedup_figure(labels: Sequence[str], points: Sequence[LivePoint], dark: bool = False, live: bool = False, axis: float = 0.0) -> go.Figure:
    """Speedups over plain decoding, one row a lane. axis: the least end of the axis, so that it never shrinks."""
    settled = {label: [p.speedup for p in points if p.lane == label and not p.provisional] for label in labels}
    figure = house_figure(_title(labels, points, live), _caption(points, live), "speedup over plain decoding", "", dark)
    end = max(axis, settled_axis(points))
    ground = GROUND["dark" if dark else "light"]
    figure.add_vline(1, line={"color": shade(ink_colour(dark), 0.35), "width": 1})
    for place, label in enumerate(labels):
        colour = method_colour(label.partition(",")[0], dark)
        own = [p for p in points if p.lane == label]
        if settled[label]:
            middle = median(settled[label])
            figure.add_shape(type="line", x0=middle, x1=middle, y0=place - 0.3, y1=place + 0.3, line={"color": colour, "width": 3})
        figure.add_scatter(
            x=[min(p.speedup, end) for p in own], y=[place] * len(own), mode="markers", name=escape(label), showlegend=False, cliponaxis=False,
            marker={"size": 9, "symbol": ["triangle-right" if p.speedup > end else "circle" for p in own], "color": [ground if p.provisional else colour for p in own], "line": {"color": colour, "width": 1.6}},
            customdata=[f"repeat {p.repeat}: {numbers.ratio(p.speedup)}, {numbers.rate(p.tokens_per_second)}"
                        + (", provisional" if p.provisional else "") for p in own],
            hovertemplate="%{customdata}<extra>" + escape(label) + "</extra>")
    figure.update_xaxes(range=[0, end], showgrid=True, gridcolor=shade(ink_colour(dark), 0.07), ticksuffix="x")
    figure.update_yaxes(range=[len(labels) - 0.4, -0.6], tickmode="array", tickvals=list(range(len(labels))), rangemode="normal",
                        ticktext=[_tick(label, settled[label]) for label in labels], showgrid=False, showline=False, ticks="")
    left = min(60 + 7 * max((len(label) for label in labels), default=0), 250)
    figure.update_layout(height=AROUND + ROW_HEIGHT * len(labels), margin={"l": left, "b": 84}, title={"xref": "container", "pad": {"l": 0}})
    figure.layout.annotations[0].update(xshift=-left, align="left")
    return figure


def settled_axis(points: Sequence[LivePoint]) -> float:
    """End of the axis by what is settled: the first steps of a decode are too noisy to stretch it. A
    provisional point past the end stands there as an arrow."""
    return axis_end(max((p.speedup for p in points if not p.provisional), default=0.0))


def points_table(points: Sequence[LivePoint]) -> pd.DataFrame:
    """What is drawn, at full precision."""
    return pd.DataFrame([{"method": p.lane, "repeat": p.repeat, "speedup": p.speedup, "tokens_per_second": p.tokens_per_second,
                          "provisional": p.provisional} for p in points],
                        columns=["method", "repeat", "speedup", "tokens_per_second", "provisional"])


def _tick(label: str, settled: Sequence[float]) -> str:
    name = escape(label if len(label) <= 28 else label[:27] + "…")
    return f"{name}  <b>{numbers.ratio(median(settled))}</b>" if settled else name


def _title(labels: Sequence[str], points: Sequence[LivePoint], live: bool) -> str:
    middles = {label: median(values) for label in labels if label != YARDSTICK
               and (values := [p.speedup for p in points if p.lane == label and not (live and p.provisional)])}
    if not middles:
        return "How much faster than plain decoding?"
    best = max(middles, key=middles.__getitem__)
    if middles[best] <= 1:
        return "Plain decoding leads so far" if live else "No method beat plain decoding here"
    return f"{escape(best)} {'leads' if live else 'is fastest'}: {numbers.ratio(middles[best])} plain decoding{' so far' if live else ''}"


def _caption(points: Sequence[LivePoint], live: bool) -> str:
    words = "Measured. Point: one decode against plain decoding of its repeat. Bar: median."
    if live:
        return words + "<br>Hollow: provisional, still decoding or ar of its repeat yet to come."
    if any(p.provisional for p in points):
        return words + "<br>Hollow: ar of its repeat is missing, another measurement of it stands in."
    return words + "<br>Prefill left out."
