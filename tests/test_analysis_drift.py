"""Drift from runs made by hand: which runs count, their ratios, and the verdict."""

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from bastion.analysis.drift import RunDrift, candidates, predicted_by, read_drift, verdict
from bastion.analysis import latency_table
from bastion.latency import make_calibration
from bastion.records import RunStore
from bastion.step import StepSeconds
from tests.synthetic_runs import make_info, make_run, text_of
from tests.test_latency_fit import CPU, CPU_PROBES, SMALL

MADE = datetime.now(UTC) - timedelta(minutes=5)


@pytest.fixture
def calibration():
    return make_calibration(shape=SMALL, peaks=CPU, peaks_source="measured", probes=CPU_PROBES, robust=True, device_key="cpu", target="t",
                            dtype="float32", attention="bastion", draft_seconds=0.006, other_seconds=0.002,
                            made_at=MADE.isoformat(timespec="seconds"))


@pytest.fixture
def store(tmp_path):
    return RunStore(tmp_path)


def save(store, calibration, ratios, seed=0, finish="length", **info):
    """A run whose step k took ratios[k] times what `calibration` predicts for it."""
    writer = store.create(make_info(device="cpu", dtype="float32", attention="bastion", **info), text_of=text_of)
    for step in make_run(len(ratios), seed):
        if step.kind == "decode":
            predicted = float(calibration.verify_seconds(step.nodes, step.context))
            step = replace(step, predicted_verify_seconds=predicted, seconds=StepSeconds(0.1, 0.1, predicted * ratios[step.index - 1], 0.1))
        writer.append(step)
    if finish is None:
        writer.close()
        return writer.id
    return writer.finish(finish)


def test_a_runs_median_and_middle_half(store, calibration):
    ratios = [0.5, 1.0, 1.5, 2.0, 4.0]
    run = save(store, calibration, ratios, title="Sheep")
    (found,) = read_drift(store, calibration).runs
    assert (found.run_id, found.title, found.method, found.steps) == (run, "Sheep", "bastion", 5)
    assert found.median == pytest.approx(1.5) and (found.low, found.high) == pytest.approx(tuple(np.percentile(ratios, [25, 75])))


def test_only_runs_that_this_calibration_predicted_count(store, calibration):
    other = replace(calibration, roofline=replace(calibration.roofline, beta_m=calibration.roofline.beta_m + 0.01,
                                                  beta_c=calibration.roofline.beta_c + 0.01))
    own = save(store, calibration, [1.0, 1.1])
    save(store, other, [1.0, 1.1])
    save(store, calibration, [1.0], finish=None)                      # a killed process left it
    save(store, calibration, [1.0, 1.0], seed=3, group={"kind": "race", "id": "x"})
    assert own in {run.run_id for run in read_drift(store, calibration).runs}
    assert len(read_drift(store, calibration).runs) == 2 and len(read_drift(store, other).runs) == 1


@pytest.mark.parametrize("change", [{"device_key": "gpu"}, {"dtype": "bfloat16"}, {"attention": "sdpa"},
                                    {"made_at": (MADE + timedelta(hours=1)).isoformat()}, {"made_at": "2999-01-01"}])
def test_runs_of_another_device_type_attention_or_time_do_not(store, calibration, change):
    save(store, calibration, [1.0, 1.1])
    assert len(read_drift(store, calibration).runs) == 1
    assert read_drift(store, replace(calibration, **change)).runs == []


def test_runs_without_predictions_are_passed_over(store, calibration):
    writer = store.create(make_info(device="cpu", dtype="float32", attention="bastion"), text_of=text_of)
    for step in make_run(3, priced=False):
        writer.append(step)
    writer.finish("length")
    assert read_drift(store, calibration).runs == [] and read_drift(store, calibration).verdict.state == "unknown"
    assert read_drift(RunStore(store.root / "none"), calibration).runs == []


