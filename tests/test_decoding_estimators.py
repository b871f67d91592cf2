"""`bastion@NAME`: growth by the estimator that is named, what it learns from, and what the records say of it."""

from dataclasses import replace

import numpy as np
import pytest

from bastion.analysis.look_past import replay
from bastion.decoding import Bastion, decode, resolve_method
from bastion.errors import UserError
from bastion.figures.palette import METHOD_LOOKS, method_colour, method_dash
from bastion.jobs import DecodeRequest
from bastion.jobs.engine import is_adaptive, resolved
from bastion.jobs.prompt_files import split_methods
from bastion.latency import ESTIMATORS, OnlineEstimator, build_estimator
from tests.test_decoding_loop import PROMPT, emitted, greedy
from tests.tiny_pair import tiny_calibration, tiny_pair

NAMES = [f"{base}@{estimator}" for base in ("bastion", "bastion+ngram") for estimator in ESTIMATORS]


@pytest.fixture(scope="module")
def pair():
    return tiny_pair(vocab=6, block=4)


def method_of(name, pair, **changes):
    return replace(resolve_method(name), calibration=tiny_calibration(pair), **changes)


@pytest.mark.parametrize("name", NAMES)
def test_temperature_zero_emits_the_greedy_ids(pair, name):
    steps = list(decode(pair, PROMPT, method_of(name, pair), max_new_tokens=40, trace=False))
    assert emitted(steps) == greedy(pair, 40)


@pytest.mark.parametrize("name", NAMES)
def test_records_hold_the_prediction_that_was_used_before_it_was_learned_from(pair, name):
    """The same times observed by a fresh estimator give every recorded number again."""
    calibration = tiny_calibration(pair)
    steps = list(decode(pair, PROMPT, method_of(name, pair), max_new_tokens=40))[1:]
    again = build_estimator(name.partition("@")[2], calibration)
    for step in steps:
        table, log = step.trace.predicted_seconds, step.trace.growth
        np.testing.assert_allclose(table, again.seconds(np.arange(1, len(table) + 1), step.context), rtol=1e-12)
        assert step.predicted_verify_seconds == pytest.approx(again.seconds(step.nodes, step.context), rel=1e-12)
        surrogate = 1.0 + np.concatenate(([0.0], np.cumsum(np.exp(log.path_log_probs[:-1])))) if len(log) else np.zeros(0)
        inside = np.arange(len(log))[: len(table) - 1]
        np.testing.assert_allclose(log.gains[inside], np.exp(log.path_log_probs[inside]) * (1.1 + table[inside]), rtol=1e-9)
        np.testing.assert_allclose(log.prices[inside], surrogate[inside] * np.diff(table)[inside], rtol=1e-6, atol=1e-12)
        if isinstance(again, OnlineEstimator):
            again.observe(step.nodes, step.context, step.seconds.verify)
    if isinstance(again, OnlineEstimator):   # the machine is far faster than this calibration says
        assert again.seconds(steps[-1].nodes, 30) < 0.9 * build_estimator(name.partition("@")[2], calibration).seconds(steps[-1].nodes, 30)


def test_every_decode_begins_anew_and_two_at_once_do_not_meet(pair):
    method = method_of("bastion@roofline-ema", pair)
    first = list(decode(pair, PROMPT, method, max_new_tokens=12))[1].predicted_verify_seconds
    left, right = (decode(pair, PROMPT, method, max_new_tokens=12) for _ in range(2))
    next(left), next(right), list(left)
    step, expected = next(right), tiny_calibration(pair).verify_seconds
    assert step.predicted_verify_seconds == pytest.approx(float(expected(step.nodes, step.context))) == first
    assert method.latency is None


def test_without_a_name_it_is_the_calibrated_roofline(pair):
    plain, named = (list(decode(pair, PROMPT, method_of(name, pair), max_new_tokens=30))[1:] for name in ("bastion", "bastion@roofline"))
    assert [s.nodes for s in plain] == [s.nodes for s in named]
    assert [s.predicted_verify_seconds for s in plain] == [s.predicted_verify_seconds for s in named]


