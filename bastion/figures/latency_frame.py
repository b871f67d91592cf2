"""What the latency charts share beyond the house frame: colours of estimators, long captions, axes of nodes and time."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

import numpy as np
import plotly.graph_objects as go

from bastion.figures import numbers
from bastion.figures.frame import house_figure
from bastion.figures.palette import OKABE_ITO, REJECTED

CALIBRATED = OKABE_ITO[5]
COLOURS = {"roofline": CALIBRATED, "raw": REJECTED}
SPARE = (OKABE_ITO[6], OKABE_ITO[3], OKABE_ITO[7], OKABE_ITO[1], OKABE_ITO[2])
CAPTION_CHARACTERS = 68   # what a window of 800 pixels shows beside the sidebar
LINE, BELOW_AXIS, LEGEND_LINE = 15, 50, 20   # pixels: a line of caption; tick labels and the axis title above it; a line of legend


def estimator_colour(name: str, place: int) -> str:
    """Fixed for the two rooflines; others take what is left, by their place in the registry."""
    return COLOURS.get(name, SPARE[place % len(SPARE)])


def captioned_figure(title: str, caption: str, x: str, y: str, dark: bool) -> go.Figure:
    """The house figure with a caption of several short lines, and room for them."""
    lines = textwrap.wrap(caption, CAPTION_CHARACTERS)
    figure = house_figure(title, "<br>".join(lines), x, y, dark)
    figure.layout.annotations[0].update(yanchor="top", yshift=-BELOW_AXIS, align="left")
    figure.update_layout(margin={"b": BELOW_AXIS + LINE * len(lines) + 8}, height=figure.layout.height + LINE * (len(lines) - 1))
    return figure


def room_for_legend(figure: go.Figure, entries: int) -> None:
    """Raise the title above a legend of so many entries: a narrow window puts three on a line."""
    more = LEGEND_LINE * max(0, -(-entries // 3) - 1)
    figure.update_layout(margin={"t": figure.layout.margin.t + more}, height=figure.layout.height + more)


def below_dates(figure: go.Figure) -> None:
    """Tick labels of dates take two lines: let the caption down by one."""
    figure.layout.annotations[0].update(yshift=-BELOW_AXIS - LINE)
    figure.update_layout(margin={"b": figure.layout.margin.b + LINE}, height=figure.layout.height + LINE)


def node_axis(logarithmic: bool, most: int) -> dict:
    """Powers of two, every second one where they would touch."""
    if not logarithmic:
        return {"rangemode": "tozero"}
    powers = [2**p for p in range(0, 21) if 2**p <= most]
    return {"type": "log", "tickvals": powers if len(powers) <= 7 else powers[::2], "range": [np.log10(0.85), np.log10(max(most, 2) * 1.2)]}


def time_axis(logarithmic: bool, milliseconds: Iterable[float]) -> dict:
    """From what is drawn: 1, 2 and 5 of each power of ten when logarithmic, else from 0."""
    drawn = [float(value) for value in milliseconds if np.isfinite(value) and value > 0] or [1.0]
    if not logarithmic:
        return {"range": [0, max(drawn) * 1.08]}
    low, high = min(drawn) / 1.3, max(drawn) * 1.3
    ticks = [step * 10.0**power for power in range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1) for step in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    ticks = ticks if len(ticks) <= 8 else [tick for tick in ticks if np.isclose(np.log10(tick) % 1, 0)]
    return {"type": "log", "range": [np.log10(low), np.log10(high)], "tickvals": ticks, "ticktext": [numbers.grouped(f"{tick:.10g}") for tick in ticks]}
