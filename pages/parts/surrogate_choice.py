"""Which runs and which steps the Surrogate page is about; all of it stands in the address."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import streamlit as st

from bastion.analysis.surrogate_evidence import RunEvidence
from bastion.analysis.surrogate_report import Outcome, Unit, default_unit
from bastion.records import RunSummary
from pages.parts.sidebar import when

RUNS = "surrogate-runs"  # in the address
REMEMBERED, DEFAULT, PICKED, TAKE = "surrogate-remembered", "surrogate-default", "surrogate-picked", "surrogate-take"
NOTHING = "none"  # stands in the address for no run at all; an address without ids asks for the newest
NEWEST = 20
NAMED = 4
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

    The address holds the ids, those of the newest runs too, so that a link shows the same runs when there are newer
    ones. A bound widget would hold the labels there, and two runs may share one. Ids that are no candidate's stay in
    the address until other runs are chosen: a link keeps what it meant, and a deleted run can be restored.
    """
    known = {run.id: run for run in runs}
    newest = [run.id for run in runs[:NEWEST]]
    asked = asked_runs()
    if asked is None:
        _remember(newest, newest)
        wanted = newest
    else:
        wanted = [run_id for run_id in asked if run_id in known]
        _keep(",".join(asked) or NOTHING)
    if st.session_state.get(PICKED) != wanted:   # what is set is pushed to the browser, over a choice made meanwhile
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


def asked_runs() -> list[str] | None:
    """The ids that the address asks for, or that were chosen before a visit to another page; None for neither."""
    asked = st.query_params.get(RUNS) or st.session_state.get(REMEMBERED)
    return None if not asked else [run_id for run_id in dict.fromkeys(asked.split(",")) if run_id not in ("", NOTHING)]


def missing_line(asked: Sequence[str], here: Collection[str], candidates: Collection[str]) -> str:
    """Which of the asked runs are not shown, and why, in a sentence; empty when all are. here: the ids of all runs."""
    gone = [run_id for run_id in asked if run_id not in here]
    unfit = [run_id for run_id in asked if run_id in here and run_id not in candidates]
    words = []
    if gone:
        words.append(f"Not here any more: {_named(gone)}; a run that was deleted can be restored on the page Runs.")
    if unfit:
        words.append(f"Nothing to judge in {_named(unfit)}: plain decoding, or still being written.")
    return " ".join(words)


def _named(run_ids: Sequence[str]) -> str:
    more = f" and {len(run_ids) - NAMED} more" if len(run_ids) > NAMED else ""
    return ", ".join(run_id[:64] for run_id in run_ids[:NAMED]) + more


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
        if not set(st.session_state.get(key) or ()) <= set(options):
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
        "runs of one prompt, so whole prompts or runs are drawn where there are five or more. Fewer than five give no interval.",
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
    """In the address, and for the way back from another page, on which the newest runs are the newest there are then."""
    if list(chosen) == list(newest):
        st.session_state[DEFAULT] = ",".join(newest)
    else:
        st.session_state.pop(DEFAULT, None)
    _keep(",".join(chosen) or NOTHING)


def _keep(address: str) -> None:
    if st.query_params.get(RUNS) != address:
        st.query_params[RUNS] = address
    if address == st.session_state.get(DEFAULT):
        st.session_state.pop(REMEMBERED, None)
    else:
        st.session_state[REMEMBERED] = address
