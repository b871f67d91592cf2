"""Calibrations as plain values, and the list of those there are."""

import json
from dataclasses import replace

import pytest

from bastion.analysis.latency_known import carried, known_calibrations
from bastion.errors import UserError
from bastion.latency import Calibration, make_calibration, moment, stored_calibrations
from bastion.records import RunStore
from tests.synthetic_runs import make_info, make_run, text_of
from tests.test_latency_fit import CPU, CPU_PROBES, SMALL


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("BASTION_HOME", str(tmp_path / "home"))


def made(made_at: str, **changes) -> Calibration:
    about = {"device_key": "cpu", "target": "t", "dtype": "float32", "attention": "a", "drafter": "d", "draft_seconds": 0.01,
             "other_seconds": 0.002, "made_at": made_at, **changes}
    return make_calibration(shape=SMALL, peaks=CPU, peaks_source="measured", probes=CPU_PROBES, robust=True, **about)


OLD, NEW = "2026-01-01T00:00:00+00:00", "2026-02-01T00:00:00+00:00"


def saved_run(store: RunStore, calibration, **changes) -> str:
    writer = store.create(make_info(calibration=calibration, **changes), text_of=text_of)
    for step in make_run(2):
        writer.append(step)
    return writer.finish("length")


def test_all_of_it_passes_through_json():
    calibration = made(OLD)
    content = json.loads(json.dumps(calibration.to_json()))
    assert Calibration.from_json(content) == calibration
    assert Calibration.from_json({**content, "max_probed_nodes": 128}) == calibration
    assert len(json.dumps(content)) < 8000


@pytest.mark.parametrize("change", [
    lambda c: c.update(schema_version=2), lambda c: c.pop("probes"), lambda c: c.update(surprise=1),
    lambda c: c["probes"].append([1, 2, 1e400]), lambda c: c["probes"].append([0, 2, 0.1]), lambda c: c["probes"].append([10**30, 2, 0.1]),
    lambda c: c["probes"].append([1, 2, -0.1]), lambda c: c["roofline"].update(alpha_m=1e308), lambda c: c["roofline"]["shape"].update(vocab=10**400),
    lambda c: c["peaks"].update(name=[1]), lambda c: c.update(roofline=None), lambda c: c.update(probes=[[1, 1, 0.1]] * 10_001),
    lambda c: c["peaks"].update(flops_per_second="fast"),
])
def test_damaged_values_are_one_sentence_that_names_them(change):
    content = json.loads(json.dumps(made(OLD).to_json()))
    change(content)
    with pytest.raises(UserError, match="The calibration in run 7.*bastion calibrate"):
        Calibration.from_json(content, "The calibration in run 7")


@pytest.mark.parametrize("content", [None, [], "x", 3, {}])
def test_what_is_no_calibration_is_refused(content):
    with pytest.raises(UserError, match="bastion calibrate"):
        Calibration.from_json(content)


def test_stored_ones_are_listed_newest_first_and_damaged_ones_named(tmp_path):
    assert stored_calibrations().found == [] and stored_calibrations().damaged == []
    old, new = made(OLD), made(NEW, dtype="bfloat16")
    old.save(), new.save()
    broken = old.path.with_name("broken.json")
    broken.write_text("[" * 100_000)
    listed = stored_calibrations()
    assert [calibration for calibration, _ in listed.found] == [new, old]
    assert [path for _, path in listed.found] == [new.path, old.path]
    assert len(listed.damaged) == 1 and str(broken) in listed.damaged[0] and "\n" not in listed.damaged[0]


def test_a_time_that_is_none_sorts_last():
    made("yesterday").save()
    made(OLD, dtype="bfloat16").save()
    assert [calibration.made_at for calibration, _ in stored_calibrations().found] == [OLD, "yesterday"]
    assert moment("2026-01-01T00:00:00") == moment(OLD) and moment("9999-12-31T23:59:59-23:00") is None


def test_each_measurement_has_its_own_id():
    ids = {made(OLD).id, made(NEW).id, made(OLD, dtype="bfloat16").id, made(OLD, drafter="").id, made(OLD, device_key="gpu").id}
    assert len(ids) == 5 and made(OLD).id == Calibration.from_json(made(OLD).to_json()).id


def test_runs_bring_theirs_along(tmp_path):
    store = RunStore()
    here, elsewhere = made(OLD), made(NEW, device_key="H200")
    here.save()
    full = {**elsewhere.to_json(), "max_probed_nodes": elsewhere.max_probed_nodes}
    first, second = saved_run(store, full), saved_run(store, full)
    both = saved_run(store, here.to_json())
    summary = saved_run(store, {"made_at": OLD, "peaks_source": "measured", "raw_rmse": 0.1, "calibrated_rmse": 0.01})
    bad = saved_run(store, {**full, "probes": "x"})
    saved_run(store, None)
    known = known_calibrations(store)
    assert [one.calibration for one in known.found] == [elsewhere, here]
    assert set(known.found[0].runs) == {first, second} and known.found[0].path is None
    assert known.found[1].runs == [both] and known.found[1].path == here.path
    assert known.summaries == [summary]
    assert len(known.damaged) == 1 and f"The calibration in run {bad}" in known.damaged[0]
    assert known.newest().calibration == here           # stored here goes before newer from elsewhere
    assert known.newest("H200").calibration == here     # what a run carries is of another machine


def test_the_newest_of_this_device_is_preferred():
    made(OLD, device_key="one").save()
    made(NEW, device_key="two").save()
    known = known_calibrations(RunStore())
    assert known.newest("one").calibration.device_key == "one" and known.newest().calibration.device_key == "two"
    assert known_calibrations(RunStore(), folder=known.found[0].path.parent / "none").newest() is None


def test_what_a_run_holds_is_told_apart():
    full = made(OLD)
    assert carried(full.to_json(), "x") == full
    assert carried(None, "x") is False and carried({}, "x") is False and carried({"made_at": OLD}, "x") is True


def test_a_newer_measurement_of_the_same_pair_replaces_the_file_and_not_the_copy_in_a_run():
    store, old = RunStore(), made(OLD)
    old.save()
    run = saved_run(store, old.to_json())
    replace(old, made_at=NEW).save()
    known = known_calibrations(store)
    assert [(one.calibration.made_at, one.path is None, one.runs) for one in known.found] == [(NEW, False, []), (OLD, True, [run])]
