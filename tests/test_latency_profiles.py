"""Profiles that come with the program: found by device and sizes, used where nothing was measured here, and said so."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from bastion import decode
from bastion.analysis.latency_known import known_calibrations
from bastion.cli import main
from bastion.decoding.calibrate import usable_calibration
from bastion.errors import UserError
from bastion.figures.latency_words import calibration_label
from bastion.latency import Calibration, ModelShape, find_profile, profiles, shipped_words
from bastion.records import RunStore
from bench import gpu_check
from pages.parts.sidebar import calibration_words
from tests.tiny_pair import tiny_calibration, tiny_pair

PROMPT = [1, 2, 3, 4, 1, 2]


@pytest.fixture(scope="module")
def pair():
    return tiny_pair(vocab=11, block=5, positions=200)


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A function that ships calibrations, by way of the file that the GPU check leaves."""
    monkeypatch.setenv("BASTION_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(profiles, "PROFILES", tmp_path / "profiles")

    def ship(*made: Calibration) -> None:
        file = tmp_path / "profile.json"
        file.write_text(json.dumps({"calibrations": {f"{number}.json": one.to_json() for number, one in enumerate(made)}}))
        assert gpu_check.unpack(file, tmp_path / "profiles") == 0

    return ship


def text(pair, heard):
    return [step for step in decode(pair, PROMPT, "bastion", max_new_tokens=8, stop_token_ids=(), trace=False, on_notice=heard.append)]


def test_a_profile_stands_in_until_a_calibration_is_made_here(pair, shipped, monkeypatch):
    """And nothing is measured for it."""
    measuring = sys.modules[usable_calibration.__module__]
    monkeypatch.setattr(measuring, "calibrate", lambda *_, **__: pytest.fail("measured in spite of the profile"))
    made = replace(tiny_calibration(pair), target="same sizes", drafter="another", made_at="2026-01-01T00:00:00+00:00")
    shipped(made)
    found = usable_calibration(pair)
    assert found == replace(made, shipped=True) and found.id != made.id
    heard = []
    steps = text(pair, heard)
    assert heard == [shipped_words(found)] and "measured elsewhere" in heard[0] and "same sizes and another" in heard[0]
    assert all(step.predicted_verify_seconds == found.estimator().seconds(step.nodes, step.context) for step in steps[1:])
    decode(pair, PROMPT, "ar", on_notice=heard.append)
    assert len(heard) == 1   # what does not grow by it, does not speak of it

    own = replace(tiny_calibration(pair, step=0.5), made_at="2025-01-01T00:00:00+00:00")
    own.save()
    assert usable_calibration(pair) == own and text(pair, heard) and len(heard) == 1


def test_it_is_found_by_device_sizes_number_type_and_attention(pair, shipped):
    made = tiny_calibration(pair)
    key = (pair.device_name, ModelShape.from_config(pair.target.config), pair.dtype_name, pair.attention)
    assert find_profile(*key) is None   # no folder is an empty one
    shipped(replace(made, target="x", made_at="2026-01-02T00:00:00+00:00"), replace(made, target="y", made_at="2026-01-01T00:00:00+00:00"),
            replace(made, target="y", drafter="z", made_at="2026-01-03T00:00:00+00:00"))
    assert find_profile(*key).made_at.startswith("2026-01-03")   # the newest
    assert find_profile(*key, "x", "z").target == "x"            # the target's name goes before the drafter's
    assert find_profile(*key, "y", made.drafter).made_at.startswith("2026-01-01")
    for place, value in enumerate(("other", replace(key[1], layers=9), "int8", "other")):
        assert find_profile(*(value if at == place else part for at, part in enumerate(key))) is None


def test_that_it_was_shipped_is_said_wherever_it_is_shown(pair, shipped, capsys, tmp_path):
    made = tiny_calibration(pair)
    shipped(made)
    (tmp_path / "profiles" / "bad.json").write_text("{")
    found = usable_calibration(pair)
    content = found.to_json()
    assert content["shipped"] is True and "shipped" not in made.to_json() and Calibration.from_json(content) == found
    with pytest.raises(UserError, match="yes or no"):
        Calibration.from_json({**content, "shipped": "maybe"})
    assert "a shipped profile, not measured here" in calibration_words(content) and "shipped profile" in calibration_label(found)
    store = RunStore()
    assert [one.calibration for one in known_calibrations(store, device=pair.device_name).found] == [found]
    assert known_calibrations(store, device="another").found == [] and known_calibrations(store).newest("another").calibration == found
    assert main(["calibrate", "--list"]) == 0
    assert "shipped" in capsys.readouterr().out
    own = replace(tiny_calibration(pair, step=0.5), made_at="2020-01-01T00:00:00+00:00")
    own.save()
    assert known_calibrations(store).newest(pair.device_name).calibration == own


def test_a_calibration_made_here_does_not_take_the_name_of_a_shipped_one(pair, shipped):
    shipped(tiny_calibration(pair))
    found = usable_calibration(pair)
    assert not (found.path.exists() or found.path.parent.exists())   # reading it has stored nothing
