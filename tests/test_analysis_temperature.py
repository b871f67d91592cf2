"""Temperatures per depth, trees scored and grown again: against scipy, enumeration, and recorded trees of a real pair."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp, softmax

from bastion import decode
from bastion.analysis.reliability import outcomes
from bastion.analysis.surrogate_evidence import OUTSIDE, UNSEEN, run_evidence
from bastion.analysis.surrogate_report import surrogate_report
from bastion.analysis.temperature import RANGE, fit_temperatures, halves, mean_nll, stacked, temper
from bastion.analysis.temperature_regrowth import grown, known_held, regrow, reproduced, rescored
from bastion.analysis.temperature_report import left_out_words, regrown_by_method, temperature_report
from bastion.decoding.methods import Bastion
from bastion.trees import AdaptiveBudget, DraftMarginals, FixedBudget, grow_best_first
from tests.synthetic_runs import make_run, make_step
from tests.test_analysis_surrogate import make_saved, many
from tests.tiny_pair import tiny_calibration


def marginals(rng, depth=3, width=6, spread=1.5, mass=0.9):
    probabilities = -np.sort(-softmax(rng.normal(0, spread, (depth, width)), axis=1), axis=1) * mass
    return np.log(probabilities)


@given(st.integers(0, 10_000), st.floats(0.3, 4))
def test_tempering_keeps_the_recorded_mass_and_the_order(seed, temperature):
    log_probs = marginals(np.random.default_rng(seed))
    found = temper(log_probs, np.array([temperature, 1, temperature]))
    np.testing.assert_allclose(np.exp(found).sum(1), np.exp(log_probs).sum(1), rtol=1e-9)
    assert (np.diff(found) <= 1e-12).all() and np.array_equal(found[1], log_probs[1])
    powers = np.exp(log_probs[0]) ** (1 / temperature)
    np.testing.assert_allclose(np.exp(found[0]), 0.9 * powers / powers.sum(), rtol=1e-9)


def test_tokens_that_may_not_be_drafted_stay_so():
    found = temper(np.array([[np.log(0.5), np.log(0.25), -np.inf]]), np.array([2.0]))
    assert found[0, 2] == -np.inf and np.exp(found).sum() == pytest.approx(0.75)
    assert (temper(np.full((1, 3), -np.inf), np.array([2.0])) == -np.inf).all()  # a step that recorded nothing


def drawn(rng, steps, true_temperature):
    """Recorded marginals, and a target's token drawn from them at another temperature."""
    log_probs = np.stack([marginals(rng, 2, 8, 2.0, 1.0) for _ in range(steps)])
    known = np.full((steps, 2), UNSEEN)
    for row in range(steps):
        known[row, 0] = rng.choice(8, p=softmax(log_probs[row, 0] / true_temperature))
        if row % 2:
            known[row, 1] = OUTSIDE if row % 3 == 0 else rng.choice(8, p=softmax(log_probs[row, 1]))
    return log_probs, known


@pytest.mark.parametrize("true_temperature", [0.6, 1.0, 1.8])
def test_the_fit_finds_the_temperature_the_tokens_were_drawn_at(true_temperature):
    log_probs, known = drawn(np.random.default_rng(4), 3000, true_temperature)
    found = fit_temperatures(log_probs, known)
    assert found.fitted.all() and found.temperature[0] == pytest.approx(true_temperature, rel=0.08)
    assert found.outcomes.tolist() == [3000, int((known[:, 1] >= 0).sum())]
    rows, ranks = log_probs[:, 0], known[:, 0]

    def loss(inverse):
        scaled = rows * inverse
        return -(scaled[np.arange(len(ranks)), ranks] - logsumexp(scaled, axis=1)).mean()  # the recorded mass is 1 here

    best = minimize_scalar(loss, bounds=(1 / RANGE[1], 1 / RANGE[0]), method="bounded", options={"xatol": 1e-9})
    assert found.temperature[0] == pytest.approx(1 / best.x, rel=1e-4)
    assert found.nll_after[0] == pytest.approx(best.fun, abs=1e-9) and found.nll_before[0] == pytest.approx(loss(1.0), abs=1e-12)
    assert (found.nll_after <= found.nll_before + 1e-12).all()


