"""Charts of a calibration: verify time against nodes, and what each estimator is off by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from bastion.analysis.latency_estimators import Residuals, crossovers, estimator_errors, residuals
from bastion.figures import numbers
from bastion.figures.frame import ink_colour, shade
from bastion.figures.latency_frame import CALIBRATED, captioned_figure, estimator_colour, node_axis, room_for_legend, time_axis
from bastion.figures.latency_words import estimator_name
from bastion.figures.palette import OKABE_ITO, REJECTED
from bastion.latency import Calibration, build_estimator

PANELS_A_ROW = 3
PANEL_HEIGHT = 240
TOP = 122   # pixels: title, legend (two lines in a narrow window) and panel names
BESIDE = 1.05   # from one estimator's points to the next's, at the same number of nodes
MEMORY, COMPUTE = OKABE_ITO[3], OKABE_ITO[1]


@dataclass(frozen=True, slots=True)
class _Curve:
    name: str
    seconds: np.ndarray
    colour: str
    dash: str
    width: float


def verify_figure(calibration: Calibration, contexts: Sequence[int], logarithmic: bool = True, dark: bool = False) -> go.Figure:
    """A panel for each context: probes as points, both rooflines and the two branches as lines.

    Held-out probes are hollow diamonds; a bar across a roofline marks where compute overtakes memory.
    """
    columns = min(len(contexts), PANELS_A_ROW)
    title = _verify_title(calibration, contexts)
    caption = ("Measured: points, each the median of repeated probes; hollow diamonds were held out from the fit. "
               "Predicted: lines. A bar across a line: from this many nodes on, compute takes longer than memory.")
    figure = _panels(captioned_figure(title, caption, "nodes", "verify time, ms", dark), len(contexts), columns, logarithmic, calibration.max_probed_nodes)
    for place, context in enumerate(contexts):
        _panel(figure, calibration, context, {"row": place // columns + 1, "col": place % columns + 1}, place == 0, logarithmic, dark)
    figure.update_yaxes(**time_axis(logarithmic, [value for trace in figure.data for value in trace.y]))
    _name_panels(figure, contexts)
    return figure


def _verify_title(calibration: Calibration, contexts: Sequence[int]) -> str:
    """How far off the calibrated roofline is at the contexts on show, and whether calibrating helped there."""
    errors = {one.estimator: one for one in estimator_errors(calibration, contexts)}
    fitted, raw = errors["roofline"].rmse, errors["raw"].rmse
    if fitted is None:
        return "Verify time by nodes"
    words = f"Off by {numbers.seconds(fitted)} RMSE, calibrated"
    return words + (f"; raw by {numbers.seconds(raw)}" if raw is not None else "")


def verify_table(calibration: Calibration, contexts: Sequence[int]) -> pd.DataFrame:
    """Every probe at these contexts, with both branches and the prediction of each estimator; seconds."""
    rows = residuals(calibration)
    first, line = rows[0], calibration.roofline
    table = pd.DataFrame({
        "context": first.context, "nodes": first.nodes, "held_out": first.held_out, "measured_seconds": first.measured,
        "memory_branch_seconds": line.memory_seconds(first.nodes, first.context),
        "compute_branch_seconds": line.compute_seconds(first.nodes, first.context),
        **{f"{row.estimator}_seconds": row.predicted for row in rows}})
    return table[table["context"].isin(list(contexts))].reset_index(drop=True)


def residual_figure(calibration: Calibration, contexts: Sequence[int], dark: bool = False) -> go.Figure:
    """Predicted less measured at each probe, by nodes, for each estimator."""
    rows = residuals(calibration)
    shown = np.isin(rows[0].context, list(contexts))
    middle = {row.estimator: float(np.median(row.residual[shown])) if shown.any() else None for row in rows}
    title = "Off by, median: " + ", ".join(f"{numbers.seconds(middle[name])} {_short(name)}" for name in ("roofline", "raw"))
    caption = ("Predicted less measured, at the contexts chosen above; below 0 the estimator asks too little. "
               "Circles were fitted, hollow diamonds held out; estimators stand side by side at each size.")
    figure = captioned_figure(title, caption, "nodes", "predicted \u2212 measured, ms", dark)
    figure.add_hline(0, line={"color": shade(ink_colour(dark), 0.5), "width": 1})
    for place, row in enumerate(rows):
        _residual_points(figure, row, shown, estimator_colour(row.estimator, place), BESIDE ** (place - (len(rows) - 1) / 2))
    room_for_legend(figure, len(rows))
    figure.update_xaxes(**node_axis(True, calibration.max_probed_nodes))
    figure.update_yaxes(rangemode="normal")
    return figure


def residual_table(calibration: Calibration, contexts: Sequence[int]) -> pd.DataFrame:
    """One row for each estimator and probe at these contexts; seconds."""
    tables = [pd.DataFrame({"estimator": row.estimator, "context": row.context, "nodes": row.nodes, "held_out": row.held_out,
                            "measured_seconds": row.measured, "predicted_seconds": row.predicted, "residual_seconds": row.residual})
              for row in residuals(calibration)]
    table = pd.concat(tables, ignore_index=True)
    return table[table["context"].isin(list(contexts))].reset_index(drop=True)


def _panel(figure: go.Figure, calibration: Calibration, context: int, place: dict[str, int], legend: bool, logarithmic: bool,
           dark: bool) -> None:
    most = calibration.max_probed_nodes
    nodes = np.unique(np.geomspace(1, max(most, 1), 120).round().astype(np.int64))
    line, raw = calibration.roofline, build_estimator("raw", calibration)
    curves = (_Curve("raw roofline", raw.seconds(nodes, context), REJECTED, "dashdot", 1.4),
              _Curve("memory branch", line.memory_seconds(nodes, context), MEMORY, "dot", 1.4),
              _Curve("compute branch", line.compute_seconds(nodes, context), COMPUTE, "dot", 1.4),
              _Curve("calibrated roofline", line.seconds(nodes, context), CALIBRATED, "dash", 2.0))
    for curve in curves:
        figure.add_scatter(x=nodes, y=1e3 * np.asarray(curve.seconds), mode="lines", name=curve.name, legendgroup=curve.name,
                           showlegend=legend, line={"color": curve.colour, "dash": curve.dash, "width": curve.width},
                           customdata=[numbers.seconds(v) for v in np.asarray(curve.seconds)],
                           hovertemplate="%{x} nodes: %{customdata}<extra>" + curve.name + "</extra>", **place)
    for held, name, symbol in ((False, "measured", "circle"), (True, "measured, held out", "diamond-open")):
        points = [(n, s) for (n, c, s), out in zip(calibration.probes, calibration.held_out, strict=True) if c == context and out == held]
        figure.add_scatter(x=[n for n, _ in points], y=[1e3 * s for _, s in points], mode="markers", name=name, legendgroup=name,
                           showlegend=legend, marker={"color": ink_colour(dark), "symbol": symbol, "size": 7, "line": {"width": 1.5}},
                           customdata=[numbers.seconds(s) for _, s in points],
                           hovertemplate="%{x} nodes: %{customdata}<extra>" + name + "</extra>", **place)
    _crossings(figure, calibration, context, place, logarithmic)


def _crossings(figure: go.Figure, calibration: Calibration, context: int, place: dict[str, int], logarithmic: bool) -> None:
    """The size where compute overtakes memory, as a bar across the roofline with its number."""
    for name, colour, shift in (("raw", REJECTED, -20), ("roofline", CALIBRATED, 22)):
        at = next(one for one in crossovers(calibration, name) if one.context == context)
        if at.nodes is None:
            continue
        milliseconds = 1e3 * float(build_estimator(name, calibration).seconds(at.nodes, context))
        figure.add_scatter(x=[at.nodes], y=[milliseconds], mode="markers", showlegend=False, text=[numbers.count(at.nodes)], cliponaxis=False,
                           marker={"symbol": "line-ns", "size": 16, "line": {"color": colour, "width": 2}},
                           hovertemplate=f"{estimator_name(name)}: compute overtakes memory at %{{x}} nodes<extra></extra>", **place)
        x, y = (np.log10(at.nodes), np.log10(milliseconds)) if logarithmic else (at.nodes, milliseconds)
        figure.add_annotation(x=x, y=y, text=numbers.count(at.nodes), yshift=shift, showarrow=False, font={"color": colour, "size": 12}, **place)


def _panels(figure: go.Figure, panels: int, columns: int, logarithmic: bool, most: int) -> go.Figure:
    """The one chart cut into equal panels with the same axes."""
    rows = -(-panels // columns)
    styles = {axis: {k: v for k, v in figure.layout[axis].to_plotly_json().items() if k not in ("anchor", "domain", "title", "rangemode")}
              for axis in ("xaxis", "yaxis")}
    titles = figure.layout.xaxis.title.to_plotly_json(), figure.layout.yaxis.title.to_plotly_json()
    inner = rows * PANEL_HEIGHT
    figure.set_subplots(rows=rows, cols=columns, shared_xaxes="all", shared_yaxes="all", horizontal_spacing=0.03,
                        vertical_spacing=36 / inner if rows > 1 else 0)
    figure.update_xaxes(**styles["xaxis"], **node_axis(logarithmic, most))
    figure.update_yaxes(**styles["yaxis"])
    figure.update_xaxes(title=None)
    for column in range(1, columns + 1):   # the axis is labelled under the lowest panel of each column
        row = rows if (rows - 1) * columns + column <= panels else rows - 1
        figure.update_xaxes(title=titles[0], showticklabels=True, row=row, col=column)
    for row in range(1, rows + 1):
        figure.update_yaxes(title=titles[1], row=row, col=1)
    figure.update_layout(height=inner + TOP + figure.layout.margin.b, margin={"t": TOP, "l": 64}, legend={"y": 1 + 24 / inner})
    return figure


def _name_panels(figure: go.Figure, contexts: Sequence[int]) -> None:
    for place, context in enumerate(contexts):
        number = "" if place == 0 else str(place + 1)
        figure.add_annotation(text=f"context {numbers.count(context)}", x=0, xref=f"x{number} domain", xanchor="left", y=1, yref=f"y{number} domain",
                              yanchor="bottom", showarrow=False, font={"size": 12, "weight": 600})


def _residual_points(figure: go.Figure, row: Residuals, shown: np.ndarray, colour: str, beside: float) -> None:
    """beside: what node counts are multiplied by, on a logarithmic axis a shift."""
    name = estimator_name(row.estimator)
    for held, symbol in ((False, "circle"), (True, "diamond-open")):
        keep = shown & (row.held_out == held)
        figure.add_scatter(x=row.nodes[keep] * beside, y=1e3 * row.residual[keep], mode="markers", name=name, legendgroup=name,
                           showlegend=not held, marker={"color": colour, "symbol": symbol, "size": 5, "line": {"width": 1 + held, "color": colour}},
                           customdata=[f"{numbers.count(int(n))} nodes, context {numbers.count(int(c))}: {numbers.seconds(r)}"
                                       for n, c, r in zip(row.nodes[keep], row.context[keep], row.residual[keep], strict=True)],
                           hovertemplate="%{customdata}<extra>" + name + "</extra>")


def _short(name: str) -> str:
    return estimator_name(name).removesuffix(" roofline")
