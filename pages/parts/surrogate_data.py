"""Runs read once per process, and reports kept: records never change, and a rerun must not compute them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from bastion.analysis.surrogate_evidence import RunEvidence, run_evidence
from bastion.analysis.surrogate_report import Outcome, SurrogateReport, Unit, surrogate_report, why_none
from bastion.analysis.temperature_report import TemperatureReport, temperature_report
from bastion.errors import UserError
from bastion.jobs import manager

KEPT_RUNS = 512
KEPT_REPORTS = 12


@dataclass(frozen=True, slots=True)
class Read:
    """The runs that have a surrogate, in the order asked for, and why each of the others is left out."""

    evidence: list[RunEvidence]
    left_out: list[tuple[str, str]]  # run id, a few words


def read_runs(run_ids: Sequence[str]) -> Read:
    """Every run that can be opened; the first time says how far it is."""
    root = str(manager().store.root)
    evidence, left_out = [], []
    bar = None
    for place, run_id in enumerate(run_ids):
        if len(run_ids) > 20 and (root, run_id) not in _seen():
            bar = bar or st.progress(0.0)
            bar.progress(place / len(run_ids), text=f"Reading run {place + 1} of {len(run_ids)}")
        try:
            one = _evidence(root, run_id)
        except UserError as error:
            left_out.append((run_id, str(error)))
            continue
        except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as error:
            # A run from elsewhere may hold what no check foresaw: one run must not take the page from all others.
            left_out.append((run_id, f"its records cannot be worked with ({type(error).__name__})"))
            continue
        _seen().add((root, run_id))
        if why := why_none(one):
            left_out.append((run_id, why))
        else:
            evidence.append(one)
    if bar is not None:
        bar.empty()
    return Read(evidence, left_out)


@st.cache_resource(max_entries=KEPT_RUNS, show_spinner=False)
def _evidence(root: str, run_id: str) -> RunEvidence:
    return run_evidence(manager().store.open(run_id))


@st.cache_resource(show_spinner=False)
def _seen() -> set[tuple[str, str]]:
    return set()


@st.cache_resource(max_entries=KEPT_REPORTS, show_spinner="Correlating, with a thousand resamples")
def report(
    root: str, run_ids: tuple[str, ...], unit: Unit, outcome: Outcome, with_cut: bool, _evidence: list[RunEvidence]
) -> SurrogateReport:
    """`surrogate_report` of these runs, computed once."""
    return surrogate_report(_evidence, unit, outcome, with_cut)


@st.cache_resource(max_entries=KEPT_REPORTS, show_spinner="Fitting temperatures and growing the trees again")
def temperatures(
    root: str, run_ids: tuple[str, ...], unit: Unit, with_cut: bool, _evidence: list[RunEvidence]
) -> TemperatureReport | None:
    """`temperature_report` of these runs, computed once."""
    return temperature_report(_evidence, unit, with_cut)
