"""The doctor on the default pair: it names none of its tests on the healthy one, and first the fault that was planted."""

import json
from pathlib import Path

import numpy as np
import pytest

from bastion import decode
from bastion.decoding.doctor import examine, material
from bastion.decoding.doctor.registry import CHECKS, checks_named
from tests.crooked_pairs import rounded_drafter, rounded_target, with_folder, with_pruned_vocabulary, with_session, with_template

HERE = Path(__file__).parent
QUESTIONS, TOKENS = 4, 24   # where the target must answer anew
FEW = 3                     # answers that show a costly fault; slight ones need all
TRAINED = [1, 8, 14, 20, 27]


@pytest.fixture(scope="module")
def answers(default_pair):
    """The target's greedy answers to the doctor's questions, from a file, and the features of every layer."""
    known = json.loads((HERE / "doctor_answers.json").read_text())
    layers = range(-1, default_pair.target.layers)   # -1: its embedding
    return [material.read(default_pair.target, one["ids"], one["prompt_length"], layers) for one in known]


@pytest.fixture(scope="module")
def contrasts():
    return {}


@pytest.fixture
def found(answers, contrasts):
    def found(pair, count=FEW):
        report = examine(pair, material.PROMPTS[:QUESTIONS], TOKENS, answers=answers[:count], contrasts=contrasts)
        assert not report.not_tested.keys() - {"temperatures"}
        return report
    return found


def layers_set(ids):
    return lambda config: {**config, "dflash_config": {**config["dflash_config"], "target_layer_ids": ids}}


def test_the_known_answers_are_the_targets_own(default_pair, answers):
    prompts = material.encoded_prompts(default_pair)
    assert [list(one.ids[:one.prompt_length]) for one in answers] == prompts
    shortest = min(range(len(answers)), key=lambda place: len(answers[place].ids))
    said = [token for step in decode(default_pair, prompts[shortest], "ddtree:8", max_new_tokens=20, trace=False) for token in step.emitted]
    assert tuple(said) == answers[shortest].ids[len(prompts[shortest]):][:20]


def test_the_healthy_pair_has_no_fault(default_pair, answers, found):
    report = found(default_pair, len(answers))
    assert report.findings == []
    assert set(report.healthy) == {test.name for test in CHECKS} and report.not_tested == {}
    assert report.positions > 350 and 2 < report.tau < 2.6
    harmful = {one.test for one in report.outcomes if not one.same and one.tau.high < 0}
    assert harmful >= {"anchor", "mask", "vocabulary"}, "undoing what is right must cost something"


@pytest.mark.parametrize(("fault", "count"), [("anchor", FEW), ("positions", FEW), ("vocabulary", FEW), ("context", None), ("order", None)])
def test_a_fault_in_the_session_is_named_first(default_pair, found, fault, count):
    report = found(with_session(default_pair, fault), count)
    assert report.findings[0].test == fault


def test_feature_layers_one_too_low_are_named_first(default_pair, found, tmp_path):
    report = found(with_folder(default_pair, tmp_path / "drafter", layers_set([layer - 1 for layer in TRAINED])), None)
    assert report.findings[0].test == "layers" and str(TRAINED) in report.findings[0].todo


def test_a_wrong_mask_token_is_named_first(default_pair, found, tmp_path):
    def config(raw):
        return {**raw, "dflash_config": {**raw["dflash_config"], "mask_token_id": 0}}

    report = found(with_folder(default_pair, tmp_path / "drafter", config))
    best = report.findings[0]   # several special tokens are embedded nearly alike here and serve as well
    assert best.test == "mask" and best.tau.gain > 0.8 and "mask_token_id to" in best.todo


def test_wrong_depth_temperatures_are_named_first(default_pair, found, tmp_path):
    report = found(with_folder(default_pair, tmp_path / "drafter", growth=lambda raw: {**raw, "depth_temperatures": [0.3] * 7}))
    assert report.findings[0].test == "temperatures"


def test_a_drafter_of_rounded_weights_is_named_first(default_pair, found):
    assert found(rounded_drafter(default_pair, 3)).findings[0].test == "drafter numbers"


@pytest.fixture(scope="module")
def kept(answers):
    """A third of the vocabulary, with all that the answers need."""
    needed = [token for answer in answers for token in answer.ids]
    return np.unique([*needed, *range(0, 49152, 3)])


@pytest.mark.parametrize(("taken_for", "undone"), [("", None), ("offsets", "vocabulary map as offsets"), ("ids", "vocabulary map as ids")])
def test_a_wrong_map_from_a_reduced_vocabulary_is_found(default_pair, answers, kept, taken_for, undone):
    pair = with_pruned_vocabulary(default_pair, kept, taken_for)
    tests = checks_named(["vocabulary", "mask", "drafter numbers"])
    report = examine(pair, material.PROMPTS[:QUESTIONS], TOKENS, answers=answers[:FEW], tests=tests)
    assert [(one.test, one.label) for one in report.findings[:1]] == ([("vocabulary", undone)] if undone else [])
    assert undone is None or report.findings[0].tau.after > 2 and report.tau < 1.3
    assert "is not shaped like" in report.not_tested["drafter numbers"]


@pytest.mark.parametrize("fault", ["template", "target weights"])
def test_a_fault_on_the_targets_side_is_named_first(default_pair, fault):
    pair = with_template(default_pair) if fault == "template" else rounded_target(3)
    report = examine(pair, material.PROMPTS[:QUESTIONS], TOKENS)
    assert report.findings[0].test == fault
