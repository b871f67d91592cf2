"""Temperatures per depth, and what they would have changed: before against after."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go

from bastion.analysis.reliability import Reliability
from bastion.analysis.temperature import DepthTemperatures
from bastion.figures import numbers
from bastion.figures.frame import from_zero, ink_colour, shade
from bastion.figures.palette import ACCEPTED, REJECTED
from bastion.figures.surrogate_frame import captioned_figure


def temperatures_figure(found: DepthTemperatures, how: str, dark: bool = False) -> go.Figure:
    """One temperature per depth, beside the 1 that changes nothing."""
    fitted = found.temperature[found.fitted]
    mean = float(np.average(fitted, weights=found.outcomes[found.fitted])) if len(fitted) else None
    title = (
        "Too few outcomes to fit a temperature"
        if mean is None
        else (
            ("Nearly right as it is" if abs(mean - 1) < 0.1 else "Too sure of itself" if mean > 1 else "Not sure enough")
            + f": mean temperature {numbers.significant(mean)}"
        )
    )
    figure = captioned_figure(
        title,
        f"Fitted on {how}, on top of what the drafter applied before recording. Hollow: too few outcomes, left at 1.",
        "depth",
        "temperature",
        dark,
    )
    figure.add_hline(1, line={"color": shade(ink_colour(dark), 0.45), "width": 1, "dash": "dash"})
    depths = np.arange(1, len(found.temperature) + 1)
    for mask, name, symbol in ((found.fitted, "fitted", "circle"), (~found.fitted, "left at 1", "circle-open")):
        if mask.any():
            figure.add_scatter(
                x=depths[mask],
                y=found.temperature[mask],
                mode="markers",
                name=name,
                showlegend=False,
                marker={"color": ACCEPTED if symbol == "circle" else REJECTED, "size": 10, "symbol": symbol},
                customdata=[
                    f"{numbers.significant(t)} from {numbers.count(int(n))} outcomes"
                    for t, n in zip(found.temperature[mask], found.outcomes[mask])
                ],
                hovertemplate="depth %{x}: %{customdata}<extra>" + name + "</extra>",
            )
    figure.update_xaxes(dtick=1, range=[0.5, len(depths) + 0.5])
    return from_zero(figure, [*found.temperature, 1.6])


def errors_figure(before: Mapping[object, Reliability], after: Mapping[object, Reliability], dark: bool = False) -> go.Figure:
    """Expected calibration error of each depth's first choice on the steps that were not fitted to, before and after."""
    names = [str(name) for name in before]
    errors = [np.array([tables[name].error for name in before], np.float64) for tables in (before, after)]
    counts = np.array([table.total for table in before.values()])
    total = [float((e * counts).sum() / counts.sum()) for e in errors]
    said = [numbers.significant(value, 2) for value in total]
    change = f"stays at {said[0]}" if said[0] == said[1] else f"{'falls' if total[1] < total[0] else 'rises'} from {said[0]} to {said[1]}"
    figure = captioned_figure(
        f"The calibration error {change}",
        "Measured on the steps that were not fitted to; first choices. Mean over depths, weighted by reached steps.",
        "depth",
        "expected calibration error",
        dark,
    )
    for label, values, colour, symbol, dash in (
        ("before", errors[0], REJECTED, "diamond-open", "dash"),
        ("after", errors[1], ACCEPTED, "circle", "solid"),
    ):
        figure.add_scatter(
            x=names,
            y=values,
            mode="lines+markers",
            name=label,
            line={"color": colour, "dash": dash, "width": 1.8},
            marker={"symbol": symbol, "size": 8},
            customdata=[f"{numbers.significant(v)} over {numbers.count(int(n))} steps" for v, n in zip(values, counts)],
            hovertemplate="depth %{x}: %{customdata}<extra>" + label + "</extra>",
        )
    figure.update_xaxes(type="category")
    return from_zero(figure, [*errors[0], *errors[1]])


def nodes_figure(before: np.ndarray, after: np.ndarray, dark: bool = False) -> go.Figure:
    """Tree sizes that the stop rule chose, and those it would have chosen. int64 arrays [r], r > 0."""
    changed = float((before != after).mean())
    figure = captioned_figure(
        f"{numbers.percent(changed)} of trees change size: mean {numbers.significant(before.mean())} to "
        f"{numbers.significant(after.mean())} nodes",
        "Before: recorded. After: counterfactual, the same marginals at the fitted temperatures.",
        "nodes, root included",
        "steps",
        dark,
    )
    sizes = np.arange(1, int(max(before.max(), after.max())) + 1)
    for name, values, colour, opacity in (("before", before, REJECTED, 0.55), ("after", after, ACCEPTED, 1.0)):
        counts = np.bincount(values, minlength=len(sizes) + 1)[1:]
        figure.add_bar(
            x=sizes,
            y=counts,
            name=name,
            marker={"color": shade(colour, opacity), "line": {"width": 0}},
            hovertemplate="%{x} nodes: %{y} steps<extra>" + name + "</extra>",
        )
    figure.update_layout(barmode="group", bargap=0.2)
    return figure
