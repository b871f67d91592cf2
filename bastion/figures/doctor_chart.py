"""The doctor's chart: what each change does to tau."""

from __future__ import annotations

from html import escape
from textwrap import wrap
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from bastion.figures import numbers
from bastion.figures.doctor_words import verdict
from bastion.figures.frame import house_figure, ink_colour, shade
from bastion.figures.palette import ACCEPTED, REJECTED

ROW = 30  # pixels of one bar
NAMES = 190  # pixels left of the bars
NAME_LETTERS = 28  # in a line of a bar's name, of which there are two at most


def doctor_figure(report: dict[str, Any], dark: bool = False) -> go.Figure:
    """Gain of tau under each change that makes a difference, with its interval; faults in colour."""
    tried = [one for one in report["tried"] if one["tau_gain"] is not None]
    count = len(report["findings"])
    title = "No change raises tau: no fault found" if not count else f"Undoing {count} fault{'s' * (count > 1)} raises tau"
    figure = house_figure(title, f"Measured at up to {numbers.count(report['positions'])} positions; whiskers: {report['confidence']:.0%} interval.",
                          "gain of tau, tokens a step", "", dark)
    faults = [one["verdict"] in ("fault", "slight") for one in tried]
    gains = [one["tau_gain"] for one in tried]
    figure.add_bar(
        x=gains, y=list(range(len(tried))), orientation="h",
        marker={"color": [ACCEPTED if fault else shade(REJECTED, 0.6) for fault in faults], "line": {"width": 0}},
        error_x={"type": "data", "symmetric": False, "array": [one["tau_interval"][1] - one["tau_gain"] for one in tried],
                 "arrayminus": [one["tau_gain"] - one["tau_interval"][0] for one in tried], "thickness": 1, "width": 3,
                 "color": ink_colour(dark)},
        customdata=[(escape(f"{one['test']}: {one['change']}"), verdict(one)) for one in tried],
        hovertemplate="%{customdata[0]}<br>%{x:+.2f}, %{customdata[1]}<extra></extra>", showlegend=False)
    figure.update_yaxes(autorange="reversed", rangemode="normal", showgrid=False, tickvals=list(range(len(tried))), ticktext=[_name(one) for one in tried])
    figure.update_xaxes(zeroline=True, zerolinewidth=1, zerolinecolor=ink_colour(dark))
    # title and caption begin where the names do, so that neither is cut off on a narrow page
    figure.update_layout(height=160 + ROW * len(tried), bargap=0.45, margin={"l": NAMES}, title={"x": 0, "xref": "container", "pad": {"l": 2}})
    figure.update_annotations(xshift=2 - NAMES)
    return figure


def _name(one: dict[str, Any]) -> str:
    lines = wrap(f"{one['test']}: {one['change']}", NAME_LETTERS, max_lines=2, placeholder=" …")
    return "<br>".join(map(escape, lines))


def doctor_table(report: dict[str, Any]) -> pd.DataFrame:
    """One row for each change tried, at full precision."""
    return pd.DataFrame([{
        "test": one["test"], "change": one["change"], "verdict": one["verdict"], "tau_before": one["tau_before"], "tau_after": one["tau_after"],
        "tau_gain": one["tau_gain"], "tau_low": (one["tau_interval"] or [None, None])[0], "tau_high": (one["tau_interval"] or [None, None])[1],
        "nats_gain": one["nats_gain"], "positions": one["positions"], "todo": one["todo"]} for one in report["tried"]])
