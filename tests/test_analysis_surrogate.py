"""Surrogate against outcome: the table of steps, correlations, groups and the depth limit, against plain computations."""

import io
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bastion.analysis.surrogate_clipping import clipping
from bastion.analysis.surrogate_correlation import CLUSTERS, bootstrap, correlate
from bastion.analysis.surrogate_evidence import OUTSIDE, UNSEEN, run_evidence, without_repeats
from bastion.analysis.surrogate_groups import GROUPINGS, grouped
from bastion.analysis.surrogate_report import UNIT_WORDS, default_unit, resampled_words, surrogate_report, why_none
from bastion.analysis.surrogate_table import POSITIONS, position_class, position_name, step_frame, worst
from bastion.analysis.temperature_report import temperature_report
from bastion.figures.surrogate_scatter import correlation_figure
from bastion.records import Run
from tests.synthetic_runs import make_info, make_prefill, make_run, make_step

DEPTH = 3


def make_saved(steps, run_id="r", prompt=0, **info) -> Run:
    info = {**make_info(**info), "id": run_id, "prompt_set": info.get("prompt_set", ""), "prompt_ids": [prompt, 1, 2]}
    return Run(info, steps, [["x"] * len(step.emitted) for step in steps])


def many(count=6, steps=9, **options):
    """Runs of several methods and prompts; the last step of each is cut."""
    runs = []
    for seed in range(count):
        records = make_run(steps, seed, nodes=12, depth=DEPTH, **options)
        last = make_step(steps + 1, seed, nodes=12, depth=DEPTH, accepted_depth=3, emitted=2, **options)
        runs.append(
            make_saved(
                [*records, last],
                f"run-{seed}",
                prompt=seed // 2,
                method=("bastion", "ddtree:11")[seed % 2],
                prompt_set=("gsm8k", "")[seed % 2],
            )
        )
    return runs


@pytest.fixture(scope="module")
def evidence():
    return [run_evidence(run) for run in many()]