def test_the_likelihood_is_that_of_the_tempered_marginals():
    rng = np.random.default_rng(2)
    rows, ranks = marginals(rng, 40, 6), rng.integers(0, 6, 40)
    tempered = temper(rows[:, None], np.array([1.7]))[:, 0]
    assert mean_nll(rows, ranks, 1.7) == pytest.approx(-tempered[np.arange(40), ranks].mean(), abs=1e-12)


def test_few_outcomes_and_single_marginals_are_left_at_one():
    log_probs, known = drawn(np.random.default_rng(4), 19, 2.0)
    few = fit_temperatures(log_probs, known)
    assert few.temperature.tolist() == [1, 1] and not few.fitted.any() and few.nll_after[0] == few.nll_before[0]
    single = fit_temperatures(np.zeros((50, 1, 1)), np.zeros((50, 1), np.int64))
    assert single.outcomes.tolist() == [0] and np.isnan(single.nll_before[0])


def test_no_text_is_on_both_sides():
    evidence = [run_evidence(run) for run in many(6)]
    fit, how = halves(evidence)
    sides = {one.prompt: {bool(side) for side in mask} for one, mask in zip(evidence, fit)}
    assert how == "every other prompt" and all(len(side) == 1 for side in sides.values()) and len(set(map(tuple, sides.values()))) == 2
    alone, how = halves(evidence[:1])
    assert how == "every other step" and alone[0].tolist() == [place % 2 == 0 for place in range(len(evidence[0]))]


def test_scoring_at_one_gives_the_recorded_surrogate():
    one = run_evidence(make_saved(make_run(12, nodes=20)))
    np.testing.assert_allclose(rescored(one, np.ones(7)), one.surrogate, atol=1e-6)  # marginals are recorded in float32


def test_scoring_multiplies_tempered_marginals_along_every_path():
    step = make_step(1, seed=9, nodes=24, depth=4)
    one, temperatures = run_evidence(make_saved([*make_run(0), step])), np.array([0.7, 1.0, 1.6, 2.0])
    table = np.exp(temper(step.trace.marginal_log_probs, temperatures))
    expected = 0.0
    for node in range(step.nodes):
        probability, at = 1.0, node
        while at:
            d = int(step.depths[at]) - 1
            probability *= table[d, step.trace.marginal_token_ids[d].tolist().index(step.token_ids[at])]
            at = int(step.parents[at])
        expected += probability
    assert rescored(one, temperatures)[0] == pytest.approx(expected, rel=1e-9)


def adaptive(seed, index, log_probs, known, min_nodes=1, max_nodes=60, context=10):
    """A step whose tree was grown under a made-up latency, and whose path is `known` ranks as far as the tree holds them."""
    ids = np.tile(np.arange(log_probs.shape[1]) + 20, (len(log_probs), 1))
    recorded = log_probs.astype(np.float32)
    table = 0.05 + 0.004 * np.arange(1, 200) ** 1.1
    budget = AdaptiveBudget(lambda n: table[np.asarray(n) - 1] if np.max(n) < 200 else 9.0, 0.01, 0.02, min_nodes, max_nodes)
    tree = grow_best_first(DraftMarginals(ids, recorded), 1, budget, trace=True)
    held = []
    at = 0
    for rank in known:
        below = np.flatnonzero((tree.parents == at) & (tree.token_ids == rank + 20))
        if not len(below):
            break
        at = int(below[0])
        held.append(at)
    accepted = np.array([0, *held])
    bonus = int(known[len(held)]) + 20 if len(held) < len(known) else 7
    base = make_step(index, seed, context=context)
    output = [*tree.token_ids[held].tolist(), bonus]
    return replace(
        base,
        token_ids=tree.token_ids,
        parents=tree.parents,
        depths=tree.depths,
        path_log_probs=tree.path_log_probs,
        accepted=accepted,
        bonus=bonus,
        emitted=output,
        surrogate=tree.surrogate,
        stop_reason=tree.stop_reason,
        top2_gaps=np.ones(len(output), np.float32),
        trace=replace(
            base.trace,
            marginal_token_ids=ids,
            marginal_log_probs=recorded,
            target_log_probs=np.zeros(tree.nodes, np.float32),
            target_top_ids=np.zeros((tree.nodes, 5), np.int64),
            target_top_log_probs=np.zeros((tree.nodes, 5), np.float32),
            growth=tree.growth,
            predicted_seconds=table[: 1 + len(tree.growth)],
            predicted_draft_seconds=0.01,
            predicted_other_seconds=0.02,
        ),
    )


