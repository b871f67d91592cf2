"""The chart of drift: measured over predicted verify time, run by run since the calibration."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from html import escape

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from bastion.analysis.drift import BOUNDS, Drift, RunDrift
from bastion.figures import numbers
from bastion.figures.frame import ink_colour, shade
from bastion.figures.latency_frame import CALIBRATED, below_dates, captioned_figure
from bastion.latency import Calibration, made, moment

TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 1, 1.25, 2, 5, 10, 20, 50, 100)


def drift_figure(drift: Drift, calibration: Calibration, dark: bool = False) -> go.Figure:
    """A point for each run at its median, a bar over the middle half of its steps, the bounds as a band."""
    caption = ("Measured over predicted verify time: the median of each run\u2019s steps, the bar over their middle half. "
               f"Inside the band, {BOUNDS[0]:g} to {BOUNDS[1]:g}, the calibration holds.")
    figure = captioned_figure(drift_title(drift), caption, "time of the run, UTC", "measured / predicted", dark)
    ink = ink_colour(dark)
    figure.add_hrect(*BOUNDS, fillcolor=shade(ink, 0.06), line_width=0, layer="below")
    figure.add_hline(1, line={"color": shade(ink, 0.5), "width": 1, "dash": "dash"})
    runs = drift.runs
    figure.add_scatter(
        x=[moment(run.created) for run in runs], y=[run.median for run in runs], mode="markers", name="run", showlegend=False,
        marker={"color": CALIBRATED, "size": 8},
        error_y={"type": "data", "symmetric": False, "array": [run.high - run.median for run in runs],
                 "arrayminus": [run.median - run.low for run in runs], "color": CALIBRATED, "thickness": 1.2, "width": 3},
        customdata=[_hover(run) for run in runs], hovertemplate="%{customdata}<extra></extra>")
    low = min([0.65, *(run.low * 0.9 for run in runs if run.low > 0)])
    high = max([1.55, *(run.high * 1.1 for run in runs)])
    figure.update_yaxes(type="log", tickvals=TICKS, ticktext=[f"{tick:g}" for tick in TICKS], range=[np.log10(low), np.log10(high)])
    figure.update_xaxes(range=_time_range(drift, calibration))
    below_dates(figure)
    return figure


def drift_title(drift: Drift) -> str:
    """The finding: how long verifying takes beside what was predicted, and whether that still will do."""
    verdict = drift.verdict
    if verdict.ratio is None:
        return "No run with this calibration yet"
    said = f"Verifying takes {numbers.ratio(verdict.ratio)} what was predicted"
    return {"ok": f"{said}: ok", "drifting": f"{said}: drifting", "unknown": f"{said}: too few runs to judge"}[verdict.state]


def drift_table(drift: Drift) -> pd.DataFrame:
    """One row for each run, oldest first."""
    return pd.DataFrame([asdict(run) for run in drift.runs], columns=list(RunDrift.__slots__))


def _hover(run: RunDrift) -> str:
    return (f"{escape(run.title[:60]) or 'untitled'}<br>{escape(run.method)}, {numbers.count(run.steps)} steps<br>"
            f"median {numbers.ratio(run.median)}, middle half {numbers.ratio(run.low)} to {numbers.ratio(run.high)}")


def _time_range(drift: Drift, calibration: Calibration) -> list | None:
    """From the calibration to a little past the newest run; a minute at least, so that ticks are readable."""
    if not drift.runs:
        return None
    begin, end = made(calibration), moment(drift.runs[-1].created)
    pad = max((end - begin) * 0.06, timedelta(seconds=30))
    return [begin - pad, end + pad]
