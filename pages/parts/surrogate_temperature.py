"""The section on temperatures per depth: fitted on the spot, before against after."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from bastion.analysis.surrogate_report import Unit, resampled_words
from bastion.analysis.temperature_report import TemperatureReport, left_out_words, regrown_by_method
from bastion.figures import numbers
from bastion.figures.glossary import GLOSSARY
from bastion.figures.surrogate_scatter import correlation_figure
from bastion.figures.surrogate_temperature import errors_figure, nodes_figure, temperatures_figure
from pages.parts.chart import chart, dark

SHORT_WORDS = {"prompt": "prompts resampled", "run": "runs resampled", "step": "steps resampled"}


def temperature_section(report: TemperatureReport | None, unit: Unit) -> None:
    st.subheader("Would a temperature per depth help?", anchor=False, help=GLOSSARY["drafter temperature"])
    if report is None:
        st.caption(
            "These runs recorded at most one marginal a depth, and a temperature needs several to choose between. "
            "Runs of bastion or ddtree that the app decodes have them."
        )
        return
    st.caption(
        f"Fitted to {numbers.count(report.steps_fitted)} steps and judged on {numbers.count(report.steps_judged)} others "
        f"({report.how}), by the likelihood of the target's own tokens. "
        "Only the recorded ranks are rescaled among themselves; what lies outside them keeps its mass. " + left_out_words(report)
    )
    found = report.fitted
    table = pd.DataFrame(
        {
            "depth": range(1, len(found.temperature) + 1),
            "temperature": found.temperature,
            "fitted": found.fitted,
            "outcomes": found.outcomes,
            "nll_before": found.nll_before,
            "nll_after": found.nll_after,
        }
    )
    chart(temperatures_figure(found, report.how, dark()), table, "surrogate-temperatures")
    if report.depths_before:
        errors = pd.DataFrame(
            [
                {"depth": d, "count": t.total, "ece_before": t.error, "ece_after": report.depths_after[d].error}
                for d, t in report.depths_before.items()
            ]
        )
        chart(errors_figure(report.depths_before, report.depths_after, dark()), errors, "surrogate-errors")
    _correlations(report, unit)
    _budget(report)


def _correlations(report: TemperatureReport, unit: Unit) -> None:
    before, after = report.before, report.after
    if before is None or after is None:
        st.caption("Too few steps are left to judge by: choose more runs.")
        return
    change = after.pearson.value - before.pearson.value
    title = (
        f"Pearson on the judged steps: {before.pearson.value:.2f} before, {after.pearson.value:.2f} after"
        if abs(change) >= 0.005
        else f"The correlation stays at {after.pearson.value:.2f}"
    )
    table = pd.DataFrame(
        [
            {"when": when, "kind": kind, "value": e.value, "low": e.low, "high": e.high, "steps": c.steps, "clusters": c.clusters}
            for when, c in (("before", before), ("after", after))
            for kind, e in (("pearson", c.pearson), ("spearman", c.spearman))
        ]
    )
    note = resampled_words(before, unit, SHORT_WORDS[unit])
    chart(correlation_figure([("before", before), ("after", after)], note, dark(), title), table, "surrogate-before-after")


def _budget(report: TemperatureReport) -> None:
    frame = report.regrown
    if frame.empty:
        st.caption(
            "Growing the judged trees again at temperature 1 does not give the recorded ones, so nothing is said of a budget at others."
            if report.irreproducible
            else "None of the judged trees was made by best-first growth alone, so there is no budget to compute again."
        )
        return
    adaptive = frame[frame["adaptive"]]
    if len(adaptive):
        chart(nodes_figure(adaptive["nodes_before"].to_numpy(), adaptive["nodes_after"].to_numpy(), dark()), frame, "surrogate-budget")
    methods = regrown_by_method(frame)
    st.dataframe(
        methods,
        hide_index=True,
        width="stretch",
        key="surrogate-budget-table",
        column_config={
            "method": "method",
            "steps": st.column_config.NumberColumn("steps"),
            "nodes_before": st.column_config.NumberColumn("nodes", format="%.2f", help=GLOSSARY["budget"]),
            "nodes_after": st.column_config.NumberColumn(
                "nodes after", format="%.2f", help="Counterfactual: the tree that would have been grown"
            ),
            "accepted": st.column_config.NumberColumn("accepted"),
            "accepted_held": st.column_config.NumberColumn("still held", help="Accepted tokens that the regrown trees hold"),
            "tokens_before": st.column_config.NumberColumn("tokens"),
            "tokens_after_at_least": st.column_config.NumberColumn("after, at least"),
            "predicted_tokens_per_second_before": st.column_config.NumberColumn("predicted tokens/s", format="%.1f"),
            "predicted_tokens_per_second_after_at_least": st.column_config.NumberColumn("after, predicted", format="%.1f"),
        },
    )
    words = [
        "Counterfactual: each judged tree is grown again by its own rule and its own predicted times; a fixed size keeps its size. ",
        "Tokens after are a lower bound: the target was never asked beyond its known tokens. ",
    ]
    if report.irreproducible:
        words.append(
            f"{numbers.count(report.irreproducible)} steps are left out because growing them again at temperature 1 does not give "
            "the recorded tree. "
        )
    if capped := int(frame["capped"].sum()):
        words.append(f"{numbers.count(capped)} trees grew as far as times had been predicted and might have gone on.")
    st.caption("".join(words))