@pytest.fixture(scope="module")
def adaptive_runs():
    """Four prompts whose tokens follow the marginals at temperature 2, so that the recorded trees are too sure."""
    rng, runs = np.random.default_rng(8), []
    for number in range(4):
        steps = make_run(0)
        for index in range(1, 61):
            log_probs = marginals(rng, 4, 10, 2.5, 0.97)
            known = [rng.choice(10, p=softmax(row / 2)) for row in log_probs]
            steps.append(adaptive(0, index, log_probs, known, context=10 + index))
        runs.append(make_saved(steps, f"r{number}", prompt=number, tree={"min_nodes": 1, "max_nodes": 60}))
    return runs


def test_growing_again_at_one_gives_every_recorded_tree(adaptive_runs):
    for one in map(run_evidence, adaptive_runs):
        assert set(one.growth.kind) == {"adaptive"} and len(set(one.nodes)) > 3
        assert all(reproduced(one, row) for row in range(len(one)))
        same = regrow(one, np.ones(4), np.arange(len(one)))
        assert same.irreproducible == 0 and np.array_equal(same.nodes_before, same.nodes_after)
        assert np.array_equal(same.held, one.walked - 1) and np.array_equal(same.tokens_after, one.walked)
        np.testing.assert_array_equal(same.seconds_before, same.seconds_after)


def test_bounds_of_a_run_bound_what_it_regrows_to():
    rng = np.random.default_rng(1)
    log_probs = marginals(rng, 4, 10)
    step = adaptive(0, 1, log_probs, [0, 0, 0, 0], min_nodes=9, max_nodes=9)
    bounded = run_evidence(make_saved([*make_run(0), step], tree={"min_nodes": 9, "max_nodes": 9}))
    assert step.nodes == 9 and reproduced(bounded, 0)
    assert regrow(bounded, np.full(4, 3.0), np.array([0])).nodes_after.tolist() == [9]
    unbounded = run_evidence(make_saved([*make_run(0), step]))
    assert not reproduced(unbounded, 0) and regrow(unbounded, np.ones(4), np.array([0])).irreproducible == 1


def test_a_fixed_tree_keeps_its_size_and_takes_the_most_probable_nodes():
    one = run_evidence(make_saved(make_run(5, nodes=14, priced=False, depth=4)))
    assert set(one.growth.kind) == {"fixed"} and all(reproduced(one, row) for row in range(5))
    temperatures = np.array([3.0, 1.0, 0.5, 1.0])
    found = regrow(one, temperatures, np.arange(5))
    assert found.nodes_after.tolist() == [14] * 5 and np.isnan(found.seconds_before).all() and not found.adaptive.any()
    for row in range(5):
        table = temper(one.log_probs[row], temperatures)
        paths = {(): 0.0}
        for d in range(4):
            paths |= {(*path, rank): value + table[d, rank] for path, value in paths.items() if len(path) == d for rank in range(8)}
        best = sorted(paths.values(), reverse=True)[:14]
        np.testing.assert_allclose(np.sort(grown(one, row, table).path_log_probs)[::-1], best, atol=1e-9)


def test_tokens_are_counted_as_far_as_they_are_known():
    tree = grow_best_first(DraftMarginals(np.tile(np.arange(3), (3, 1)), np.log([[0.6, 0.3, 0.1]] * 3)), -1, FixedBudget(8))
    held = {tuple(tree.token_ids[tree.path(node)[1:]]) for node in range(8)}
    for known in ([0, 0, 0], [0, 1, UNSEEN], [2, 0, 0], [OUTSIDE, UNSEEN, UNSEEN], [1, 0, 2]):
        expected = max(length for length in range(4) if all(k >= 0 for k in known[:length]) and tuple(known[:length]) in held)
        assert known_held(tree, np.array(known)) == expected


