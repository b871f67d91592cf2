"""What a race found, against cases worked out by hand: spreads, speedups, differences, what keeps runs from comparing."""

import io
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bastion.analysis.race import Spread, race_frame, race_table, speed_points, spread
from bastion.analysis.race_difference import first_difference
from bastion.analysis.race_lanes import finish_seconds, lanes_of, mismatch_words, yardstick_lane
from bastion.analysis.race_live import axis_end, live_points
from bastion.analysis.race_replayed import nearest_repeat, repeat_speedups
from bastion.figures.race_payload import race_payload
from bastion.figures.race_table import difference_words, race_html
from bastion.records.totals import run_totals
from bastion.step import StepSeconds

from tests.race_runs import chain_run, tree_run

S = StepSeconds


def ar(repeat, seconds, **info):
    return chain_run("ar", [[7], [8], [9], [10]], [S(verify=0.5), *[S(verify=seconds)] * 3], repeat=repeat, **info)


def dflash(repeat, scale=1.0, last=10, **info):
    return chain_run("dflash", [[7], [8, 9], [last]], [S(verify=0.4), S(0.1 * scale, 0.02, 0.2, 0.04), S(0.3 * scale, 0.04, 0.4, 0.06)],
                     repeat=repeat, **info)


def test_every_figure_of_a_row_is_the_median_and_range_over_the_repeats():
    lanes, mismatches = lanes_of([ar(1, 0.5), dflash(1), ar(2, 0.25), dflash(2, scale=2.0), ar(3, 0.4), dflash(3, scale=0.5)])
    assert mismatches == [] and [lane.label for lane in lanes] == ["ar", "dflash"] and lanes[1].repeats == (1, 2, 3)
    plain, fast = race_table(lanes)
    seconds = [1.16, 1.56, 0.96]                       # decode steps of dflash: both steps, all stages
    speed = [3 / s for s in seconds]
    assert fast.tokens_per_second == Spread(*map(pytest.approx, (sorted(speed)[1], min(speed), max(speed))), 3)
    ratios = [speed[0] / 2, speed[1] / 4, speed[2] / 2.5]
    assert fast.speedup == Spread(*map(pytest.approx, (sorted(ratios)[1], min(ratios), max(ratios))), 3)
    assert fast.speedup_by == "repeat" and plain.speedup == Spread(1.0, 1.0, 1.0, 3)
    assert fast.tau == Spread(1.5, 1.5, 1.5, 3) and plain.tau.median == 1.0
    assert fast.nodes == Spread(1.5, 1.5, 1.5, 3) and plain.nodes.median == 1.0
    assert fast.draft == Spread(*map(pytest.approx, (0.2, 0.1, 0.4)), 3)
    assert (fast.build.median, fast.verify.median, fast.commit.median) == pytest.approx((0.03, 0.3, 0.05))
    assert fast.prefill.median == pytest.approx(0.4) and fast.tokens == Spread(4, 4, 4, 3) and fast.repeats == 3
    assert fast.identical == 3 and fast.difference is None


def test_the_table_equals_the_totals_that_each_run_was_saved_with():
    runs = [tree_run("ar", 1, repeat=1, nodes=1), tree_run("bastion", 2, repeat=1)]
    for run, row in zip(runs, race_table(lanes_of(runs)[0]), strict=True):
        totals = run_totals(run.steps)
        for name, value in (("tau", row.tau), ("tokens_per_second", row.tokens_per_second), ("nodes_mean", row.nodes),
                            ("seconds_prefill", row.prefill), ("tokens", row.tokens)):
            assert value.median == totals[name], name
        assert finish_seconds(run) == totals["seconds_decode"]
        assert finish_seconds(run, with_prefill=True) == pytest.approx(totals["seconds_decode"] + totals["seconds_prefill"])


@given(st.lists(st.none() | st.floats(1e-6, 1e6), max_size=9))
def test_a_spread_is_what_numpy_says_of_the_values_there_are(values):
    found, known = spread(values), [v for v in values if v is not None]
    assert (found is None) == (not known)
    if known:
        assert found == Spread(float(np.median(known)), min(known), max(known), len(known))


