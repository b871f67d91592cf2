"""The simulated drafter: it is right as often as asked, it changes no output, and it says that it is simulated."""

import numpy as np
import pytest
from scipy.stats import binom, chisquare

from bastion import decode
from bastion.decoding import METHODS, resolve_method
from bastion.decoding.methods import is_simulated
from bastion.decoding.synthetic import SyntheticSession
from bastion.errors import UserError
from tests.tiny_pair import tiny_calibration, tiny_pair

PROMPT = [1, 2, 3, 1, 5]


@pytest.fixture(scope="module")
def pair():
    return tiny_pair(vocab=40, positions=320)


def decoded(pair, method, tokens=280, **options):
    from dataclasses import replace

    built = resolve_method(method)
    if built.needs_calibration:
        built = replace(built, calibration=replace(tiny_calibration(pair), draft_seconds=0.0))
    return list(decode(pair, PROMPT, built, max_new_tokens=tokens, **options))


def output(steps):
    return [token for step in steps for token in step.emitted]


@pytest.mark.parametrize("method", ["synthetic:0.8", "synthetic:0.9,0.5,0.2", "synthetic:1", "synthetic:0.05"])
def test_the_output_is_plain_decodings(pair, method):
    assert output(decoded(pair, method, 120)) == output(decoded(pair, "ar", 120))


def test_a_stop_token_ends_it_as_it_ends_plain_decoding(pair):
    stop = output(decoded(pair, "ar", 40))[25]
    plain, made = (output(decoded(pair, method, 40, stop_token_ids=[stop])) for method in ("ar", "synthetic:0.9"))
    assert made == plain and plain[-1] == stop


def test_in_a_decode_each_depth_is_right_as_often_as_its_rate(pair):
    rates = (0.8, 0.6, 0.4)
    answer = PROMPT + output(decoded(pair, "ar", 290))
    hits, tried = np.zeros(3, dtype=int), 0
    for step in decoded(pair, "synthetic:0.8,0.6,0.4", 280, seed=3):
        if step.kind == "decode":
            tried += 1
            true = answer[step.context + 1:step.context + 4]
            hits += step.trace.marginal_token_ids[:len(true), 0] == true
    assert tried > 80
    for count, rate in zip(hits, rates, strict=True):
        assert binom.ppf(0.005, tried, rate) <= count <= binom.ppf(0.995, tried, rate)


def test_its_stated_probabilities_are_how_often_each_rank_is_right():
    known = tuple(np.random.default_rng(0).integers(500, size=6000).tolist())
    session = SyntheticSession((0.7, 0.3), known, 500, seed=1)
    ranks = [[], []]
    for context in range(len(known) - 3):
        ids, log_probs = session.draft_at(context, known[context], 128)
        for depth in (0, 1):
            found = np.flatnonzero(ids[depth] == known[context + depth + 1])
            ranks[depth].append(found[0] if len(found) else 128)
            assert len(set(ids[depth].tolist())) == 128
    for depth, rate in enumerate((0.7, 0.3)):
        stated = np.exp(log_probs[depth])
        np.testing.assert_allclose(stated, rate * (1 - rate) ** np.arange(128), rtol=1e-9)
        kinds = 4 if depth == 0 else 10
        counts = np.bincount(np.minimum(ranks[depth], kinds), minlength=kinds + 1)
        expected = np.append(stated[:kinds], 1 - stated[:kinds].sum()) * len(ranks[depth])
        assert chisquare(counts, expected).pvalue > 0.001


def test_a_drafter_that_is_always_right_fills_every_step(pair):
    steps = [step for step in decoded(pair, "synthetic:1,1,1,1", 101) if step.kind == "decode"]
    assert {len(step.emitted) for step in steps} == {5}
    assert {step.nodes for step in steps} == {5}


def test_the_better_it_is_the_longer_its_steps(pair):
    tau = [np.mean([len(step.emitted) for step in decoded(pair, f"synthetic:{rate}", 150) if step.kind == "decode"]) for rate in (0.2, 0.5, 0.9)]
    assert tau[0] < tau[1] < tau[2]


def test_the_same_seed_gives_the_same_trees_and_another_seed_others(pair):
    first, again, other = (decoded(pair, "synthetic:0.6", 60, seed=seed) for seed in (4, 4, 5))
    trees = [[step.token_ids.tolist() for step in steps] for steps in (first, again, other)]
    assert trees[0] == trees[1] != trees[2]


def test_its_prediction_counts_no_drafter(pair):
    step = decoded(pair, "synthetic:0.6", 20)[1]
    assert step.trace.predicted_draft_seconds == 0.0


def test_it_needs_no_drafter(pair):
    from dataclasses import replace

    without = replace(tiny_pair(vocab=40, positions=60), drafter=None)
    without.target.watch(())
    assert output(decoded(without, "synthetic:0.8", 30)) == output(decoded(pair, "ar", 30))


@pytest.mark.parametrize("name", ["synthetic", "synthetic:", "synthetic:0", "synthetic:1.2", "synthetic:a", "synthetic:0.5,,0.2", "synthetic:nan"])
def test_rates_that_are_none_are_refused_with_an_example(name):
    with pytest.raises(UserError, match="synthetic:0.8"):
        resolve_method(name)


def test_it_is_refused_above_temperature_0(pair):
    with pytest.raises(UserError, match="use it at temperature 0"):
        decode(pair, PROMPT, "synthetic:0.8", temperature=0.5)


def test_it_says_that_it_is_simulated():
    assert METHODS["synthetic"].summary.startswith("simulated")
    assert [name for name in METHODS if is_simulated(name)] == ["synthetic"] and is_simulated("synthetic:0.9,0.5")


def test_told_before_the_first_record(pair):
    heard = []
    from dataclasses import replace

    method = replace(resolve_method("synthetic:0.8"), calibration=tiny_calibration(pair))
    decode(pair, PROMPT, method, max_new_tokens=5, on_notice=heard.append)
    assert heard == ["Decoding plainly first: the simulated drafter is told what the target will say."]


def test_a_run_of_it_says_so_and_no_other_run_does(pair):
    from bastion.cli.pairs import run_info
    from bastion.records import run_to_json

    steps = decoded(pair, "synthetic:0.8", 5)
    made = {name: run_info(pair, PROMPT, PROMPT, name, {}) for name in ("synthetic:0.8", "ar")}
    assert made["synthetic:0.8"]["simulated"] is True and "simulated" not in made["ar"]
    assert run_to_json(steps=steps, info=made["synthetic:0.8"], text="")["simulated"] is True
    assert "simulated" not in run_to_json(steps=steps, info=made["ar"], text="")
