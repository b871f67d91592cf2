"""Confidence against agreement: counts by hand, and calibration errors against numpy on the exported CSV."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from bastion.analysis.reliability import (
    BINS,
    RANK_CLASSES,
    by_depth,
    by_rank,
    outcome_frame,
    outcomes,
    overall,
    rank_name,
    reliability,
    reliability_frame,
    wilson,
)
from bastion.analysis.surrogate_evidence import run_evidence
from bastion.analysis.surrogate_report import surrogate_report
from tests.synthetic_runs import make_run
from tests.test_analysis_surrogate import DEPTH, make_saved, many, through_csv


@pytest.fixture(scope="module")
def evidence():
    return [run_evidence(run) for run in many(8, 20, choices=40)]


def error_by_numpy(confidence: np.ndarray, agreed: np.ndarray) -> float:
    """The definition, said another way: a bin at a time, over edges."""
    place = np.minimum(np.floor(confidence * BINS).astype(int), BINS - 1)
    return sum(
        abs(agreed[place == b].mean() - confidence[place == b].mean()) * (place == b).mean() for b in range(BINS) if (place == b).any()
    )


def test_calibration_errors_equal_numpy_on_the_exported_csv(evidence):
    report = surrogate_report(evidence, "step", resamples=5)
    table = through_csv(outcome_frame(report.seen, report.frame.reindex(range(report.frame.index.max() + 1))))
    confidence, agreed = table["confidence"].to_numpy(), table["agreed"].to_numpy()
    assert abs(report.all_ranks.error - error_by_numpy(confidence, agreed)) < 1e-9
    first = (table["rank"] == 1).to_numpy()
    assert abs(report.first_choice.error - error_by_numpy(confidence[first], agreed[first])) < 1e-9
    for depth, found in report.depths.items():
        rows = first & (table["depth"] == depth).to_numpy()
        assert abs(found.error - error_by_numpy(confidence[rows], agreed[rows])) < 1e-9
        assert found.mean_confidence == pytest.approx(confidence[rows].mean(), abs=1e-12)
    for (low, high), name in ((pair, rank_name(*pair)) for pair in RANK_CLASSES):
        rows = table["rank"].between(low + 1, high).to_numpy()
        if rows.any():
            assert abs(report.ranks[name].error - error_by_numpy(confidence[rows], agreed[rows])) < 1e-9
    assert set(table["run"]) == {one.run for one in evidence} and not table[["run", "step"]].isna().any().any()


def test_the_binned_csv_gives_the_same_error(evidence):
    tables = by_depth(outcomes(evidence), ranks=40)
    binned = through_csv(reliability_frame(tables, "depth"))
    for depth, part in binned.groupby("depth"):
        gap = (part["count"] * (part["agreement"] - part["confidence"]).abs()).sum() / part["count"].sum()
        assert abs(gap - tables[depth].error) < 1e-9


def test_every_reached_depth_counts_once(evidence):
    seen = outcomes(evidence)
    walked = np.concatenate([one.walked for one in evidence])
    assert len(seen) == np.minimum(walked, DEPTH).sum()
    tables = by_depth(seen)
    assert [tables[d].total for d in sorted(tables)] == [(walked >= d).sum() for d in range(1, DEPTH + 1)]
    assert sum(t.total for t in by_rank(seen).values()) == seen.confidence.size == overall(seen).total


def test_an_accepted_token_agrees_at_its_rank_and_nowhere_else(evidence):
    seen = outcomes(evidence)
    agreed = seen.rank[:, None] == np.arange(seen.confidence.shape[1])
    assert (agreed.sum(1) == (seen.rank >= 0)).all() and (seen.rank == -1).any()
    first = run_evidence(make_saved(make_run(1, accepted_depth=2, nodes=40, depth=5)))
    assert outcomes([first]).depth.tolist() == [1, 2, 3]


def test_runs_of_other_widths_are_padded_with_nothing():
    narrow, wide = (run_evidence(make_saved(make_run(3, seed, choices=k))) for seed, k in ((0, 4), (1, 9)))
    both = outcomes([narrow, wide])
    alone = outcomes([narrow])
    assert both.confidence.shape[1] == 9 and np.isnan(both.confidence[: len(alone), 4:]).all()
    assert overall(both).total == alone.confidence.size + outcomes([wide]).confidence.size


def test_bins_by_hand():
    found = reliability(np.array([0.0, 0.1, 0.35, 0.5, 1.0]), np.array([0, 1, 0, 1, 1], bool), bins=2)
    assert found.count.tolist() == [3, 2] and found.low.tolist() == [0, 0.5] and found.agreement.tolist() == [pytest.approx(1 / 3), 1]
    assert found.confidence.tolist() == [pytest.approx(0.15), 0.75]
    assert found.error == pytest.approx((3 * abs(1 / 3 - 0.15) + 2 * 0.25) / 5)
    empty = reliability(np.zeros(0), np.zeros(0, bool))
    assert empty.error is None and empty.total == 0 and empty.mean_confidence is None


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_intervals_are_wilsons(pair):
    hits, count = pair
    low, high = wilson(np.array(hits), np.array(count))
    expected = binomtest(hits, count).proportion_ci(0.95, method="wilson")
    assert (float(low), float(high)) == (pytest.approx(expected.low, abs=1e-12), pytest.approx(expected.high, abs=1e-12))
