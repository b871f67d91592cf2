"""The estimators made from measured times: each against its definition, and all on the same probes."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from bastion.errors import UserError
from bastion.latency import ESTIMATORS, OnlineEstimator, build_estimator, held_out_rmse, make_calibration
from bastion.latency.convex import convex_regression
from bastion.latency.ema import RATE, EmaEstimator
from bastion.latency.table import rising
from tests.test_latency_fit import CPU, CPU_PROBES, SMALL

ONLINE = ["ema", "roofline-ema"]
OFFLINE = [name for name in ESTIMATORS if name not in ONLINE]
times = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=9)


def made(probes, held_out=None):
    return make_calibration(shape=SMALL, peaks=CPU, peaks_source="measured", probes=probes, robust=True, device_key="cpu", target="t",
                            dtype="bfloat16", attention="a", draft_seconds=0.006, other_seconds=0.002, held_out=held_out)


@pytest.fixture(scope="module")
def calibration():
    return made(CPU_PROBES)


def probes_of(cost, contexts=(64, 256, 768), sizes=(1, 2, 4, 8, 16, 32, 64)):
    return [(n, c, float(cost(n, c))) for n in sizes for c in contexts]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_takes_numbers_and_arrays_and_stays_above_0(calibration, name):
    estimator = build_estimator(name, calibration)
    nodes, contexts = np.arange(1, 400), np.array([[0], [128], [300], [5000]])
    grid = estimator.seconds(nodes, contexts)
    assert grid.shape == (4, 399) and (grid > 0).all() and (np.diff(grid, axis=1) >= -1e-12).all()
    assert isinstance(estimator.seconds(7, 200), float)
    for row, context in enumerate(contexts[:, 0]):
        np.testing.assert_allclose(estimator.seconds(nodes, int(context)), grid[row], rtol=1e-12)
        assert estimator.seconds(40, int(context)) == pytest.approx(grid[row, 39], rel=1e-12)


@pytest.mark.parametrize("name", ["table", "convex", "ema"])
def test_probes_held_out_are_not_looked_at(calibration, name):
    spoilt = [(n, c, s * 50 if out else s) for (n, c, s), out in zip(CPU_PROBES, calibration.held_out, strict=True)]
    other = replace(calibration, probes=spoilt)
    nodes = np.arange(1, 200)
    np.testing.assert_array_equal(build_estimator(name, calibration).seconds(nodes, 300), build_estimator(name, other).seconds(nodes, 300))
    seen = [(n, c, s) for (n, c, s), out in zip(CPU_PROBES, calibration.held_out, strict=True) if not out]
    assert held_out_rmse(build_estimator(name, calibration), seen) < 0.02


@pytest.mark.parametrize("name", ["table", "convex"])
def test_a_straight_cost_is_met_everywhere(name):
    line = build_estimator(name, made(probes_of(lambda n, c: 0.02 + 0.001 * n + 1e-5 * c)))
    for nodes, context in itertools.product((1, 3, 17, 64, 200), (64, 100, 256, 700, 768)):
        assert line.seconds(nodes, context) == pytest.approx(0.02 + 0.001 * nodes + 1e-5 * context, rel=1e-6)
    assert line.seconds(8, 9000) == line.seconds(8, 768) and line.seconds(8, 0) == line.seconds(8, 64)   # the nearest context outside


@given(times)
def test_isotonic_regression_is_pool_adjacent_violators_by_the_min_max_formula(seconds):
    values = np.array(seconds)
    means = lambda i, j: values[i : j + 1].mean()  # noqa: E731
    expected = [max(min(means(i, j) for j in range(k, len(values))) for i in range(k + 1)) for k in range(len(values))]
    np.testing.assert_allclose(rising(values), expected, rtol=1e-9)


def test_the_table_keeps_a_step_and_asks_to_look_past_it():
    table = build_estimator("table", made(probes_of(lambda n, c: 0.05 if n <= 16 else 0.09), [False] * 20 + [True]))
    assert [table.seconds(n, 256) for n in (1, 2, 16)] == pytest.approx([0.05] * 3)
    assert [table.seconds(n, 256) for n in (32, 64)] == pytest.approx([0.09] * 2)
    assert table.seconds(24, 256) == pytest.approx(0.07) and table.look_past == 32


@settings(max_examples=60)
@given(times, st.randoms(use_true_random=False))
def test_convex_regression_is_convex_rising_and_the_nearest(seconds, random):
    values = np.array(seconds)
    nodes = np.array(sorted(random.sample(range(1, 200), len(values))))
    fit = convex_regression(nodes, values)
    slopes = np.diff(fit) / np.diff(nodes)
    assert (slopes >= -1e-9).all() and (np.diff(slopes) >= -1e-9).all()
    # nearest: the distance grows towards every other convex rising sequence (the optimum of a convex problem)
    for other in [np.full(len(nodes), values.mean()), 0.01 + 0.002 * nodes, 0.2 + 1e-5 * nodes.astype(float) ** 2, fit * 1.1, fit + 0.05,
                  *(np.maximum(0, nodes - n) * 0.003 + 0.1 for n in nodes)]:
        assert (values - fit) @ (other - fit) <= 1e-7


def test_convex_regression_against_a_general_solver():
    nodes, seconds = np.array([1, 2, 4, 8, 16, 32]), np.array([0.056, 0.09, 0.078, 0.08, 0.083, 0.108])
    gaps = np.diff(nodes)
    constraints = [{"type": "ineq", "fun": lambda x: np.diff(x) / gaps * 1e3}, {"type": "ineq", "fun": lambda x: np.diff(np.diff(x) / gaps) * 1e3}]
    found = minimize(lambda x: 1e4 * np.square(x - seconds).sum(), np.full(6, seconds.mean()), constraints=constraints, method="SLSQP",
                     options={"ftol": 1e-14, "maxiter": 500})
    np.testing.assert_allclose(convex_regression(nodes, seconds), found.x, atol=2e-5)


@pytest.mark.parametrize("context", [64, 150, 768, 2000])
def test_the_convex_cost_is_convex_between_sizes_contexts_and_beyond(calibration, context):
    seconds = build_estimator("convex", calibration).seconds(np.arange(1, 400), context)
    assert (np.diff(seconds, 2) >= -1e-12).all()


def test_an_observation_makes_the_moving_average_at_that_size():
    ema = EmaEstimator(np.array([1, 2, 4, 8]), np.array([0.02, 0.03, 0.04, 0.06]))
    ema.observe(4, 100, 0.08)
    assert ema.seconds(4, 9) == pytest.approx(0.8 * 0.04 + 0.2 * 0.08)
    assert [ema.seconds(n, 9) for n in (1, 2, 8)] == pytest.approx([0.02, 0.03, 0.06])   # they need not give way
    before = ema.seconds(6, 9)
    ema.observe(6, 100, 0.1)
    assert ema.seconds(6, 9) == pytest.approx((1 - RATE) * before + RATE * 0.1)
    assert ema.seconds(16, 0) == pytest.approx(2 * ema.seconds(8, 0))
    before = ema.seconds(20, 0)
    ema.observe(20, 100, 0.5)   # beyond the largest size too
    assert ema.seconds(20, 0) == pytest.approx((1 - RATE) * before + RATE * 0.5)


def test_more_nodes_never_take_less_so_other_sizes_give_way():
    ema = EmaEstimator(np.array([1, 2, 4, 8]), np.array([0.02, 0.03, 0.04, 0.06]))
    ema.observe(8, 0, 0.06 - 0.04 / RATE)   # 0.02 at 8 nodes would need a time below 0: it says nothing
    ema.observe(2, 0, 0.03 + 0.02 / RATE)   # 0.05 at 2 nodes
    assert [ema.seconds(n, 0) for n in (1, 2, 4, 8)] == pytest.approx([0.02, 0.05, 0.05, 0.06])
    ema.observe(8, 0, 0.01)                 # 0.05
    ema.observe(8, 0, 0.01)                 # 0.042
    assert [ema.seconds(n, 0) for n in (1, 2, 4, 8)] == pytest.approx([0.02, 0.042, 0.042, 0.042])


@given(st.lists(st.tuples(st.integers(1, 70), st.floats(1e-4, 10.0)), max_size=20))
def test_whatever_is_observed_the_average_holds_there_and_time_rises_with_nodes(observed):
    ema = build_estimator("ema", made(CPU_PROBES))
    for nodes, seconds in observed:
        before = ema.seconds(nodes, 0)
        ema.observe(nodes, 0, seconds)
        assert ema.seconds(nodes, 0) == pytest.approx((1 - RATE) * before + RATE * seconds, rel=1e-9)
        assert (np.diff(ema.seconds(np.arange(1, 200), 0)) >= -1e-12).all()


@given(st.lists(st.tuples(st.integers(1, 70), st.floats(1e-4, 10.0)), max_size=30), st.sampled_from(ONLINE))
def test_online_estimators_follow_the_same_times_alike_and_stay_above_0(observed, name):
    calibration = made(CPU_PROBES)
    one, two = build_estimator(name, calibration), build_estimator(name, calibration)
    for nodes, seconds in observed:
        one.observe(nodes, 100, seconds)
    untouched = build_estimator(name, calibration)
    for nodes, seconds in observed:
        two.observe(nodes, 100, seconds)
    sizes = np.arange(1, 130)
    np.testing.assert_array_equal(one.seconds(sizes, 300), two.seconds(sizes, 300))
    np.testing.assert_array_equal(untouched.seconds(sizes, 300), build_estimator(name, calibration).seconds(sizes, 300))
    assert (one.seconds(sizes, 300) > 0).all() and np.isfinite(one.seconds(sizes, 300)).all()


@pytest.mark.parametrize("name", ONLINE)
def test_a_machine_that_became_slower_is_followed_and_times_that_are_none_say_nothing(calibration, name):
    estimator = build_estimator(name, calibration)
    assert isinstance(estimator, OnlineEstimator)
    begun = estimator.seconds(8, 128)
    for silent in (0.0, -1.0, float("nan"), float("inf")):
        estimator.observe(8, 128, silent)
    assert estimator.seconds(8, 128) == begun
    off = [abs(estimator.seconds(8, 128) - 3 * begun)]
    for _ in range(40):
        estimator.observe(8, 128, 3 * begun)
        off.append(abs(estimator.seconds(8, 128) - 3 * begun))
    assert all(later <= earlier for earlier, later in itertools.pairwise(off)) and off[-1] < 1e-3 * begun


def test_drift_is_a_moving_average_of_the_logarithm(calibration):
    drifting, line = build_estimator("roofline-ema", calibration), calibration.roofline
    assert drifting.seconds(8, 128) == line.seconds(8, 128)
    drifting.observe(16, 200, 4 * line.seconds(16, 200))
    assert drifting.drift == pytest.approx(4**RATE)
    drifting.observe(2, 50, line.seconds(2, 50) / 4)
    assert drifting.drift == pytest.approx(4 ** (RATE * (1 - RATE)) * 4**-RATE)
    assert drifting.seconds(30, 90) == pytest.approx(drifting.drift * line.seconds(30, 90))


@pytest.mark.parametrize("name", OFFLINE)
def test_the_others_learn_nothing(calibration, name):
    assert not isinstance(build_estimator(name, calibration), OnlineEstimator)


def test_the_moving_average_starts_from_the_probes_mean():
    probes = [(n, c, s) for c, row in ((100, [0.02, 0.03, 0.05, 0.09]), (200, [0.04, 0.05, 0.03, 0.11])) for n, s in zip((1, 2, 4, 8), row)]
    ema = build_estimator("ema", made(probes, [False] * 7 + [True]))
    assert [ema.seconds(n, 0) for n in (1, 2, 4, 8)] == pytest.approx([0.03, 0.04, 0.04, 0.09])


@pytest.mark.parametrize("name", ["table", "convex", "ema"])
def test_one_size_is_too_few(calibration, name):
    with pytest.raises(UserError, match="two tree sizes"):
        build_estimator(name, replace(calibration, probes=[(4, 64, 0.1), (4, 256, 0.2)], held_out=[False, False]))
    with pytest.raises(UserError, match="two tree sizes"):
        build_estimator(name, replace(calibration, probes=[], held_out=[]))


def test_times_that_are_not_of_a_rooflines_form_are_predicted_better_from_the_table():
    """Three steps, as of a kernel that works in tiles, and sizes close enough to see them."""
    calibration = made(probes_of(lambda n, c: (0.04 + c * 1e-5) * (1 + (n > 10) + (n > 40)), sizes=range(1, 65, 2)))
    errors = {name: held_out_rmse(build_estimator(name, calibration), calibration.probes, np.array(calibration.held_out)) for name in ESTIMATORS}
    assert errors["table"] < 0.7 * errors["roofline"] and errors["roofline-ema"] == errors["roofline"] < errors["raw"]