def test_only_a_cost_with_steps_is_looked_past(pair):
    for name in NAMES:
        far = method_of(name, pair).budget(20).look_past
        assert far == (32 if name.endswith("@table") else 0)
        assert method_of(name, pair, look_past=5).budget(20).look_past == 5


@pytest.mark.parametrize("name", NAMES)
def test_names_are_kept_and_bounds_still_apply(name):
    method = resolve_method(f" {name} ")
    assert method.name == name and is_adaptive(method) and method.needs_calibration
    bounded = resolved(DecodeRequest("Hi", name, min_nodes=3, max_nodes=9))
    assert (bounded.min_nodes, bounded.max_nodes_bound, bounded.estimator) == (3, 9, name.partition("@")[2])


@pytest.mark.parametrize(("name", "words"), [
    ("bastion@", "choose one of convex, ema, raw, roofline, roofline-ema, table"), ("bastion@crystal", "'crystal'.*roofline-ema"),
    ("ar@table", "bastion@table"), ("ddtree:8@table", "ddtree:16"), ("ddtree@table:8", "does not grow by the device"), ("hope@table", "no method 'hope'"),
    ("bastion@table:4", "nothing behind a colon"), ("bastion@ema@table", "ema@table")])
def test_other_names_are_refused_in_one_line(name, words):
    with pytest.raises(UserError, match=words) as refused:
        resolve_method(name)
    assert "\n" not in str(refused.value)


def test_an_estimator_that_cannot_be_built_is_said_before_decoding(pair):
    calibration = replace(tiny_calibration(pair), probes=[(1, 4, 1.0)], held_out=[False])
    with pytest.raises(UserError, match="two tree sizes"):
        decode(pair, PROMPT, Bastion(calibration=calibration, estimator="table"))


def test_a_list_of_methods_keeps_estimators_apart():
    assert split_methods("ar,bastion@ema,bastion+ngram@table, specinfer:4,2,2,1,bastion@roofline-ema") == [
        "ar", "bastion@ema", "bastion+ngram@table", "specinfer:4,2,2,1", "bastion@roofline-ema"]


def test_another_estimator_is_another_dash_in_the_methods_colour():
    for name in NAMES:
        assert method_colour(name) == method_colour("bastion") != method_colour("unknown@ema")
    dashes = [method_dash(name) for name in [*NAMES, "bastion", "bastion+ngram"]]
    assert len(set(dashes)) == len(dashes) and "@" not in "".join(METHOD_LOOKS)


def test_a_replay_of_recorded_growth_is_what_a_decode_would_buy(pair):
    """Nothing is bought otherwise than by growing again; and looking past never predicts less speed."""
    calibration = tiny_calibration(pair)
    bumpy = replace(calibration, probes=[(n, c, s * (1 + 0.8 * (n > 2))) for n, c, s in calibration.probes])
    table = build_estimator("table", bumpy)
    steps = list(decode(pair, PROMPT, Bastion(calibration=bumpy, estimator="table"), max_new_tokens=40))
    found = replay(steps, bumpy, table, 32)
    assert found.ahead_nodes.tolist() == [step.nodes for step in steps[1:]]
    plain = list(decode(pair, PROMPT, Bastion(calibration=bumpy, estimator="table", look_past=0), max_new_tokens=40))
    assert replay(plain, bumpy, table, 32).plain_nodes.tolist() == [step.nodes for step in plain[1:]]
    assert (found.ahead_nodes > found.plain_nodes).any() and (found.gain >= 1 - 1e-12).all() and found.gain.max() > 1
    for row, step in enumerate(steps[1:]):
        assert found.ahead_surrogate[row] == pytest.approx(step.surrogate)
        assert found.ahead_seconds[row] == pytest.approx(1.1 + step.predicted_verify_seconds)
    assert len(replay(decode(pair, PROMPT, "ar", max_new_tokens=5, trace=False), bumpy, table, 32)) == 0