def test_where_texts_part_the_position_the_gap_and_both_tokens_are_told():
    gaps = [[1.0], [2.0], [3.0], [0.125]]
    plain = chain_run("ar", [[7], [8], [9], [10]], [S(verify=1.0)] * 4, gaps=gaps, repeat=1)
    row = race_table(lanes_of([plain, dflash(1, last=13), ar(2, 0.5), dflash(2)])[0])[1]
    assert row.identical == 1
    found = row.difference
    assert (found.position, found.repeat, found.top2_gap, found.yardstick_token, found.token) == (3, 1, 0.125, "w10", " w13")
    assert difference_words(row) == ("dflash parts from ar at token 4 (repeat 1): ar wrote “w10”, dflash “␣w13”. "
                                     "The target's two largest logits were 0.125 apart there.")
    assert "no, from token 4<small>1 of 2 repeats the same</small>" in race_html([row], greedy=True)


@pytest.mark.parametrize("left, right, info, position", [
    ([[7], [8], [9]], [[7], [8], [9]], {}, None),
    ([[7], [8], [9]], [[7], [8]], {"finish_reason": "cancelled"}, None),        # cut short: the same as far as it went
    ([[7], [8], [9]], [[7], [8]], {"complete": False}, None),
    ([[7], [8], [9]], [[7], [8]], {"finish_reason": "length"}, None),           # allowed fewer tokens
    ([[7], [8], [9]], [[7], [8]], {"finish_reason": "stop"}, 2),                # the target never stopped there
    ([[7], [8], [9]], [[7], [5]], {"finish_reason": "cancelled"}, 1),
    ([[7], [8], [9]], [[6], [8]], {}, 0),
])
def test_a_run_that_was_cut_short_is_compared_as_far_as_it_went(left, right, info, position):
    found = first_difference(chain_run("ar", left, [S(verify=1.0)] * len(left)), chain_run("x", right, [S(verify=1.0)] * len(right), **info))
    assert (None if found is None else found.position) == position
    if position == 2:
        assert found.token is None and found.yardstick_token == " w9" and found.top2_gap == 1.0


def test_a_longer_run_than_plain_decodings_has_no_gap_to_tell():
    found = first_difference(chain_run("ar", [[7]], [S(verify=1.0)], finish_reason="stop"), chain_run("x", [[7], [8]], [S(verify=1.0)] * 2))
    assert (found.position, found.top2_gap, found.yardstick_token, found.token) == (1, None, None, "w8")


def test_above_temperature_zero_differences_are_expected_and_not_flagged():
    warm = {"sampling": {"temperature": 0.7}}
    rows = race_table(lanes_of([ar(1, 0.5, **warm), dflash(1, last=13, **warm)])[0])
    assert [row.identical for row in rows] == [None, None] and rows[1].difference is None
    assert "same text as ar" not in race_html(rows, greedy=False)


def test_speedups_fall_back_to_the_median_of_plain_decoding_and_then_to_the_runs_own_yardstick():
    two = lanes_of([ar(1, 0.5), ar(2, 0.25), dflash(2), dflash(3)])[0]
    row = race_table(two)[1]
    assert row.speedup_by == "median" and row.speedup.median == pytest.approx(3 / 1.16 / 3)   # median of 2 and 4 tokens/s
    assert [p.provisional for p in speed_points(two)] == [False, False, False, True]
    alone = race_table(lanes_of([dflash(1, yardstick={"tokens_per_second": 2.0})])[0])[0]
    assert alone.speedup_by == "yardstick" and alone.speedup.median == pytest.approx(3 / 1.16 / 2) and alone.identical is None
    nothing = race_table(lanes_of([dflash(1)])[0])[0]
    assert nothing.speedup is None and nothing.speedup_by == ""


def test_the_repeat_that_is_replayed_is_one_for_all_lanes_and_the_nearest_to_the_medians():
    # speedups of dflash: (3/1.16)/2, (3/1.56)/4, (3/0.96)/2.5 = 1.29, 0.48, 1.25: the median is that of repeat 3
    lanes = lanes_of([ar(1, 0.5), dflash(1), ar(2, 0.25), dflash(2, scale=2.0), ar(3, 0.4), dflash(3, scale=0.5)])[0]
    assert nearest_repeat(lanes) == 3 and repeat_speedups(lanes, 3) == {"dflash": pytest.approx(3 / 0.96 / 2.5)}
    assert [lane["repeat"] for lane in race_payload("r", lanes)["lanes"]] == [3, 3]


