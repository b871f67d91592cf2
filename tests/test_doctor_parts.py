"""What the doctor's numbers are made of, on a tiny pair in float64: the replay, the changes, the verdict, the report."""

import json
from dataclasses import replace

import numpy as np
import pytest

from bastion.decoding.doctor import inputs, material, outputs, report_json
from bastion.decoding.doctor.drafting import Change, Variant
from bastion.decoding.doctor.examine import Report, check_judgeable, examine
from bastion.decoding.doctor.registry import CHECKS, Check, checks_named
from bastion.decoding.doctor.replay import Proposals, lengths, log_likelihoods, propose
from bastion.decoding.doctor.verdict import paired
from bastion.errors import UserError
from bastion.figures import doctor_words
from tests.crooked_pairs import with_session
from tests.tiny_pair import tiny_pair

PROMPTS = [[1, 2, 3, 4], [5, 1, 7], [8, 8, 2, 1, 6]]


@pytest.fixture(scope="module")
def pair():
    return tiny_pair(vocab=40, block=4)


@pytest.fixture(scope="module")
def answers(pair):
    return material.collect(pair, PROMPTS, 16, range(-1, pair.target.layers))


def live(drafter, answer, k):
    """What a session proposes that reads the answer token by token, as decoding does."""
    session, features, read, found = drafter.start(len(answer.ids)), answer.context(drafter.feature_layer_ids), 0, []
    for place in answer.anchors(drafter.depth):
        found.append(session.draft(features[:, read:place], answer.ids[place], k))
        read = place
    return found


@pytest.mark.parametrize("fault", ["", "anchor", "context", "positions", "order", "vocabulary"])
def test_the_replay_proposes_what_the_session_does(pair, answers, fault):
    drafter = with_session(pair, fault).drafter if fault else pair.drafter
    for answer in answers:
        made = propose(drafter, answer, Change())
        for row, (ids, log_probs) in enumerate(live(drafter, answer, 40)):
            np.testing.assert_allclose(made.log_probs[row], log_probs, atol=1e-6)
            assert (made.ids[row] == ids).mean() > 0.99  # equal probabilities may change places


@pytest.mark.parametrize(("fault", "undo"), [
    ("anchor", Change(given=inputs.anchor_put)), ("context", Change(given=inputs.context_cut)),
    ("positions", Change(given=inputs.positions_put)), ("order", Change(given=inputs.bidirectional)),
    ("vocabulary", Change(ids=lambda ids, own: (ids - 1) % 40))])
def test_each_undoing_restores_the_healthy_proposals(pair, answers, fault, undo):
    for answer in answers:
        healthy, cured = propose(pair.drafter, answer, Change()), propose(with_session(pair, fault).drafter, answer, undo)
        np.testing.assert_allclose(cured.log_probs, healthy.log_probs, atol=1e-6)
        assert (cured.ids[:, :, 0] == healthy.ids[:, :, 0]).all()


@pytest.mark.parametrize("change", [inputs.anchor_put, inputs.context_cut, inputs.positions_put, inputs.bidirectional])
def test_undoing_what_is_not_there_changes_nothing(pair, answers, change):
    assert propose(pair.drafter, answers[0], Change(given=change)) is None


def test_other_layers_and_temperatures_leave_the_pair_as_it_was(pair, answers):
    before, watched, hot = propose(pair.drafter, answers[0], Change()), pair.target._watched, pair.drafter.temperatures
    other = propose(pair.drafter, answers[0], Change(layer_ids=(1, 2), temperatures=(2.0, 2.0, 2.0)))
    assert np.abs(other.log_probs - before.log_probs).max() > 0.01
    again = propose(pair.drafter, answers[0], Change())
    np.testing.assert_array_equal(again.log_probs, before.log_probs)
    assert pair.target._watched == watched and pair.drafter.temperatures is hot and "forward" not in vars(pair.drafter.model)


def test_collected_answers_are_greedy(pair, answers):
    from bastion import decode

    for prompt, answer in zip(PROMPTS, answers, strict=True):
        said = [token for step in decode(pair, prompt, "ar", max_new_tokens=16) for token in step.emitted]
        assert answer.ids == (*prompt, *said) and answer.prompt_length == len(prompt)


def test_lengths_by_hand():
    answer = material.Answer((9, 1, 2, 3, 4, 5), 1, {})
    ids = np.array([[[2, 0], [3, 0], [4, 0]], [[3, 7], [7, 4], [5, 7]]])
    log_probs = np.log(np.array([[[0.6, 0.3]] * 3, [[0.6, 0.3]] * 3]))
    made = Proposals(ids, log_probs, ids)
    assert lengths(made, answer, 4).tolist() == [4, 2]     # the whole path; 3, then 7 where the target says 4
    assert lengths(made, answer, 30).tolist() == [4, 4]    # the second choice is in a tree as large as that
    expected = np.log([[0.6, 0.6, 0.6], [0.6, 0.3, 0.6]]).mean(axis=1)
    np.testing.assert_allclose(log_likelihoods(made, answer), expected)


def test_the_interval_of_a_gain():
    before = [np.array([1, 2, 3, 2] * 10), np.array([1, 1, 2, 2] * 10)]
    sure = paired(before, [values + 1 for values in before], 4)
    assert (sure.gain, sure.low, sure.high, sure.positions) == (1.0, 1.0, 1.0, 80) and sure.clear_tau
    noise = np.random.default_rng(0).choice([-1, 1], size=80)
    none = paired(before, [before[0] + noise[:40], before[1] + noise[40:]], 4)
    assert none.low < 0 < none.high and not none.clear_tau


def test_the_report_ranks_by_tau_and_is_strict_json(pair, answers):
    crooked = with_session(pair, "vocabulary")
    tests = [Check("layers", "feature layers", lambda bench: outputs.layers(bench.pair)),
             Check("vocabulary", "vocabulary map", lambda bench: outputs.vocabulary(bench.pair)),
             Check("mine", "a test that cannot be made", lambda bench: [Variant("x", "y", Change(answers=lambda: ([], [])))])]
    crooked = replace(crooked, tokenizer=type("T", (), {"backend": type("B", (), {"chat_template": None})})())
    report = examine(crooked, tests=tests, answers=answers)
    made = json.loads(json.dumps(report_json(report), allow_nan=False))
    assert isinstance(report, Report) and made["positions"] == sum(len(one.anchors(3)) for one in answers)
    assert set(made["not_tested"]) == {"mine"} and len(made["tried"]) == len(report.outcomes)


def test_what_cannot_be_examined_is_refused(pair):
    with pytest.raises(UserError, match="no drafter"):
        examine(replace(pair, drafter=None))
    with pytest.raises(UserError, match="no tokenizer"):
        examine(pair)
    with pytest.raises(UserError, match="DFlash"):
        check_judgeable(replace(pair, drafter=type("D", (), {"kind": "eagle3"})()))
    assert {test.name: test.title for test in CHECKS} == doctor_words.TESTS and len(CHECKS) == 11


def test_tests_are_chosen_by_name():
    assert checks_named(()) == checks_named([""]) == CHECKS
    assert [test.name for test in checks_named([" mask", "anchor"])] == ["anchor", "mask"]
    with pytest.raises(UserError, match="no test named dtype; the doctor has anchor, layers"):
        checks_named(["mask", "dtype"])
