"""Reliability of the drafter's marginals: confidence against agreement, by depth and by rank."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from bastion.analysis.reliability import Reliability, wilson
from bastion.figures import numbers
from bastion.figures.frame import from_zero, ink_colour, shade
from bastion.figures.palette import ACCEPTED, REJECTED
from bastion.figures.surrogate_frame import captioned_figure

COLUMNS = 4
SEEN = "Measured where every token before was accepted; the marginal itself does not know those tokens."


def reliability_figure(tables: Mapping[object, Reliability], group: str, title: str, dark: bool = False) -> go.Figure:
    """A reliability diagram per group (`depth` or `rank`), confidence across, agreement up, with Wilson intervals.

    The area of a point says how many pairs are in its bin. tables: at least one.
    """
    names = list(tables)
    columns = min(COLUMNS, len(names))
    rows = math.ceil(len(names) / columns)
    figure = captioned_figure(
        title,
        f"{SEEN} Bars: 95 % Wilson intervals. Larger points: more pairs in the bin. Dashed: confidence comes true.",
        "",
        "",
        dark,
        190 * rows + 140,
    )
    figure.update_layout(xaxis={"visible": False}, yaxis={"visible": False})
    ink, hair = ink_colour(dark), shade(ink_colour(dark), 0.13)
    gap_x, gap_y = 0.045, 0.24 / rows
    wide, tall = (1 - gap_x * (columns - 1)) / columns, (1 - gap_y * (rows - 1)) / rows
    for place, name in enumerate(names):
        row, column = divmod(place, columns)
        left, top = column * (wide + gap_x), 1 - row * (tall + gap_y)
        axis = {
            "range": [-0.03, 1.03],
            "showgrid": False,
            "zeroline": False,
            "showline": True,
            "linecolor": hair,
            "tickvals": [0, 0.5, 1],
            "tickfont": {"size": 10},
            "ticks": "outside",
            "ticklen": 3,
            "tickcolor": hair,
        }
        number = place + 2
        figure.update_layout(
            {
                f"xaxis{number}": {
                    **axis,
                    "domain": [left, min(left + wide, 1.0)],
                    "anchor": f"y{number}",
                    "showticklabels": row == rows - 1 or place + columns >= len(names),
                },
                f"yaxis{number}": {
                    **axis,
                    "domain": [max(top - tall, 0.0), min(top, 1.0)],
                    "anchor": f"x{number}",
                    "showticklabels": column == 0,
                },
            }
        )
        table = tables[name]
        at = {"xaxis": f"x{number}", "yaxis": f"y{number}", "showlegend": False}
        figure.add_scatter(
            x=[0, 1], y=[0, 1], mode="lines", hoverinfo="skip", line={"color": shade(ink, 0.45), "width": 1, "dash": "dash"}, **at
        )
        held = table.count > 0
        value = table.agreement[held]
        figure.add_scatter(
            x=table.confidence[held],
            y=value,
            mode="markers",
            marker={"color": ACCEPTED, "size": 3.5 + 2 * np.log10(table.count[held]), "opacity": 0.9, "line": {"width": 0}},
            error_y={
                "type": "data",
                "symmetric": False,
                "array": table.agreement_high[held] - value,
                "arrayminus": value - table.agreement_low[held],
                "color": shade(ACCEPTED, 0.5),
                "thickness": 1.1,
                "width": 0,
            },
            customdata=[
                f"said {numbers.probability(c)}, agreed {numbers.probability(a)} of {numbers.count(int(n))}"
                for c, a, n in zip(table.confidence[held], value, table.count[held])
            ],
            hovertemplate="%{customdata}<extra></extra>",
            **at,
        )
        figure.add_annotation(
            text=f"{group} {html.escape(str(name))}",
            x=left,
            y=top,
            xref="paper",
            yref="paper",
            xanchor="left",
            yanchor="bottom",
            showarrow=False,
            font={"size": 12},
        )
        figure.add_annotation(
            text=f"ECE {_error(table.error)}",
            x=left + wide,
            y=max(top - tall, 0.0),
            xref="paper",
            yref="paper",
            xanchor="right",
            yanchor="bottom",
            yshift=8,
            showarrow=False,
            font={"size": 10, "color": shade(ink, 0.62)},
        )
    figure.add_annotation(
        text="confidence (recorded marginal)", x=0.5, y=0, xref="paper", yref="paper", yshift=-34, showarrow=False, font={"size": 12}
    )
    figure.add_annotation(
        text="agreement", x=0, y=0.5, xref="paper", yref="paper", xshift=-42, textangle=-90, showarrow=False, font={"size": 12}
    )
    figure.layout.annotations[0].update(yshift=-58)
    figure.update_layout(height=figure.layout.height + 8, margin={"t": 76, "b": figure.layout.margin.b + 8, "l": 60})
    return figure


def agreement_figure(
    tables: Mapping[object, Reliability], group: str, title: str, dark: bool = False, logarithmic: bool = False
) -> go.Figure:
    """Mean confidence beside agreement for each depth or class of ranks, with Wilson intervals of the agreement.

    On a logarithmic scale, where ranks span decades, a class that never agreed has no point.
    """
    names = [str(name).replace(" to ", "\u2013") for name in tables]  # short enough to stand side by side
    confidence = np.array([t.mean_confidence for t in tables.values()], np.float64)
    agreement = np.array([t.mean_agreement for t in tables.values()], np.float64)
    counts = [t.total for t in tables.values()]
    low, high = wilson(agreement * counts, np.array(counts))
    if logarithmic:
        agreement = np.where(agreement > 0, agreement, np.nan)
    figure = captioned_figure(
        title, "Measured: solid, with 95 % Wilson intervals. What the drafter said: dashed.", group, "share of pairs", dark
    )
    figure.add_scatter(
        x=names,
        y=confidence,
        mode="lines+markers",
        name="mean confidence",
        line={"color": REJECTED, "dash": "dash", "width": 1.8},
        marker={"symbol": "diamond-open", "size": 8},
        customdata=[numbers.probability(v) for v in confidence],
        hovertemplate=group + " %{x}: said %{customdata}<extra></extra>",
    )
    figure.add_scatter(
        x=names,
        y=agreement,
        mode="lines+markers",
        name="agreement",
        line={"color": ACCEPTED, "width": 1.8},
        marker={"size": 8},
        error_y={
            "type": "data",
            "symmetric": False,
            "array": high - agreement,
            "arrayminus": agreement - low,
            "color": shade(ACCEPTED, 0.6),
            "thickness": 1.2,
            "width": 4,
        },
        customdata=[f"{numbers.probability(a)} of {numbers.count(n)}" for a, n in zip(agreement, counts)],
        hovertemplate=group + " %{x}: agreed %{customdata}<extra></extra>",
    )
    figure.update_xaxes(type="category", tickangle=0)
    if not logarithmic:
        return from_zero(figure, high)
    figure.update_yaxes(type="log", rangemode="normal", dtick=1, exponentformat="none")
    return figure


def finding(overall: Reliability) -> str:
    """Over- or under-confident, in words."""
    said, agreed, error = overall.mean_confidence, overall.mean_agreement, overall.error
    if error is None:
        return "Nothing to judge the drafter by"
    margin = 1.96 * math.sqrt(max(agreed * (1 - agreed), 1e-9) / overall.total)
    if abs(said - agreed) <= margin:
        return "On average the drafter's first choice is as good as it says"
    return "The drafter's first choice is " + ("worse" if said > agreed else "better") + " than it says"


def agreement_frame(tables: Mapping[object, Reliability], group: str) -> pd.DataFrame:
    """One row per group: pairs, mean confidence, agreement, expected calibration error."""
    return pd.DataFrame(
        [
            {group: name, "count": t.total, "confidence": t.mean_confidence, "agreement": t.mean_agreement, "ece": t.error}
            for name, t in tables.items()
        ],
        columns=[group, "count", "confidence", "agreement", "ece"],
    )


def _error(value: float | None) -> str:
    return numbers.significant(value, 2)
