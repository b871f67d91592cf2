"""Which runs and which steps the Surrogate page is about; all of it stands in the address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from bastion.analysis.surrogate_evidence import RunEvidence
from bastion.analysis.surrogate_report import Outcome, Unit, default_unit
from bastion.records import RunSummary
from pages.parts.sidebar import when

RUNS = "surrogate-runs"  # in the address
REMEMBERED, PICKED, TAKE = "surrogate-remembered", "surrogate-picked", "surrogate-take"
NEWEST = 20
UNITS = {"auto": "automatic", "prompt": "prompts", "run": "runs", "step": "steps"}
OUTCOMES = {"emitted": "emitted tokens", "walked": "accepted path"}


@dataclass(frozen=True, slots=True)
class Judging:
    """How the chosen steps are judged."""

    outcome: Outcome
    unit: Unit
    with_cut: bool


def candidates(summaries: Sequence[RunSummary]) -> list[RunSummary]:
    """Runs that may have a surrogate, newest first: not plain decoding, and not one that is being written now."""
    return [run for run in summaries if run.method.split(":")[0] != "ar" and (run.complete or run.finish_reason is not None)]


def choose_runs(runs: Sequence[RunSummary]) -> list[str]:
    """The ids of the chosen runs. `runs`: at least one.

    The address holds the ids. A bound widget would hold the labels there, and two runs may share one.
    """
    known = {run.id: run for run in runs}
    newest = [run.id for run in runs[:NEWEST]]
    asked = st.query_params.get(RUNS) or st.session_state.get(REMEMBERED)
    wanted = newest if asked is None else [run_id for run_id in asked.split(",") if run_id in known]
    _remember(wanted, newest)
    st.session_state[PICKED] = wanted
    groups, labels = shortcuts(runs), run_labels(runs)
    choice, shortcut = st.columns([3, 1], vertical_alignment="top")
    choice.multiselect(
        "Runs",
        list(known),
        key=PICKED,
        format_func=labels.get,
        placeholder="Choose one run or more",
        on_change=lambda: _remember(st.session_state[PICKED], newest),
    )
    shortcut.selectbox(
        "Take all of",
        list(groups),
        index=None,
        key=TAKE,
        placeholder="newest, method, set, group",
        format_func=lambda name: f"{name} ({len(groups[name])})",
        on_change=_take,
        args=(groups, newest),
    )
    return wanted


def shortcuts(runs: Sequence[RunSummary]) -> dict[str, list[str]]:
    """Name -> ids, for choosing many runs at once."""
    groups = {f"newest {NEWEST}": [run.id for run in runs[:NEWEST]], "all runs": [run.id for run in runs]}
    for words, of in (("method", lambda run: run.method), ("prompt set", lambda run: run.prompt_set)):
        for value in sorted({of(run) for run in runs if of(run)}):
            groups[f"{words} {value}"] = [run.id for run in runs if of(run) == value]
    for kind, group in dict.fromkeys((run.group, run.group_id) for run in runs if run.group_id):
        groups[f"{kind} {group}"] = [run.id for run in runs if run.group_id == group]
    return groups


def run_labels(runs: Sequence[RunSummary]) -> dict[str, str]:
    """Id -> label, each label once: the widget tells its options apart by their labels."""
    labels: dict[str, str] = {}
    taken: set[str] = set()
    for run in runs:
        words = [run.method, run.prompt_set, f"T {run.temperature:g}" if run.temperature else "", when(run.created), run.title[:24]]
        label = "  ".join([*(" ".join(word.split()) for word in words if word), run.id[-6:]])
        labels[run.id] = label if label not in taken else f"{label} {run.id}"
        taken.add(labels[run.id])
    return labels


def filter_runs(evidence: Sequence[RunEvidence]) -> list[RunEvidence]:
    """Those of the chosen methods, prompt sets and temperatures; nothing chosen means all."""
    kept = list(evidence)
    columns = st.columns(3)
    for column, label, key, of in (
        (columns[0], "Methods", "surrogate-methods", lambda one: one.method),
        (columns[1], "Prompt sets", "surrogate-sets", lambda one: one.prompt_set or "no set"),
        (columns[2], "Temperatures", "surrogate-temperatures", lambda one: f"{one.temperature:g}"),
    ):
        options = sorted({of(one) for one in evidence})
        if isinstance(st.session_state.get(key), list):
            st.session_state[key] = [value for value in st.session_state[key] if value in options]
        wanted = column.multiselect(label, options, key=key, bind="query-params", placeholder="all")
        kept = [one for one in kept if not wanted or of(one) in wanted]
    return kept


def judging(evidence: Sequence[RunEvidence]) -> Judging:
    """The three switches over the scatter. `evidence`: what is left after filtering."""
    row = st.container(horizontal=True, vertical_alignment="bottom", gap="medium")
    outcome = row.segmented_control(
        "Outcome",
        list(OUTCOMES),
        default="emitted",
        key="surrogate-outcome",
        bind="query-params",
        format_func=OUTCOMES.get,
        required=True,
        help="S(n) estimates the nodes of the accepted path, root included. A step emits as many tokens, "
        "unless a stop token or the length limit cut the output.",
    )
    unit = row.segmented_control(
        "Resample",
        list(UNITS),
        default="auto",
        key="surrogate-unit",
        bind="query-params",
        format_func=UNITS.get,
        required=True,
        help="What the bootstrap draws with replacement. Steps of one run are not independent, nor are "
        "runs of one prompt, so whole prompts or runs are drawn where there are five or more.",
    )
    with_cut = row.toggle(
        "Count cut steps",
        key="surrogate-cut",
        bind="query-params",
        help="Steps whose output a stop token or the length limit cut: they emitted fewer tokens than the target accepted.",
    )
    return Judging(outcome or "emitted", default_unit(evidence) if unit in (None, "auto") else unit, bool(with_cut))


def _take(groups: dict[str, list[str]], newest: list[str]) -> None:
    name = st.session_state.get(TAKE)
    if name in groups:
        _remember(groups[name], newest)
    st.session_state[TAKE] = None


def _remember(chosen: Sequence[str], newest: Sequence[str]) -> None:
    """In the address, and for the way back from another page; the newest runs are what no address means."""
    if list(chosen) == list(newest):
        st.query_params.pop(RUNS, None)
        st.session_state.pop(REMEMBERED, None)
    else:
        st.query_params[RUNS] = st.session_state[REMEMBERED] = ",".join(chosen) or "none"