def through_csv(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.read_csv(io.BytesIO(frame.to_csv(index=False).encode()), float_precision="round_trip")


def test_a_row_says_what_its_step_did(evidence):
    runs, frame = many(), step_frame(evidence)
    row = 0
    for run in runs:
        position = 1  # the prefill's token
        for step in run.steps[1:]:
            got = frame.loc[row]
            assert (got["run"], got["step"], got["nodes"], got["position"]) == (run.id, step.index, step.nodes, position)
            assert got["surrogate"] == step.surrogate and got["walked"] == len(step.accepted) and got["emitted"] == len(step.emitted)
            assert got["cut"] == (len(step.emitted) < len(step.accepted)) and got["clipped"] == (len(step.accepted) - 1 == DEPTH)
            assert got["text"] == "x" * len(step.emitted)
            position += len(step.emitted)
            row += 1
    assert row == len(frame) and frame["cut"].sum() == len(runs) and frame["clipped"].any()
    assert frame["prompt"].nunique() == 3 and set(frame["prompt_set"]) == {"gsm8k", ""}


def test_the_known_rank_is_the_place_of_the_targets_token_as_far_as_it_was_asked(evidence):
    for run, one in zip(many(), evidence):
        for row, step in enumerate(run.steps[1:]):
            wanted = [*step.token_ids[step.accepted[1:]], step.bonus]
            for d in range(DEPTH):
                ids = step.trace.marginal_token_ids[d].tolist()
                expected = UNSEEN if d >= len(wanted) else ids.index(wanted[d]) if wanted[d] in ids else OUTSIDE
                assert one.known[row, d] == expected
    assert (np.concatenate([one.known for one in evidence]) == OUTSIDE).any()


def test_a_run_without_traces_still_has_its_surrogate():
    one = run_evidence(make_saved(make_run(3, trace=False)))
    assert not one.traced and one.log_probs.size == 0 and one.growth.kind.tolist() == ["", "", ""] and why_none(one) == ""
    report = surrogate_report([one], "step")
    assert len(report.frame) == 3 and report.depths == {} and report.first_choice.error is None
    assert temperature_report([one], "step") is None


def test_the_drafters_depth_is_no_limit_to_paths_from_elsewhere():
    step = make_step(1, nodes=10, depth=3)
    foreign = replace(step, trace=replace(step.trace, marginal_token_ids=step.trace.marginal_token_ids + 1000))
    none = replace(
        step, trace=replace(step.trace, marginal_token_ids=np.zeros((0, 0), np.int64), marginal_log_probs=np.zeros((0, 0), np.float32))
    )
    depths = [run_evidence(make_saved([make_prefill(), one], drafter_depth=3)).drafter_depth for one in (step, foreign, none)]
    assert depths == [3, 0, 0]


def test_why_a_run_has_no_surrogate_is_said():
    assert why_none(run_evidence(make_saved([make_prefill()]))) == "no step after the prefill"
    assert why_none(run_evidence(make_saved([make_prefill(), make_step(1, nodes=1, accepted_depth=0)]))) == "no tree"


@pytest.mark.parametrize("unit", ["step", "run", "prompt"])
@pytest.mark.parametrize("outcome", ["emitted", "walked"])
@pytest.mark.parametrize("with_cut", [False, True])
def test_correlations_equal_scipy_on_the_exported_csv(evidence, unit, outcome, with_cut):
    report = surrogate_report(evidence, unit, outcome, with_cut, resamples=50)
    table = through_csv(report.frame)
    assert abs(report.correlation.pearson.value - stats.pearsonr(table["surrogate"], table[outcome]).statistic) < 1e-9
    assert abs(report.correlation.spearman.value - stats.spearmanr(table["surrogate"], table[outcome]).statistic) < 1e-9
    assert abs(report.bias - np.mean(table["surrogate"].to_numpy() - table[outcome].to_numpy())) < 1e-9
    assert report.correlation.clusters == (len(table) if unit == "step" else table[unit].nunique())
    assert len(table) == (60 if with_cut else 54) and report.left_out == (0 if with_cut else 6)


def test_a_resample_is_what_scipy_says_of_the_repeated_rows():
    rng = np.random.default_rng(3)
    x, y, codes = rng.integers(0, 6, 30) / 3, rng.integers(1, 5, 30).astype(float), np.repeat(np.arange(10), 3)
    found = bootstrap(x, y, codes, 40, seed=5)
    drawn = np.random.default_rng(5).integers(0, 10, (40, 10))
    for place, clusters in enumerate(drawn):
        rows = np.concatenate([np.flatnonzero(codes == c) for c in clusters])
        assert found[0, place] == pytest.approx(stats.pearsonr(x[rows], y[rows]).statistic, abs=1e-12)
        assert found[1, place] == pytest.approx(stats.spearmanr(x[rows], y[rows]).statistic, abs=1e-12)


def test_the_interval_is_the_percentiles_of_the_resamples_and_the_same_every_time():
    rng = np.random.default_rng(0)
    x = rng.normal(size=80)
    y = x + rng.normal(size=80)
    once, again, other = (correlate(x, y, resamples=300, seed=seed) for seed in (1, 1, 2))
    assert once == again != other
    draws = bootstrap(x, y, np.arange(80), 300, 1)[0]
    assert (once.pearson.low, once.pearson.high) == tuple(np.percentile(draws, [2.5, 97.5]))
    assert once.pearson.low < once.pearson.value < once.pearson.high


def test_repeating_every_row_narrows_the_interval_of_rows_and_not_that_of_clusters():
    rng = np.random.default_rng(1)
    x = rng.normal(size=40)
    y = x + rng.normal(size=40)
    copies, names = (np.repeat(x, 9), np.repeat(y, 9)), np.repeat(np.arange(40), 9)
    width = lambda found: found.pearson.high - found.pearson.low  # noqa: E731
    honest, alone = correlate(*copies, names), correlate(x, y)
    assert width(honest) == pytest.approx(width(alone), rel=1e-9)
    assert width(correlate(*copies)) < 0.6 * width(alone)


@pytest.mark.parametrize(("x", "y"), [([1.0, 2.0], [1, 2]), ([1.0, 1.0, 1.0], [1, 2, 3]), ([1.0, 2.0, 3.0], [2, 2, 2]), ([], [])])
def test_too_little_or_no_spread_has_no_correlation(x, y):
    assert correlate(np.array(x), np.array(y)) is None


def test_one_cluster_has_a_correlation_and_no_interval():
    found = correlate(np.arange(9.0), np.arange(9.0) ** 2, np.zeros(9))
    assert found.spearman.value == 1 and math.isnan(found.pearson.low) and found.clusters == 1


@pytest.mark.parametrize("clusters", [2, 3, 4, 5])
def test_fewer_than_five_clusters_have_no_interval(clusters):
    rng = np.random.default_rng(clusters)
    x = rng.normal(size=60)
    found = correlate(x, x + rng.normal(size=60), np.arange(60) % clusters)
    assert math.isfinite(found.pearson.value) and found.too_few == (clusters < CLUSTERS)
    for estimate in (found.pearson, found.spearman):
        assert math.isfinite(estimate.low) == math.isfinite(estimate.high) == (clusters >= 5)
    words = resampled_words(found, "prompt")
    assert words.startswith(f"{clusters} prompts, too few") if clusters < 5 else words == UNIT_WORDS["prompt"]


def test_steps_too_few_to_draw_have_no_interval_either():
    assert math.isnan(correlate(np.array([1.0, 2.0, 4.0, 3.0]), np.array([1, 2, 3, 4])).pearson.low)


def test_two_judged_prompts_have_no_interval(evidence):
    """Five prompts are enough to draw, and the half that is judged has two of them."""
    five = [replace(one, prompt=str(place)) for place, one in enumerate(evidence[:5])]
    assert default_unit(five) == "prompt"
    report = temperature_report(five, "prompt", resamples=50)
    for found in (report.before, report.after):
        assert found.clusters == 2 and math.isfinite(found.pearson.value) and math.isnan(found.pearson.low) and math.isnan(found.spearman.high)
    assert "without intervals: 2 prompts, too few" in " ".join(
        correlation_figure([("before", report.before)], resampled_words(report.before, "prompt")).layout.annotations[0].text.split("<br>"))


def repeated(run_id, seed=1, prompt=0, **info):
    trace = info.pop("trace", True)
    return run_evidence(make_saved(make_run(8, seed, nodes=12, depth=DEPTH, trace=trace), run_id, prompt, **info))


def test_repeats_of_one_decode_count_once():
    one = repeated("a")
    kept, repeats = without_repeats([one, repeated("b"), repeated("c", seed=2), repeated("d")])
    assert [each.run for each in kept] == ["a", "c"] and repeats == 2
    report = surrogate_report(kept, "step", resamples=20)
    assert len(report.frame) == 16 == len(report.frame[["run", "step"]].drop_duplicates())
    alone = surrogate_report([one, kept[1]], "step", resamples=20)
    assert report.correlation == alone.correlation


@pytest.mark.parametrize("other", [{"prompt": 5}, {"method": "ddtree:11"}, {"pair": "another"}, {"seed": 2},
                                   {"sampling": {"temperature": 0.7, "seed": 1}}])
def test_what_was_asked_or_given_otherwise_is_no_repeat(other):
    kept, repeats = without_repeats([repeated("a"), repeated("b", **other)])
    assert len(kept) == 2 and repeats == 0


def test_a_seed_tells_runs_apart_only_where_something_is_drawn():
    greedy = [repeated(str(seed), sampling={"temperature": 0.0, "seed": seed}) for seed in range(3)]
    drawn = [repeated(str(seed), sampling={"temperature": 1.0, "seed": seed}) for seed in (0, 1, 1)]
    assert without_repeats(greedy)[1] == 2 and without_repeats(drawn)[1] == 1


def test_of_repeats_one_with_traces_stays():
    kept, repeats = without_repeats([repeated("bare", trace=False), repeated("traced"), repeated("later")])
    assert repeats == 2 and [one.run for one in kept] == ["traced"]


def test_the_unit_is_prompts_then_runs_then_steps(evidence):
    assert default_unit(evidence) == "run"
    assert default_unit([replace(one, prompt=str(place)) for place, one in enumerate(evidence)]) == "prompt"
    assert default_unit(evidence[:4]) == "step"


@pytest.mark.parametrize("by", list(GROUPINGS))
def test_groups_partition_the_steps_and_say_what_numpy_says(evidence, by):
    report = surrogate_report(evidence, "step", resamples=10)
    table = grouped(report.frame, report.seen, by)
    assert table["steps"].sum() == len(report.frame)
    rows = through_csv(report.frame).fillna({"prompt_set": ""})
    names = {
        "position": [position_name(int(p)) for p in position_class(rows["position"])],
        "prompt_set": rows["prompt_set"].replace("", "no set"),
        "temperature": ["0"] * len(rows),
    }.get(by, rows.get(by))
    for _, got in table.iterrows():
        part = rows[np.array(names) == got["group"]]
        assert got["steps"] == len(part) and got["mean_surrogate"] == pytest.approx(part["surrogate"].mean(), abs=1e-12)
        assert got["bias"] == pytest.approx((part["surrogate"] - part["emitted"]).mean(), abs=1e-12)
        if len(part) > 2 and part["emitted"].nunique() > 1:
            assert got["pearson"] == pytest.approx(stats.pearsonr(part["surrogate"], part["emitted"]).statistic, abs=1e-9)
    assert table["ece"].between(0, 1).all()


def test_positions_fall_into_named_classes():
    assert position_class(np.array([0, 15, 16, 31, 32, 1023, 1024, 9999])).tolist() == [0, 0, 16, 16, 32, 512, 1024, 1024]
    assert position_name(16) == "16 to 31" and position_name(POSITIONS[-1]) == "1024 and more"


def test_the_worst_steps_are_those_with_the_greatest_error_of_each_sign(evidence):
    frame = step_frame(evidence)
    over, under = worst(frame, 7)
    error = (frame["surrogate"] - frame["walked"]).to_numpy()
    np.testing.assert_allclose(over["error"], np.sort(error)[::-1][:7])
    np.testing.assert_allclose(under["error"], np.sort(error)[:7])
    assert (over["error"] > 0).all() and (under["error"] < 0).all()
    assert worst(frame[error > 0], 7)[1].empty


def walks(*walked, depth=2, emitted=None):
    walked = np.array(walked)
    return pd.DataFrame(
        {
            "walked": walked,
            "emitted": walked if emitted is None else emitted,
            "clipped": (depth > 0) & (walked - 1 >= depth),
            "drafter_depth": depth,
        }
    )


def test_stranded_tokens_by_hand():
    """Depth 2. Four steps stood at depth 1 or deeper, three went on to depth 2: rate 3/4, three continuations of 3 tokens."""
    found = clipping(walks(1, 1, 2, 3, 3, 3))
    assert found.length.tolist() == [1, 2, 3] and found.ended.tolist() == [2, 1, 0] and found.clipped.tolist() == [0, 0, 3]
    assert (found.reached, found.rate, found.clipped_steps) == (4, 0.75, 3)
    assert found.stranded[0] == pytest.approx(9) and found.tau == 13 / 6 and found.deeper_tau == pytest.approx(22 / 6)
    assert found.stranded[1] < 9 < found.stranded[2]


def test_a_rate_of_one_has_no_estimate_and_none_reached_says_so():
    assert clipping(walks(3, 3)).stranded[0] == math.inf and clipping(walks(3, 3)).deeper_tau is None
    nothing = clipping(walks(1, 1))
    assert nothing.reached == 0 and math.isnan(nothing.rate) and math.isnan(nothing.stranded[0])
    unknown = clipping(walks(3, 2, depth=0))
    assert unknown.clipped_steps == 0 and unknown.reached == 0 and unknown.ended.sum() == 2


@given(st.lists(st.integers(1, 8), min_size=1, max_size=60))
def test_the_histogram_loses_no_step(walked):
    found = clipping(walks(*walked, depth=7))
    assert (found.ended + found.clipped).sum() == len(walked) and len(found.length) == 8
    assert found.tokens == sum(walked) and found.reached >= found.clipped_steps