def test_with_two_repeats_the_replay_is_of_one_minute_and_ends_in_the_order_of_its_own_times():
    # each method's slower run: ar of repeat 1 (1.5 s), dflash of repeat 2 (1.16 s) would say that dflash is faster,
    # though it was slower than ar in its own repeat and about as fast in the other
    lanes = lanes_of([ar(1, 0.5), dflash(1, scale=1.9), ar(2, 0.3), dflash(2)])[0]
    row = race_table(lanes)[1]
    repeat = nearest_repeat(lanes)
    shown = race_payload("r", lanes)["lanes"]
    assert [lane["repeat"] for lane in shown] == [repeat] * 2
    speed = repeat_speedups(lanes, repeat)["dflash"]
    assert row.speedup.low <= speed <= row.speedup.high
    assert (shown[1]["ends"][-1] < shown[0]["ends"][-1]) == (speed > 1)      # both emit three tokens in their steps


def test_a_repeat_that_a_lane_lacks_is_not_chosen_and_a_lane_without_it_shows_its_own():
    lanes = lanes_of([ar(1, 0.5), dflash(1), ar(2, 0.5), dflash(2, finish_reason="cancelled"), ar(3, 0.5)])[0]
    assert nearest_repeat(lanes) == 1
    apart = lanes_of([ar(1, 0.5), dflash(2)])[0]
    assert [(lane["label"], lane["repeat"]) for lane in race_payload("r", apart)["lanes"]] == [("ar", 1), ("dflash, repeat 2", 2)]
    assert [lane["label"] for lane in race_payload("r", apart, 2)["lanes"]] == ["dflash"]
    assert nearest_repeat([]) is None and race_payload("r", [])["lanes"] == []


@pytest.mark.parametrize("cut", [{"finish_reason": "killed", "complete": False}, {"finish_reason": "cancelled"}, {"finish_reason": "failed"}])
def test_a_run_that_is_not_whole_is_no_repeat_and_is_not_judged(cut):
    none = chain_run("bastion", [[7]], [S(verify=0.5)], repeat=1, **cut)
    lanes = lanes_of([ar(1, 0.5), dflash(1), none])[0]
    row = race_table(lanes)[2]
    assert (row.repeats, row.identical, row.difference, row.speedup, row.tau, row.tokens_per_second) == (0, None, None, None, None, None)
    page = race_html([row], greedy=True)
    assert "no whole repeat" in page and ">yes" not in page
    assert {point.lane for point in speed_points(lanes)} == {"ar", "dflash"}
    other = race_table(lanes_of([ar(1, 0.5), dflash(1), dflash(2, last=13, **cut)])[0])[1]
    assert (other.repeats, other.identical, other.difference) == (1, 1, None)         # what was cut is not counted among them
    plain = race_table(lanes_of([ar(1, 0.5, **cut), dflash(1)])[0])
    assert [row.identical for row in plain] == [None, None] and plain[1].speedup is None
    assert "the yardstick" not in race_html(plain, greedy=True)


def test_the_run_of_a_lane_to_look_at_has_the_median_speed_whole_runs_first():
    lane = lanes_of([ar(r, s) for r, s in ((1, 0.5), (2, 0.25), (3, 0.4))])[0][0]
    assert lane.repeats[lane.median] == 3
    even = lanes_of([ar(r, s) for r, s in ((1, 0.5), (2, 0.25))])[0][0]
    assert even.repeats[even.median] == 1                      # the lower of two
    cut = lanes_of([ar(1, 0.5), ar(2, 0.3, finish_reason="cancelled"), ar(3, 0.2, finish_reason="killed", complete=False)])[0][0]
    assert cut.repeats[cut.median] == 1


