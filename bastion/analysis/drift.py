"""Whether a calibration still holds: verify times of real runs against what it predicted for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bastion.analysis.latency_error import LatencyTable, latency_table
from bastion.analysis.latency_known import carried as carried_calibration
from bastion.errors import UserError
from bastion.latency import Calibration, made, moment
from bastion.records import RunStore, RunSummary
from bastion.step import StepRecord

LAST, FEWEST = 5, 3
"""The verdict looks at the last five runs, and says nothing on fewer than three."""
BOUNDS = (0.8, 1.25)
"""Measured over predicted: outside of this the calibration is said to drift. One is the inverse of the other."""
MOST_RUNS = 60
SAME = 1e-6   # relative; what is stored is the very prediction, but for a version that rounds otherwise


@dataclass(frozen=True, slots=True)
class RunDrift:
    """Measured over predicted verify time within one run: its median and its middle half over the steps."""

    run_id: str
    created: str       # ISO 8601, UTC
    title: str
    method: str
    steps: int
    median: float
    low: float         # 25th percentile
    high: float        # 75th percentile


@dataclass(frozen=True, slots=True)
class Verdict:
    """state: "ok", "drifting", or "unknown" while there are fewer than FEWEST runs. ratio: the median of
    the last runs' medians, None without a run; runs: how many of them it stands on, LAST at most."""

    state: str
    ratio: float | None
    runs: int


@dataclass(frozen=True, slots=True)
class Drift:
    """runs: oldest first. unread: runs that would have counted and could not be opened.
    older: runs beyond the newest MOST_RUNS, which were not looked at."""

    runs: list[RunDrift]
    unread: int = 0
    older: int = 0

    @property
    def verdict(self) -> Verdict:
        return verdict([run.median for run in self.runs])


def verdict(medians: Sequence[float]) -> Verdict:
    """The rule: the median of the last LAST runs' medians lies outside BOUNDS."""
    last = list(medians)[-LAST:]
    ratio = float(np.median(last)) if last else None
    if ratio is None or len(last) < FEWEST:
        return Verdict("unknown", ratio, len(last))
    return Verdict("ok" if BOUNDS[0] <= ratio <= BOUNDS[1] else "drifting", ratio, len(last))


def run_drift(summary: RunSummary, steps: Sequence[StepRecord], calibration: Calibration, carried: bool = False) -> RunDrift | None:
    """The run's ratios; None when it was not made with this calibration or no step was predicted.

    carried: the run holds this very calibration. One that grew by another estimator (`bastion@table`) then
    counts too, against what the calibrated roofline predicts for its steps.
    """
    table = latency_table(steps)
    if carried and len(table.step):
        table = replace(table, predicted=np.asarray(calibration.verify_seconds(table.nodes, table.context)))
    keep = (table.predicted > 0) & (table.measured > 0)
    if not keep.any() or not predicted_by(calibration, table):
        return None
    low, median, high = np.percentile(table.measured[keep] / table.predicted[keep], [25, 50, 75])
    return RunDrift(summary.id, summary.created, summary.title, summary.method, int(keep.sum()), float(median), float(low), float(high))


def predicted_by(calibration: Calibration, table: LatencyTable) -> bool:
    """Whether the predictions of these steps are the calibration's own: the one sure sign of which was used.

    A run of a method that needs none holds no calibration, yet its steps are predicted by the stored one.
    """
    expected = np.asarray(calibration.verify_seconds(table.nodes, table.context))
    return bool(np.allclose(table.predicted, expected, rtol=SAME, atol=0.0))


def candidates(summaries: Iterable[RunSummary], calibration: Calibration) -> list[RunSummary]:
    """Finished runs on the same device in the same number type, made after the calibration; oldest first."""
    since = made(calibration)
    chosen = [(moment(run.created), run) for run in summaries
              if run.complete and run.device == calibration.device_key and run.dtype == calibration.dtype]
    return [run for time, run in sorted(((t, r) for t, r in chosen if t is not None and t >= since),
                                        key=lambda pair: (pair[0], pair[1].id))]


def read_drift(store: RunStore, calibration: Calibration, most: int = MOST_RUNS) -> Drift:
    """The newest `most` candidate runs of the store that were made with the calibration."""
    all_runs = candidates(store.list(), calibration)
    found, unread = [], 0
    for summary in all_runs[-most:]:
        try:
            run = _drift_of(store, summary, calibration)
        except UserError:
            unread += 1
            continue
        if run is not None:
            found.append(run)
    return Drift(found, unread, max(len(all_runs) - most, 0))


_known: dict[tuple[str, RunSummary, str], RunDrift | None] = {}


def _drift_of(store: RunStore, summary: RunSummary, calibration: Calibration) -> RunDrift | None:
    """Read once: a finished run's steps do not change, and a page asks at every rerun."""
    key = str(store.root), summary, calibration.id
    if key not in _known:
        run = store.open(summary.id)
        same = run.info.get("attention", calibration.attention) == calibration.attention
        _known[key] = run_drift(summary, run.steps, calibration, _carries(run.info.get("calibration"), calibration)) if same else None
    return _known[key]


def _carries(content: Any, calibration: Calibration) -> bool:
    """Whether a run's `calibration` is this very one; a damaged one is none."""
    try:
        found = carried_calibration(content, "The run's calibration")
    except UserError:
        return False
    return isinstance(found, Calibration) and found.id == calibration.id
