"""Surrogate against outcome: hexagons where points would lie on one another, points where they would not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from bastion.analysis.surrogate_correlation import PUBLISHED_PEARSON, Correlation, Estimate
from bastion.figures import numbers
from bastion.figures.frame import ink_colour, shade
from bastion.figures.palette import ACCEPTED, BONUS, GROUND, REJECTED, method_colour
from bastion.figures.surrogate_frame import captioned_figure

DENSE = 400
"""Steps from which on the scatter is drawn as hexagons."""
JITTER = 0.16  # tokens, in the drawing only: outcomes are whole numbers and would hide one another
MARKS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon")

OUTCOMES = {"emitted": "tokens emitted", "walked": "tokens accepted, bonus included"}


def within(estimate: Estimate) -> str:
    """`0.74, 0.68 to 0.80 with 95 %`."""
    value = _correlation(estimate.value)
    if not math.isfinite(estimate.low):
        return value
    return f"{value}, {_correlation(estimate.low)} to {_correlation(estimate.high)}"


def scatter_figure(frame: pd.DataFrame, found: Correlation | None, outcome: str = "emitted", dark: bool = False) -> go.Figure:
    """Each step's S(n) against what it gave. frame: rows of `step_frame`, at least one."""
    title = (
        f"Surrogate and outcome: Pearson {_correlation(found.pearson.value)} over {numbers.count(found.steps)} steps"
        if found
        else "Surrogate and outcome of each step"
    )
    dense = len(frame) >= DENSE
    caption = "Measured. Dashed: S(n) equals the outcome. " + (
        "Each hexagon is shaded by the steps in it; its row is a whole number of tokens."
        if dense
        else "Points are moved a little up or down so that none hides another; hover for exact values."
    )
    figure = captioned_figure(title, caption, "surrogate S(n), tokens expected", OUTCOMES[outcome], dark, 390)
    top = float(max(frame["surrogate"].max(), frame[outcome].max())) + 0.5
    (_hexagons if dense else _points)(figure, frame, outcome, dark)
    figure.add_scatter(
        x=[1, top],
        y=[1, top],
        mode="lines",
        hoverinfo="skip",
        showlegend=False,
        line={"color": shade(ink_colour(dark), 0.55), "width": 1.2, "dash": "dash"},
    )
    figure.update_xaxes(range=[0.6, float(frame["surrogate"].max()) + 0.4])
    figure.update_yaxes(range=[0.3, float(frame[outcome].max()) + 0.7], dtick=1)
    return figure


