"""Two charts of whether the output follows the target: by step, and so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from bastion.analysis.faithfulness import NOT_LOSSLESS, RunFaithfulness, lossy_rule
from bastion.figures import numbers
from bastion.figures.frame import house_figure, ink_colour
from bastion.figures.palette import ACCEPTED, BONUS

EQUAL = 1e-9


def rule_label(rule: str) -> str:
    return f"{rule} (not lossless)" if rule in NOT_LOSSLESS else rule


def lossy_label(info: Mapping[str, Any]) -> str:
    """What is to be said of a run whose rule changed its output's distribution; empty for all others."""
    return rule_label(rule) if (rule := lossy_rule(info)) else ""


def variation_figure(found: RunFaithfulness, dark: bool = False) -> go.Figure:
    """Total variation of each step, and its mean so far."""
    last = float(found.mean_variation[-1])
    title = ("The rule follows the target at every token" if found.variation.max() < EQUAL
             else f"The rule is {numbers.probability(last)} off the target, on average")
    figure = house_figure(title, "Computed at each node visited, over the whole vocabulary: the rule\u2019s own<br>distribution against the target\u2019s.",
                          "step", "total variation", dark)
    figure.add_bar(x=found.step, y=found.variation, name="of the step", marker={"color": BONUS, "line": {"width": 0}},
                   hovertemplate="step %{x}: %{y:.2f}<extra>of the step</extra>")
    figure.add_scatter(x=found.step, y=found.mean_variation, mode="lines", name="mean so far", line={"color": ink_colour(dark), "width": 1.6},
                       hovertemplate="step %{x}: %{y:.2f}<extra>mean so far</extra>")
    return figure.update_yaxes(range=[0, 1.05])


def surprise_figure(found: RunFaithfulness, dark: bool = False) -> go.Figure:
    """The output's mean -log p under the target against the target's entropy at the same nodes: equal in the long run when lossless."""
    title = (f"Output\u2019s -log p {numbers.significant(float(found.surprise[-1]))}, "
             f"target\u2019s entropy {numbers.significant(float(found.target_entropy[-1]))}")
    figure = house_figure(title, f"Means over {numbers.counted(found.tokens, 'token')}. -log p under the target: measured. Entropies: computed.<br>"
                          "What is drawn from the target has its entropy as mean -log p, in the long run.", "step", "nats a token", dark)
    for values, name, colour, dash in ((found.surprise, "-log p", ACCEPTED, "solid"),
                                       (found.target_entropy, "target", ink_colour(dark), "dash"),
                                       (found.rule_entropy, "rule", BONUS, "dot")):
        figure.add_scatter(x=found.step, y=values, mode="lines", name=name, line={"color": colour, "dash": dash, "width": 1.8},
                           hovertemplate="step %{x}: %{y:.2f}<extra>" + name + "</extra>")
    return figure