def test_runs_that_are_not_alike_say_exactly_what_differs():
    runs = [ar(None, 0.5, id="a"), dflash(None, id="b", device="cuda:0", sampling={"temperature": 0.7, "seed": 3}),
            dflash(None, id="c", prompt="Other words")]
    lanes, mismatches = lanes_of(runs)
    assert [lane.label for lane in lanes] == ["ar", "dflash, prompt How many sheep?, device cuda:0, temperature 0.7, seed 3",
                                              "dflash, prompt Other words, device cpu, temperature 0, seed 0"]
    assert [mismatch_words(m) for m in mismatches] == [
        "The prompts differ: How many sheep? (ar, dflash); Other words (dflash).", "The devices differ: cpu (ar, dflash); cuda:0 (dflash).",
        "The temperatures differ: 0 (ar, dflash); 0.7 (dflash).", "The seeds differ: 0 (ar, dflash); 3 (dflash)."]
    greedy = lanes_of([ar(None, 0.5), dflash(None, sampling={"seed": 9})])
    assert greedy[1] == [] and [lane.repeats for lane in greedy[0]] == [(1,), (1,)]   # a seed draws nothing at temperature 0
    assert yardstick_lane(lanes_of([ar(None, 0.5), ar(None, 0.5, id="z", prompt="Other")])[0]) is None


def test_saved_runs_of_one_kind_are_repeats_in_the_order_given():
    lanes = lanes_of([dflash(None, id="x"), ar(None, 0.5, id="y"), dflash(None, id="z")])[0]
    assert [(lane.label, lane.repeats, [run.id for run in lane.runs]) for lane in lanes] == [("dflash", (1, 2), ["x", "z"]), ("ar", (1,), ["y"])]


def test_the_csv_has_the_table_at_full_precision():
    rows = race_table(lanes_of([ar(1, 1 / 3), dflash(1, last=13)])[0])
    back = pd.read_csv(io.StringIO(race_frame(rows).to_csv(index=False)), float_precision="round_trip")
    assert back["label"].tolist() == ["ar", "dflash"]
    for name in ("speedup", "tau", "tokens_per_second", "nodes"):
        assert back[f"{name}_median"].tolist() == [getattr(row, name).median for row in rows]
    assert back["verify_seconds_high"].tolist() == [row.verify.high for row in rows]
    assert math.isnan(back["difference_position"][0]) and back["difference_position"][1] == 3 and back["difference_token"][1] == " w13"
    assert back["identical"].tolist() == [1, 0]


def test_labels_and_tokens_from_outside_are_text_in_the_table():
    rows = race_table(lanes_of([ar(1, 0.5), replace(dflash(1), info={**dflash(1).info, "method": "<img src=x>"})])[0])
    page = race_html(rows, greedy=True)
    assert "<img" not in page and "&lt;img src=x&gt;" in page


def entry(method, repeat, speed):
    return {"method": method, "repeat": repeat, "tokens_per_second": speed, "run_id": "", "order": 1, "tau": 1.0}


def test_live_speedups_are_provisional_until_plain_decoding_of_their_repeat_is_there():
    first = live_points([entry("bastion", 1, 30.0)], entry("dflash", 1, 20.0), {"ar": 10.0})
    assert [(p.lane, p.speedup, p.provisional) for p in first] == [("bastion", 3.0, True), ("dflash", 2.0, True)]
    later = live_points([entry("bastion", 1, 30.0), entry("ar", 1, 15.0), entry("bastion", 2, 30.0)], entry("ar", 2, 12.0), {"ar": 10.0})
    assert [(p.lane, p.repeat, p.speedup, p.provisional) for p in later] == [
        ("bastion", 1, 2.0, False), ("ar", 1, 1.0, False), ("bastion", 2, 2.0, True), ("ar", 2, 0.8, True)]
    assert live_points([entry("bastion", 1, 30.0)], entry("dflash", 1, None), {}) == []


@given(st.lists(st.floats(0, 200), min_size=1))
def test_an_axis_of_speedups_only_grows_and_holds_all_points(values):
    ends = [axis_end(max(values[:k + 1])) for k in range(len(values))]
    assert ends == sorted(ends) and all(v <= end for v, end in zip(values, ends, strict=True))
