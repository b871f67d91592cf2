"""The calibration file: what it holds, how it is found, and what a bad one says."""

import json
from dataclasses import replace

import pytest

from bastion.errors import UserError
from bastion.latency import (
    ESTIMATORS,
    CalibratedRoofline,
    Calibration,
    build_estimator,
    calibration_path,
    find_calibration,
    fit_calibration,
    held_out_rmse,
    make_calibration,
    raw_roofline,
)
from tests.test_latency_fit import CPU, CPU_PROBES, SMALL

KEY = ("cpu-2", "org/model", "bfloat16", "bastion", "assets/drafter")


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("BASTION_HOME", str(tmp_path / "home"))


@pytest.fixture
def calibration() -> Calibration:
    return make_calibration(
        shape=SMALL, peaks=CPU, peaks_source="measured", probes=CPU_PROBES, robust=True,
        device_key=KEY[0], target=KEY[1], dtype=KEY[2], attention=KEY[3], drafter=KEY[4],
        draft_seconds=0.006, other_seconds=0.002,
    )  # fmt: skip


def test_errors_are_those_on_points_the_fit_did_not_see(calibration):
    seen = [probe for probe, out in zip(CPU_PROBES, calibration.held_out, strict=True) if not out]
    assert 0 < len(seen) < len(CPU_PROBES)
    assert calibration.roofline == fit_calibration(SMALL, CPU, seen, robust=True)
    assert calibration.calibrated_rmse == held_out_rmse(calibration.roofline, CPU_PROBES, calibration.held_out)
    assert calibration.raw_rmse == held_out_rmse(raw_roofline(SMALL, CPU), CPU_PROBES, calibration.held_out)
    assert calibration.calibrated_rmse < calibration.raw_rmse


def test_saved_and_found_again(calibration):
    assert find_calibration(*KEY) is None
    path = calibration.save()
    assert path == calibration.path == calibration_path(*KEY)
    assert find_calibration(*KEY) == Calibration.load(path) == calibration
    # Nothing but the finished file is left in the folder.
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    newer = replace(calibration, draft_seconds=0.5)
    newer.save()
    assert find_calibration(*KEY).draft_seconds == 0.5


def test_each_key_has_its_own_file():
    others = [tuple(part if j != i else part + "x" for j, part in enumerate(KEY)) for i in range(5)]
    keys = [KEY, *others, ("cpu", "2-org/model", *KEY[2:])]
    paths = [calibration_path(*key) for key in keys]
    assert len(set(paths)) == len(keys)
    hostile = calibration_path("../../etc", "../..", "a\0b", "c/d" * 200)
    assert hostile.parent == paths[0].parent and len(hostile.name) < 128


def test_what_adaptive_growth_needs(calibration):
    assert calibration.verify_seconds(16, 300) == calibration.roofline.seconds(16, 300)
    assert calibration.max_probed_nodes == 128
    assert (calibration.draft_seconds, calibration.other_seconds) == (0.006, 0.002)


def test_the_registry_names_its_estimators(calibration):
    assert set(ESTIMATORS) >= {"roofline", "raw"}
    assert calibration.estimator() is calibration.roofline
    assert calibration.estimator("raw") == CalibratedRoofline(SMALL, CPU)
    with pytest.raises(UserError, match="raw"):
        build_estimator("crystal ball", calibration)


def spoil(path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.update(schema_version=99),
        lambda content: content.pop("schema_version"),
        lambda content: content.pop("peaks"),
        lambda content: content.pop("probes"),
        lambda content: content.update(surprise=1),
        lambda content: content.update(draft_seconds="fast"),
        lambda content: content.update(draft_seconds=-1),
        lambda content: content.update(draft_seconds=float("nan")),
        lambda content: content.update(peaks_source="guessed"),
        lambda content: content["roofline"].update(alpha_m="1"),
        lambda content: content["roofline"].update(alpha_c=-1.0),
        lambda content: content["roofline"].update(bytes_per_value=None),
        lambda content: content["roofline"]["shape"].update(layers=-3),
        lambda content: content["held_out"].pop(),
        lambda content: content["probes"].append([1, 2]),
        lambda content: content.update(made_at=3),
        lambda content: content.update(target=None),
    ],
)
def test_a_bad_file_is_one_clear_error(calibration, change):
    path = calibration.save()
    spoil(path, change)
    with pytest.raises(UserError, match="bastion calibrate"):
        Calibration.load(path)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'"a"'])
def test_a_damaged_file_is_one_clear_error(calibration, text):
    path = calibration.save()
    path.write_bytes(text)
    with pytest.raises(UserError, match="bastion calibrate"):
        find_calibration(*KEY)


def test_a_missing_file_says_what_to_run(tmp_path):
    with pytest.raises(UserError, match="bastion calibrate"):
        Calibration.load(tmp_path / "none.json")
    with pytest.raises(UserError):
        Calibration.load(tmp_path)


def test_a_failed_write_leaves_the_old_file(calibration, monkeypatch):
    path = calibration.save()
    before = path.read_bytes()

    def full_disk(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        replace(calibration, draft_seconds=0.5).save()
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]
