"""The frame that every plotly chart stands in: hairlines, no box, title above, caption below."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from bastion.figures.palette import GROUND, INK

HEIGHT = 320  # pixels, the same for all, so that a page of them is even


def shade(colour: str, opacity: float) -> str:
    """The colour as rgba(): a legend shows it, unlike a bar's opacity."""
    red, green, blue = (int(colour[i:i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def ink_colour(dark: bool) -> str:
    return INK["dark" if dark else "light"]


def house_figure(title: str, caption: str, x: str, y: str, dark: bool) -> go.Figure:
    """An empty chart in the house style: hairlines, no frame, title above, caption below."""
    ink, ground = ink_colour(dark), GROUND["dark" if dark else "light"]
    hair = shade(ink, 0.13)
    axis = {"showline": True, "linecolor": hair, "linewidth": 1, "zeroline": False, "ticks": "outside", "ticklen": 3,
            "tickcolor": hair, "tickfont": {"size": 11}, "title": {"font": {"size": 12}, "standoff": 8}, "separatethousands": True}
    figure = go.Figure()
    figure.update_layout(
        height=HEIGHT, template="none", paper_bgcolor=ground, plot_bgcolor=ground, separators=".\u2009",
        font={"family": "system-ui, sans-serif", "color": ink, "size": 12}, hoverlabel={"bgcolor": ground, "font": {"color": ink}},
        margin={"l": 56, "r": 16, "t": 66, "b": 76},
        title={"text": title, "font": {"size": 15, "weight": 600}, "x": 0, "xref": "paper", "xanchor": "left", "y": 1,
               "yref": "container", "yanchor": "top", "pad": {"t": 14}},
        legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1.0, "yanchor": "bottom", "traceorder": "normal"},
        annotations=[{"text": caption, "x": 0, "xref": "paper", "y": 0, "yref": "paper", "yshift": -62, "showarrow": False,
                      "xanchor": "left", "yanchor": "middle", "align": "left", "font": {"size": 11, "color": shade(ink, 0.62)}}])
    figure.update_xaxes(title_text=x, showgrid=False, **axis)
    figure.update_yaxes(title_text=y, gridcolor=hair, rangemode="tozero", **axis)
    return figure


def from_zero(figure: go.Figure, values: Sequence[float]) -> go.Figure:
    top = max((float(v) for v in values if np.isfinite(v)), default=1.0)
    figure.update_yaxes(range=[0, top * 1.08 or 1.0])
    return figure