def hexagon_counts(x: np.ndarray, y: np.ndarray, width: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(centre x, centre y, count) of the occupied cells of a hexagonal lattice, `width` wide, a row per whole y.

    Odd rows are shifted by half a cell. y are whole numbers, so that each point lies on the middle line of its
    cell, where the nearest centre of its own row is the cell it is in.
    """
    rows = np.asarray(y, np.int64)
    shift = np.where(rows % 2, 0.5, 0.0)
    column = np.floor(np.asarray(x) / width + 0.5 - shift).astype(np.int64)
    cells, counts = np.unique(np.stack([rows, column]), axis=1, return_counts=True)
    return (cells[1] + np.where(cells[0] % 2, 0.5, 0.0)) * width, cells[0].astype(np.float64), counts


def _hexagons(figure: go.Figure, frame: pd.DataFrame, outcome: str, dark: bool) -> None:
    x, y = frame["surrogate"].to_numpy(), frame[outcome].to_numpy()
    width = max(float(np.ptp(x)) / 28, 1e-6)
    cx, cy, counts = hexagon_counts(x, y, width)
    scale = _scale(dark)
    level = np.log10(counts)
    most = max(float(level.max()), 1e-9)
    colours = sample_colorscale(scale, [min(float(v) / most, 1.0) for v in level])
    half, third = width / 2, 1 / 3
    corners = [(0, 2 * third), (half, third), (half, -third), (0, -2 * third), (-half, -third), (-half, third)]
    edge = {"width": 0.5, "color": GROUND["dark" if dark else "light"]}
    figure.update_layout(
        shapes=[
            {
                "type": "path",
                "path": "M" + "L".join(f"{cx[place] + dx:.6f},{cy[place] + dy:.6f}" for dx, dy in corners) + "Z",
                "fillcolor": colour,
                "line": edge,
                "layer": "between",
            }
            for place, colour in enumerate(colours)
        ]
    )
    marks = [10.0**power for power in range(int(most) + 1)] + ([float(counts.max())] if most % 1 > 0.15 else [])
    figure.add_scatter(
        x=cx,
        y=cy,
        mode="markers",
        showlegend=False,
        customdata=[numbers.count(int(c)) for c in counts],
        marker={
            "color": level,
            "colorscale": scale,
            "cmin": 0,
            "cmax": most,
            "size": 14,
            "opacity": 0,
            "showscale": True,
            "colorbar": {
                "title": {"text": "steps", "side": "top", "font": {"size": 11}},
                "thickness": 9,
                "outlinewidth": 0,
                "len": 0.75,
                "tickvals": [math.log10(m) for m in marks],
                "ticktext": [numbers.count(int(m)) for m in marks],
                "tickfont": {"size": 11},
            },
        },
        hovertemplate="S(n) about %{x:.2f}, " + outcome + " %{y:.0f}: %{customdata} steps<extra></extra>",
    )


def _points(figure: go.Figure, frame: pd.DataFrame, outcome: str, dark: bool) -> None:
    # The golden ratio's multiples spread evenly whatever the order, and are the same at every drawing.
    offset = pd.Series((np.arange(len(frame)) * 0.6180339887498949 % 1 - 0.5) * 2 * JITTER, index=frame.index)
    for place, (method, part) in enumerate(frame.groupby("method", sort=True)):
        figure.add_scatter(
            x=part["surrogate"],
            y=part[outcome] + offset[part.index],
            mode="markers",
            name=_escaped(method),
            marker={
                "color": method_colour(method, dark),
                "size": 6,
                "opacity": 0.65,
                "symbol": MARKS[place % len(MARKS)],
                "line": {"width": 0},
            },
            customdata=np.stack(
                [part["surrogate"].map(numbers.significant), part[outcome], part["step"], part["run"].map(_escaped)], axis=-1
            ),
            hovertemplate="S(n) %{customdata[0]}, "
            + outcome
            + " %{customdata[1]}<br>step %{customdata[2]} of %{customdata[3]}<extra></extra>",
        )


def correlation_figure(rows: Sequence[tuple[str, Correlation]], note: str, dark: bool = False, title: str | None = None) -> go.Figure:
    """Both correlations of each row with their intervals, beside the band that the paper claims for Pearson.

    rows: (name, correlation), drawn from the top; note: how the intervals were made, or why there are none.
    """
    low, high = PUBLISHED_PEARSON
    first = rows[0][1].pearson
    figure = captioned_figure(
        title or _claim(first),
        f"Measured, {_with_intervals(rows)}: {note}. Band: the published claim "
        f"for Pearson, {low} to {high} (BASTION, arXiv 2605.29727).",
        "correlation",
        "",
        dark,
        195 + 44 * len(rows),
    )
    figure.add_vrect(low, high, fillcolor=shade(BONUS, 0.38 if dark else 0.22), line_width=0, layer="below")
    for name, colour, symbol, shift in (("Pearson", ACCEPTED, "circle", 0.14), ("Spearman", REJECTED, "diamond-open", -0.14)):
        estimates = [getattr(found, name.lower()) for _, found in rows]
        value, lows, highs = (np.array([getattr(e, part) for e in estimates]) for part in ("value", "low", "high"))
        figure.add_scatter(
            x=value,
            y=[len(rows) - 1 - place + shift for place in range(len(rows))],
            mode="markers",
            name=name,
            marker={"color": colour, "size": 9, "symbol": symbol},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": np.nan_to_num(highs - value),
                "arrayminus": np.nan_to_num(value - lows),
                "color": colour,
                "thickness": 1.6,
                "width": 4,
            },
            customdata=[
                f"{_escaped(label)}: {name} {within(e)}, {numbers.count(found.steps)} steps" for (label, found), e in zip(rows, estimates)
            ],
            hovertemplate="%{customdata}<extra></extra>",
        )
    everything = [
        bound for _, found in rows for e in (found.pearson, found.spearman) for bound in (e.value, e.low) if math.isfinite(bound)
    ]
    least = min(0.0, math.floor(10 * min(everything)) / 10)
    figure.update_xaxes(range=[least, 1.0], dtick=0.2)
    figure.update_yaxes(
        tickvals=[len(rows) - 1 - place for place in range(len(rows))],
        ticktext=[_escaped(name) for name, _ in rows],
        range=[-0.6, len(rows) - 0.4],
        gridcolor="rgba(0,0,0,0)",
        rangemode="normal",
        automargin=True,
        ticks="",
        showline=False,
    )
    return figure


def _with_intervals(rows: Sequence[tuple[str, Correlation]]) -> str:
    return "without intervals" if all(found.too_few for _, found in rows) else "with 95 % bootstrap intervals"


def _claim(found: Estimate) -> str:
    low, high = PUBLISHED_PEARSON
    if math.isfinite(found.low) and found.high < low:
        return "Pearson is below the published claim"
    if math.isfinite(found.low) and found.low > high:
        return "Pearson is above the published claim"
    if not math.isfinite(found.low):
        return "Pearson beside the published claim"
    return "Pearson's interval reaches the published claim"


def _correlation(value: float) -> str:
    return numbers.NONE if not math.isfinite(value) else f"{value:.2f}".replace("-", numbers.MINUS)


def _escaped(text: object) -> str:
    """Plotly reads tags such as <b> in names and hover texts."""
    import html

    return html.escape(str(text))


def _scale(dark: bool) -> list[list[object]]:
    return [[0, "#16324A"], [0.5, "#1F7DB8"], [1, "#D9EEFF"]] if dark else [[0, "#D3E6F3"], [0.5, "#4C9DCC"], [1, "#00365A"]]