def test_the_report_judges_on_other_texts_than_it_fits(adaptive_runs):
    evidence = [run_evidence(run) for run in adaptive_runs]
    report = temperature_report(evidence, "step", resamples=50)
    assert report.steps_fitted == report.steps_judged == 120 and set(report.regrown["run"]) == {"r1", "r3"} and report.irreproducible == 0
    np.testing.assert_allclose(fit_temperatures(*stacked([evidence[0], evidence[2]])).temperature, report.fitted.temperature)
    assert report.fitted.temperature[0] > 1.4 and report.first_after.error < report.first_before.error
    judged = [evidence[1], evidence[3]]
    walked = np.concatenate([one.walked for one in judged])
    for found, scores in (
        (report.before, [one.surrogate for one in judged]),
        (report.after, [rescored(one, report.fitted.temperature) for one in judged]),
    ):
        assert found.pearson.value == pytest.approx(np.corrcoef(np.concatenate(scores), walked)[0, 1], abs=1e-9)
    assert report.first_before.total == np.minimum(walked, 4).sum() == len(outcomes(judged))
    by_method = regrown_by_method(report.regrown).iloc[0]
    frame = report.regrown
    assert by_method["predicted_tokens_per_second_after_at_least"] == pytest.approx(
        frame["tokens_after_at_least"].sum() / frame["predicted_seconds_after"].sum()
    )
    assert by_method["accepted"] == walked.sum() - 120 >= by_method["accepted_held"] > 0


@pytest.mark.parametrize("with_cut", [False, True])
def test_every_counted_step_is_fitted_to_judged_on_or_said_to_be_left_out(adaptive_runs, with_cut):
    """Beside the trees: a chain of first choices, a run without traces, a lookup within a traced run, a cut step."""
    step = make_step(1, nodes=4, depth=4, choices=1, beyond=0)
    chain = make_saved([*make_run(0), step, replace(step, index=2)], "chain", prompt=9, method="dflash")
    bare = make_saved(make_run(3, trace=False), "bare", prompt=10, method="lookup")
    none = replace(make_step(1).trace, marginal_token_ids=np.zeros((0, 0), np.int64), marginal_log_probs=np.zeros((0, 0), np.float32))
    lookup, cut = replace(make_step(2), trace=none), make_step(3, accepted_depth=3, emitted=1)
    mixed = make_saved([*make_run(1), lookup, cut], "mixed", prompt=11)
    evidence = [run_evidence(run) for run in (*adaptive_runs, chain, bare, mixed)]
    report = temperature_report(evidence, "step", with_cut, resamples=20)
    assert (report.single, report.bare) == (2, 4)
    total = len(surrogate_report(evidence, "step", with_cut=with_cut, resamples=20).frame)
    assert report.steps_fitted + report.steps_judged + report.single + report.bare == total
    words = left_out_words(report)
    assert f"Left out of the {total} steps" in words and "2 recorded one marginal a depth" in words and "4 recorded none" in words
    assert left_out_words(temperature_report([run_evidence(run) for run in adaptive_runs], "step", resamples=20)) == ""
    assert temperature_report([run_evidence(chain), run_evidence(bare)], "step") is None


def test_judged_steps_that_cannot_be_scored_again_are_counted(adaptive_runs):
    first, second = (run_evidence(run) for run in adaptive_runs[:2])
    outside = replace(second, tree=replace(second.tree, rank=np.where(second.tree.row < 5, OUTSIDE, second.tree.rank)))
    report = temperature_report([first, outside], "step", resamples=20)
    held = len({row for row in second.tree.row if row < 5}) + int((second.nodes < 2).sum())
    assert report.unscored == held > 0 and report.before.steps == report.steps_judged - held
    assert f"Of the judged, {held} cannot be scored again" in left_out_words(report)


def test_a_real_decode_grows_again_node_for_node(default_pair):
    """What the counterfactual rests on: at temperature 1 the recorded marginals give the recorded trees."""
    method = Bastion(calibration=tiny_calibration(default_pair, step=0.05))
    for name, asked in (("bastion", method), ("ddtree:9", "ddtree:9")):
        steps = list(decode(default_pair, "Count from one to five.", asked, max_new_tokens=12))
        one = run_evidence(
            make_saved(
                steps,
                method=name,
                tree={"min_nodes": 1, "max_nodes": None},
                calibration={"max_probed_nodes": method.calibration.max_probed_nodes},
            )
        )
        assert len(one) >= 2 and all(reproduced(one, row) for row in range(len(one)))
        np.testing.assert_allclose(rescored(one, np.ones(7)), one.surrogate, atol=1e-9)
