"""Measuring a device: what is measured, stored and found again. No time is asserted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bastion.decoding import calibrate, decode
from bastion.decoding import peaks as peaks_module
from bastion.decoding.calibrate import probe_grid, profile_steps, stored_calibration
from bastion.latency import Calibration
from tests.tiny_pair import tiny_pair

PROMPT = [1, 4, 2, 0, 3]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("BASTION_HOME", str(tmp_path))
    monkeypatch.setattr(peaks_module, "SECONDS", 0.01)
    monkeypatch.setattr(peaks_module, "CPU_SIDE", 128)
    monkeypatch.setattr(peaks_module, "CPU_BYTES", 1 << 20)
    return tmp_path


@pytest.fixture(scope="module")
def pair():
    return tiny_pair(vocab=12, positions=128)


def test_a_calibration_is_measured_stored_and_found_again(home, pair):
    heard = []
    made = calibrate(pair, quick=True, progress=lambda words, share: heard.append((words, share)))
    assert made.peaks_source == "measured" and made.peaks.flops_per_second > 0 and made.peaks.bytes_per_second > 0
    grid = probe_grid(pair, quick=True)
    assert {(n, c) for n, c, _ in made.probes} == {(n, c) for n in grid.nodes for c in grid.contexts}
    assert all(seconds > 0 for _, _, seconds in made.probes)
    assert any(made.held_out) and not all(made.held_out)
    assert made.draft_seconds > 0 and made.other_seconds > 0
    assert made.roofline.bytes_per_value == 8
    assert np.isfinite(made.verify_seconds(np.arange(1, 65), 100)).all()
    shares = [share for _, share in heard]
    assert shares == sorted(shares) and shares[-1] == 1.0 and all(words for words, _ in heard)
    assert stored_calibration(pair) == made == Calibration.load(made.path)
    assert made.path.is_relative_to(home)


def test_a_calibration_belongs_to_its_pair(home, pair):
    calibrate(pair, quick=True)
    assert stored_calibration(replace(pair, drafter_name="another")) is None
    assert stored_calibration(replace(pair, attention="another")) is None


def test_contexts_are_cut_to_the_models_positions(pair):
    contexts = list(probe_grid(tiny_pair(positions=100), quick=False).contexts)
    assert contexts == sorted(set(contexts)) and max(contexts) < 100
    grid = probe_grid(tiny_pair(positions=4096), quick=False)
    assert len(grid.nodes) * len(grid.contexts) > 60 and grid.rounds >= 5


def test_decoding_calibrates_once_and_says_so(home, pair):
    notices = []
    steps = list(decode(pair, PROMPT, "bastion", max_new_tokens=8, on_notice=notices.append))
    assert len(notices) == 1 and "Calibrating" in notices[0]
    assert all(step.predicted_verify_seconds > 0 for step in steps[1:])
    list(decode(pair, PROMPT, "bastion", max_new_tokens=8, on_notice=notices.append))
    assert len(notices) == 1
    # other methods show predictions when there are some, and never measure by themselves
    for method in ("ar", "dflash"):
        steps = list(decode(pair, PROMPT, method, max_new_tokens=8, on_notice=notices.append))
        assert steps[1].predicted_verify_seconds > 0
    assert len(notices) == 1


def test_a_damaged_calibration_is_made_again(home, pair):
    path = calibrate(pair, quick=True).path
    path.write_text("{")
    assert list(decode(pair, PROMPT, "ar", max_new_tokens=3))[1].predicted_verify_seconds is None
    list(decode(pair, PROMPT, "bastion", max_new_tokens=3))
    assert Calibration.load(path).device_key == pair.device_name


def test_methods_with_a_fixed_tree_need_no_calibration(home, pair):
    steps = list(decode(pair, PROMPT, "ddtree:5", max_new_tokens=8))
    assert steps[1].predicted_verify_seconds is None
    assert steps[1].trace.predicted_draft_seconds is None and len(steps[1].trace.predicted_seconds) == 0
    assert stored_calibration(pair) is None


def test_a_pair_without_a_drafter_can_be_calibrated(home, pair):
    alone = replace(pair, drafter=None, drafter_name="")
    draft, other = profile_steps(alone)
    assert draft < other
    assert calibrate(alone, quick=True).draft_seconds < 1e-3
