"""The chart of held-out errors, with the published claim as a reference."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from bastion.analysis.latency_estimators import PUBLISHED_REDUCTION, estimator_errors, reduction
from bastion.figures import numbers
from bastion.figures.frame import from_zero, ink_colour
from bastion.figures.latency_frame import captioned_figure, estimator_colour, room_for_legend
from bastion.figures.latency_words import estimator_name
from bastion.latency import Calibration

CLAIM = "published claim"


def error_figure(calibration: Calibration, dark: bool = False) -> go.Figure:
    """Held-out RMSE of each estimator, over all contexts and at each; the claim as hollow bars of their own."""
    errors = estimator_errors(calibration)
    by_name = {error.estimator: error.rmse for error in errors}
    share = reduction(by_name["raw"], by_name["roofline"])
    caption = ("Measured on probes that the fit did not see: root mean square error; those that learn while decoding as they begin. Hollow bars are no measurement: where the "
               "published claim, 87 to 92\u2009% less than raw, would put the calibrated error.")
    figure = captioned_figure(error_title(share), caption, "", "RMSE, ms", dark)
    places = _places(calibration)
    drawn = []
    for place, error in enumerate(errors):
        values = [error.rmse, *error.by_context.values()]
        drawn += [1e3 * value for value in values if value is not None]
        name = estimator_name(error.estimator).removesuffix(" roofline")
        figure.add_bar(x=places, y=[None if v is None else 1e3 * v for v in values], name=name,
                       marker={"color": estimator_colour(error.estimator, place), "line": {"width": 0}},
                       customdata=[numbers.seconds(v) for v in values], hovertemplate="%{x}: %{customdata}<extra>" + name + "</extra>")
    _claim(figure, places, next(error for error in errors if error.estimator == "raw"), dark)
    room_for_legend(figure, len(errors) + 1)
    figure.update_layout(barmode="group", bargap=0.3, bargroupgap=0.08)
    return from_zero(figure, drawn)


def error_title(share: float | None) -> str:
    """The finding, in the words of a title."""
    if share is None:
        return "Error of each estimator"
    if share >= 0:
        return f"Calibrating took {numbers.percent(share)} off the raw roofline\u2019s error"
    return f"Calibrating made the error {numbers.percent(-share)} larger: measure again"


def error_table(calibration: Calibration) -> pd.DataFrame:
    """One row for each estimator and context ("all" first), seconds, and the claim's two ends."""
    errors = estimator_errors(calibration)
    raw = next(error for error in errors if error.estimator == "raw")
    most, least = (1 - share for share in PUBLISHED_REDUCTION)
    rows = [{"estimator": error.estimator, "context": context, "held_out_rmse_seconds": value,
             "published_least_seconds": None if base is None else least * base,
             "published_most_seconds": None if base is None else most * base}
            for error in errors
            for context, value, base in [("all", error.rmse, raw.rmse),
                                         *((str(c), v, raw.by_context[c]) for c, v in error.by_context.items())]]
    return pd.DataFrame(rows)


def _claim(figure: go.Figure, places: list[str], raw, dark: bool) -> None:
    most, least = (1 - share for share in PUBLISHED_REDUCTION)
    bases = [raw.rmse, *raw.by_context.values()]
    figure.add_bar(x=places, base=[None if b is None else 1e3 * least * b for b in bases],
                   y=[None if b is None else 1e3 * (most - least) * b for b in bases], name=CLAIM,
                   marker={"color": "rgba(0,0,0,0)", "line": {"width": 1.5, "color": ink_colour(dark)}},
                   customdata=[f"{numbers.seconds(least * b)} to {numbers.seconds(most * b)}" if b is not None else "" for b in bases],
                   hovertemplate="%{x}: %{customdata}<extra>" + CLAIM + "</extra>")


def _places(calibration: Calibration) -> list[str]:
    return ["all contexts", *(f"context {numbers.count(context)}" for context in calibration.contexts)]
