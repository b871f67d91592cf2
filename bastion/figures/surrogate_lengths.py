"""Acceptance lengths with what the drafter's depth clipped, and groups of steps beside one another."""

from __future__ import annotations

import html
import math
import textwrap

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from bastion.analysis.surrogate_clipping import Clipping
from bastion.figures import numbers
from bastion.figures.frame import ink_colour, shade
from bastion.figures.palette import ACCEPTED, BONUS, REJECTED
from bastion.figures.surrogate_frame import captioned_figure


def lengths_figure(found: Clipping, dark: bool = False) -> go.Figure:
    """Steps by acceptance length; those as deep as the drafter drafts stand out."""
    share = found.clipped_steps / found.steps if found.steps else None
    title = (
        f"{numbers.percent(share)} of the steps stop at the drafter's depth"
        if found.clipped_steps
        else "No step is cut short by the drafter's depth"
    )
    caption = f"Measured: tau {numbers.significant(found.tau)} over {numbers.count(found.steps)} steps. {stranded_words(found)}"
    figure = captioned_figure(title, caption, "acceptance length, tokens a step", "steps", dark)
    for name, height, colour in (("ended before", found.ended, REJECTED), ("at the drafter's depth", found.clipped, ACCEPTED)):
        figure.add_bar(
            x=found.length,
            y=height,
            name=name,
            marker={"color": colour, "line": {"width": 0}},
            text=[numbers.count(int(h)) if h and colour == ACCEPTED else "" for h in height],
            textposition="outside",
            customdata=[numbers.count(int(h)) for h in height],
            hovertemplate="%{x} tokens: %{customdata} steps<extra>" + name + "</extra>",
        )
    figure.update_layout(barmode="stack", bargap=0.25, showlegend=bool(found.clipped_steps))
    figure.update_xaxes(dtick=1)
    return figure


def stranded_words(found: Clipping) -> str:
    """What deeper drafting would have added, in one sentence."""
    value, low, high = found.stranded
    if not found.reached:
        return "No step came within one of the drafter's depth, so nothing says what a deeper drafter would add."
    if not found.clipped_steps:
        return "Estimated: deeper drafting would have added nothing."
    if not math.isfinite(value):
        return "Every step that came so far went on, so what a deeper drafter would add has no estimate."
    top = numbers.significant(high, 2) if math.isfinite(high) else "no bound"
    return (
        f"Estimated: {numbers.significant(value, 2)} tokens stranded ({numbers.significant(low, 2)} to {top}), "
        f"tau {numbers.significant(found.deeper_tau)} with a deeper drafter."
    )


def groups_figure(table: pd.DataFrame, by: str, outcome: str, dark: bool = False) -> go.Figure:
    """Mean S(n) beside the mean outcome of each group. table: `surrogate_groups.grouped`, at least one row."""
    names = [html.escape(str(name)) for name in table["group"]]
    widest = table.loc[table["bias"].abs().idxmax()]
    over = "over" if widest["bias"] > 0 else "under"
    name = textwrap.shorten(str(widest["group"]), 18, placeholder="\u2026")
    title = f"{name}: {over}-estimated most, by {numbers.significant(abs(widest['bias']), 2)} tokens"
    if len(table) == 1:
        title = f"{over.capitalize()}-estimated by {numbers.significant(abs(widest['bias']), 2)} tokens a step"
    figure = captioned_figure(
        title, "Measured means over steps. Right: steps and Pearson of the group.", "tokens a step", "", dark, 180 + 30 * len(table)
    )
    rows = np.arange(len(table))[::-1]
    mean, outcomes = table["mean_surrogate"].to_numpy(), table[f"mean_{outcome}"].to_numpy()
    for place, row in enumerate(rows):
        figure.add_scatter(
            x=[mean[place], outcomes[place]],
            y=[row, row],
            mode="lines",
            hoverinfo="skip",
            showlegend=False,
            line={"color": shade(ink_colour(dark), 0.3), "width": 2},
        )
    for name, x, colour, symbol in (("surrogate S(n)", mean, BONUS, "diamond-open"), (outcome, outcomes, ACCEPTED, "circle")):
        figure.add_scatter(
            x=x,
            y=rows,
            mode="markers",
            name=name,
            marker={"color": colour, "size": 9, "symbol": symbol},
            customdata=[f"{label}: {numbers.significant(v)}" for label, v in zip(names, x)],
            hovertemplate="%{customdata} " + name + "<extra></extra>",
        )
    for place, row in enumerate(rows):
        r = table["pearson"].iloc[place]
        text = f"{numbers.count(int(table['steps'].iloc[place]))}   {f'{r:.2f}' if math.isfinite(r) else numbers.NONE}"
        figure.add_annotation(
            text=text,
            x=1,
            xref="paper",
            y=row,
            yref="y",
            xanchor="right",
            showarrow=False,
            font={"size": 11, "color": shade(ink_colour(dark), 0.62)},
        )
    top = float(max(mean.max(), outcomes.max()))
    figure.update_xaxes(range=[0, top * 1.25])
    figure.update_yaxes(
        tickvals=rows,
        ticktext=names,
        range=[-0.6, len(table) - 0.4],
        gridcolor="rgba(0,0,0,0)",
        rangemode="normal",
        automargin=True,
        ticks="",
        showline=False,
    )
    return figure
