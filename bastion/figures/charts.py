"""Plotly charts of a whole run, for reading at rest and for download.

Every chart has a title that states what was found, axes with units, and a caption that says what
is measured and what is predicted. Figures that must follow the selected step are drawn by the
tree component instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from bastion.analysis import acceptance_histogram as lengths_histogram
from bastion.analysis import decode_steps, depth_limit_share, latency_table, progress, speedup, tau
from bastion.errors import UserError
from bastion.figures import numbers
from bastion.figures.frame import from_zero, house_figure, ink_colour, shade
from bastion.figures.palette import ACCEPTED, PARTS, REJECTED, method_colour, method_dash
from bastion.step import StepRecord


def speed_figure(steps: Sequence[StepRecord], plain_tokens_per_second: float | None = None, measured: bool = True,
                 method: str = "bastion", dark: bool = False) -> go.Figure:
    """Tokens per second so far after each step, and plain decoding's as a level.

    measured: whether plain decoding was measured on the same prompt; when not, it is said to be
    estimated and drawn dashed. Raises UserError for a run without decode steps.
    """
    _require(steps)
    so_far = progress(steps)
    last = float(so_far.tokens_per_second[-1])
    times = speedup(steps, plain_tokens_per_second)
    title = numbers.rate(last) + (f", {numbers.ratio(times)} plain decoding" if times else "")
    caption = "Measured, prefill left out."
    if times:
        caption += " Plain decoding: " + ("measured on the same prompt." if measured else "estimated, not measured.")
    figure = house_figure(title, caption, "step", "tokens/s so far", dark)
    if times:
        figure.add_hline(plain_tokens_per_second, line={"color": REJECTED, "width": 1.2, "dash": "solid" if measured else "dash"},
                         annotation={"text": "plain" if measured else "plain, estimated", "font": {"color": REJECTED}},
                         annotation_position="bottom right")
    figure.add_scatter(x=so_far.step, y=so_far.tokens_per_second, mode="lines", name=method,
                       line={"color": method_colour(method, dark), "dash": method_dash(method), "width": 2},
                       customdata=[numbers.rate(v) for v in so_far.tokens_per_second],
                       hovertemplate="step %{x}: %{customdata}<extra></extra>")
    return from_zero(figure, [*so_far.tokens_per_second, plain_tokens_per_second or 0])


def acceptance_histogram(steps: Sequence[StepRecord], drafter_depth: int | None = None, dark: bool = False) -> go.Figure:
    """Steps by acceptance length; those that hit the drafter's depth limit stand out and are counted.

    Raises UserError for a run without decode steps.
    """
    _require(steps)
    counts = lengths_histogram(steps, None if drafter_depth is None else drafter_depth + 1)
    lengths = np.arange(1, len(counts))
    share = depth_limit_share(steps, drafter_depth)
    title = f"tau {numbers.significant(tau(steps))} over {numbers.counted(len(decode_steps(steps)), 'step')}"
    caption = "Measured."
    if share is not None:
        caption += f" {numbers.percent(share)} of the steps hit the drafter\u2019s depth limit."
    figure = house_figure(title, caption, "acceptance length, tokens a step", "steps", dark)
    limited = _limited(steps, drafter_depth, len(counts))[1:]
    for name, height, colour in (("hit the depth limit", limited, ACCEPTED), ("ended before", counts[1:] - limited, REJECTED)):
        if height.any():
            figure.add_bar(x=lengths, y=height, name=name, marker={"color": colour, "line": {"width": 0}},
                           hovertemplate="%{x} tokens: %{y} steps<extra>" + name + "</extra>")
    figure.update_layout(barmode="stack", bargap=0.25, showlegend=bool(limited.any()))
    figure.update_xaxes(dtick=1)
    return figure


def _limited(steps: Sequence[StepRecord], depth: int | None, size: int) -> np.ndarray:
    """Steps by acceptance length, counting only those whose accepted path is as deep as the drafter drafts."""
    if not depth:
        return np.zeros(size, np.int64)
    lengths = [len(step.emitted) for step in decode_steps(steps) if len(step.accepted) - 1 >= depth]
    return np.bincount(np.array(lengths, np.int64), minlength=size)


def latency_figure(steps: Sequence[StepRecord], dark: bool = False) -> go.Figure:
    """Verify time of each step: measured solid, predicted dashed. Raises UserError without decode steps."""
    _require(steps)
    rounds, table = decode_steps(steps), latency_table(steps)
    title = "Verify time of each step"
    caption = "Measured: solid."
    if table.rmse is not None:
        title = f"Verify time was predicted within {numbers.seconds(table.rmse)} RMSE"
        caption = "Measured: solid. Predicted: dashed."
    figure = house_figure(title, caption, "step", "verify time, ms", dark)
    measured = [1e3 * step.seconds.verify for step in rounds]
    for name, x, y, dash in (("measured", [step.index for step in rounds], measured, "solid"),
                             ("predicted", table.step, 1e3 * table.predicted, "dash")):
        if len(x):
            figure.add_scatter(x=x, y=y, mode="lines", name=name,
                               line={"color": ink_colour(dark) if dash == "solid" else REJECTED, "dash": dash, "width": 1.6},
                               customdata=[numbers.seconds(v / 1e3) for v in y],
                               hovertemplate="step %{x}: %{customdata}<extra>" + name + "</extra>")
    return from_zero(figure, [*measured, *(1e3 * table.predicted)])


def parts_figure(steps: Sequence[StepRecord], dark: bool = False) -> go.Figure:
    """The four stages of each step, stacked. Raises UserError for a run without decode steps."""
    _require(steps)
    rounds = decode_steps(steps)
    total = sum(step.seconds.total for step in rounds)
    verify = sum(step.seconds.verify for step in rounds)
    title = f"Verify takes {numbers.percent(verify / total if total else None)} of the time"
    figure = house_figure(title, "Measured, device synchronised at each border.", "step", "step time, ms", dark)
    for part, opacity in PARTS.items():
        values = [1e3 * getattr(step.seconds, part) for step in rounds]
        figure.add_bar(x=[step.index for step in rounds], y=values, name=part,
                       marker={"color": shade(ink_colour(dark), opacity), "line": {"width": 0}},
                       customdata=[numbers.seconds(v / 1e3) for v in values],
                       hovertemplate="step %{x}: %{customdata}<extra>" + part + "</extra>")
    figure.update_layout(barmode="stack", bargap=0.15)
    return figure


def _require(steps: Sequence[StepRecord]) -> None:
    if not decode_steps(steps):
        raise UserError("This run has no decode step yet: let it decode at least one token after the prompt.")