def test_a_damaged_run_is_counted_and_the_others_are_shown(store, calibration):
    kept, broken = save(store, calibration, [1.0, 1.0]), save(store, calibration, [1.0, 1.0], seed=1)
    (store.root / broken / "steps.parquet").write_bytes(b"PAR1")
    drift = read_drift(store, calibration)
    assert [run.run_id for run in drift.runs] == [kept] and drift.unread == 1


def test_the_newest_runs_are_looked_at_and_the_rest_counted(store, calibration):
    for seed in range(5):
        save(store, calibration, [1.0, 1.0 + seed], seed=seed)
    drift = read_drift(store, calibration, most=3)
    assert len(drift.runs) == 3 and drift.older == 2
    assert {run.run_id for run in drift.runs} <= {run.run_id for run in read_drift(store, calibration).runs}


def test_a_finished_run_is_read_once(store, calibration):
    run = save(store, calibration, [1.0, 1.2])
    first = read_drift(store, calibration)
    info = (store.root / run / "run.json").read_bytes(), (store.root / run / "run.json").stat()
    shutil.move(store.root / run / "steps.parquet", store.root / run / "gone")
    assert info[0] and read_drift(store, calibration) == first


def test_candidates_come_oldest_first(store, calibration):
    for seed in range(3):
        save(store, calibration, [1.0], seed=seed)
    listed = candidates(store.list(), calibration)
    assert [(run.created, run.id) for run in listed] == sorted((run.created, run.id) for run in listed)


@pytest.mark.parametrize(("medians", "state", "ratio", "runs"), [
    ([], "unknown", None, 0), ([1.0], "unknown", 1.0, 1), ([9.0, 9.0], "unknown", 9.0, 2),
    ([1.0, 1.0, 1.0], "ok", 1.0, 3), ([0.8, 0.8, 0.8], "ok", 0.8, 3), ([1.25] * 3, "ok", 1.25, 3),
    ([1.26] * 3, "drifting", 1.26, 3), ([0.79] * 3, "drifting", 0.79, 3),
    ([9.0, 9.0, 9.0, 1.0, 1.0, 1.0, 9.0, 9.0], "ok", 1.0, 5),       # only the last five, and their median
    ([1.0, 1.0, 1.0, 1.3, 1.4, 1.5], "drifting", 1.3, 5),
])
def test_the_rule(medians, state, ratio, runs):
    found = verdict(medians)
    assert (found.state, found.ratio, found.runs) == (state, ratio, runs)


def test_predictions_tell_which_calibration_made_them(calibration):
    steps = make_run(4)
    assert not predicted_by(calibration, latency_table(steps))
    own = [replace(step, predicted_verify_seconds=float(calibration.verify_seconds(step.nodes, step.context))) if step.kind == "decode" else step
           for step in steps]
    assert predicted_by(calibration, latency_table(own))
    assert isinstance(RunDrift("a", "b", "c", "d", 1, 1.0, 1.0, 1.0), RunDrift)


def test_a_run_grown_by_another_estimator_counts_when_it_holds_the_calibration(store, calibration):
    """Its steps are predicted by the table; the roofline's predictions are what drift is measured against."""
    def saved(**info):
        writer = store.create(make_info(device="cpu", dtype="float32", attention="bastion", method="bastion@table", **info), text_of=text_of)
        for step in make_run(3):
            if step.kind == "decode":
                expected = float(calibration.verify_seconds(step.nodes, step.context))
                step = replace(step, predicted_verify_seconds=3 * expected, seconds=StepSeconds(0.1, 0.1, 1.5 * expected, 0.1))
            writer.append(step)
        return writer.finish("length")

    own = saved(calibration=calibration.to_json())
    saved(calibration=replace(calibration, draft_seconds=0.5).to_json()), saved(calibration={"probes": "damaged"}), saved()
    (found,) = read_drift(store, calibration).runs
    assert (found.run_id, found.method) == (own, "bastion@table") and found.median == pytest.approx(1.5)
