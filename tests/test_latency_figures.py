"""The latency charts draw the numbers they say, and their words say what they draw."""

from dataclasses import replace

import numpy as np
import pytest

from bastion.analysis.drift import Drift, RunDrift
from bastion.analysis.latency_estimators import crossovers, estimator_errors
from bastion.errors import UserError
from bastion.figures import numbers
from bastion.figures.latency import residual_figure, residual_table, verify_figure, verify_table
from bastion.figures.latency_drift import drift_figure, drift_table
from bastion.figures.latency_errors import error_figure, error_table, error_title
from bastion.figures.latency_words import (FORMULA, calibration_label, crossover_words, duration, formula_with_numbers, labels, parameter_table,
                                           rule, throughput, verdict_words)
from bastion.latency import ESTIMATORS, Crossover, make_calibration, raw_roofline
from bastion.latency.buckets import buckets_to
from tests.test_latency_fit import CPU, CPU_PROBES, SMALL


@pytest.fixture
def calibration():
    return make_calibration(shape=SMALL, peaks=CPU, peaks_source="measured", probes=CPU_PROBES, robust=True, device_key="cpu", target="t",
                            dtype="bfloat16", attention="a", draft_seconds=0.006, other_seconds=0.002, made_at="2026-01-01T12:00:00+02:00")


def traces(figure, name):
    return [trace for trace in figure.data if trace.name == name]


def test_each_context_has_a_panel_with_points_both_rooflines_and_the_branches(calibration):
    contexts = calibration.contexts
    figure = verify_figure(calibration, contexts)
    raw = raw_roofline(calibration.shape, calibration.peaks, 2)
    lines = {"calibrated roofline": calibration.roofline.seconds, "raw roofline": raw.seconds,
             "memory branch": calibration.roofline.memory_seconds, "compute branch": calibration.roofline.compute_seconds}
    for name, seconds in lines.items():
        drawn = traces(figure, name)
        assert len(drawn) == len(contexts)
        for context, trace in zip(contexts, drawn, strict=True):
            np.testing.assert_allclose(trace.y, [1e3 * seconds(int(n), context) for n in trace.x])
            assert trace.x[0] == 1 and trace.x[-1] == calibration.max_probed_nodes
            assert trace.line.dash != "solid"   # predicted
    for held, name in ((False, "measured"), (True, "measured, held out")):
        for context, trace in zip(contexts, traces(figure, name), strict=True):
            expected = [(n, 1e3 * s) for (n, c, s), out in zip(CPU_PROBES, calibration.held_out, strict=True) if c == context and out == held]
            assert list(zip(trace.x, trace.y, strict=True)) == expected
    said = " ".join(figure.layout.annotations[0].text.replace("<br>", " ").split())
    assert "Measured: points" in said and "Predicted: lines" in said
    assert numbers.seconds(calibration.calibrated_rmse) in figure.layout.title.text
    assert {a.text for a in figure.layout.annotations if a.text.startswith("context")} == {f"context {numbers.count(c)}" for c in contexts}


def test_the_title_speaks_of_the_contexts_on_show(calibration):
    for context in calibration.contexts:
        chosen = [(n, c, s) for (n, c, s), out in zip(CPU_PROBES, calibration.held_out, strict=True) if c == context and out]
        title = verify_figure(calibration, [context]).layout.title.text
        if not chosen:
            assert "Off by" not in title
            continue
        error = np.sqrt(np.mean([(calibration.roofline.seconds(n, c) - s) ** 2 for n, c, s in chosen]))
        assert title.startswith(f"Off by {numbers.seconds(float(error))} RMSE, calibrated; raw by ")


def test_a_bar_marks_where_compute_overtakes(calibration):
    figure = verify_figure(calibration, calibration.contexts[:1])
    marks = {(trace.x[0], trace.text[0]) for trace in figure.data if trace.marker.symbol == "line-ns"}
    expected = {at.nodes for name in ("roofline", "raw") for at in crossovers(calibration, name)[:1] if at.nodes}
    assert marks == {(nodes, numbers.count(nodes)) for nodes in expected}


@pytest.mark.parametrize(("count", "labelled"), [(1, {"xaxis"}), (3, {"xaxis", "xaxis2", "xaxis3"}), (5, {"xaxis4", "xaxis5", "xaxis3"})])
def test_nodes_stand_under_the_lowest_panel_of_each_column(calibration, count, labelled):
    """Five contexts fill a row of three and a row of two."""
    probes = [(n, 100 * (i + 1), s) for i in range(count) for n, c, s in CPU_PROBES if c == calibration.contexts[0]]
    many = replace(calibration, probes=probes, held_out=[False] * len(probes))
    figure = verify_figure(many, many.contexts)
    titled = {axis for axis in figure.layout if axis.startswith("xaxis") and figure.layout[axis].title.text}
    assert titled == labelled and all(figure.layout[axis].showticklabels is not False for axis in labelled)


@pytest.mark.parametrize("logarithmic", [True, False])
def test_axes_take_in_all_that_is_drawn(calibration, logarithmic):
    figure = verify_figure(calibration, calibration.contexts, logarithmic, dark=True)
    assert (figure.layout.yaxis.type == "log") is logarithmic and (figure.layout.xaxis.type == "log") is logarithmic
    low, high = figure.layout.yaxis.range
    top, bottom = (10**high, 10**low) if logarithmic else (high, low)
    assert all(bottom <= value <= top for trace in figure.data for value in trace.y)
    assert len({tuple(figure.layout[axis].range) for axis in figure.layout if axis.startswith("yaxis")}) == 1


def test_residuals_and_their_table(calibration):
    contexts = calibration.contexts[1:]
    figure, table = residual_figure(calibration, contexts), residual_table(calibration, contexts)
    assert len(table) == len(ESTIMATORS) * sum(c in contexts for _, c, _ in CPU_PROBES)
    np.testing.assert_allclose(table["residual_seconds"], table["predicted_seconds"] - table["measured_seconds"])
    drawn = sorted(y for trace in figure.data for y in trace.y)
    np.testing.assert_allclose(drawn, sorted(1e3 * table["residual_seconds"]))
    median = table[table["estimator"] == "raw"]["residual_seconds"].median()
    assert f"{numbers.seconds(median)} raw" in figure.layout.title.text
    assert verify_table(calibration, contexts)["measured_seconds"].tolist() == [s for _, c, s in CPU_PROBES if c in contexts]


def test_bars_are_the_held_out_errors_and_the_claim_is_8_to_13_percent_of_raw(calibration):
    figure, errors = error_figure(calibration), {e.estimator: e for e in estimator_errors(calibration)}
    for name, bar in (("roofline", "calibrated"), ("raw", "raw")):
        (trace,) = traces(figure, bar)
        drawn = [None if y is None or np.isnan(y) else y / 1e3 for y in trace.y]
        assert drawn == pytest.approx([errors[name].rmse, *errors[name].by_context.values()])
    (claim,) = traces(figure, "published claim")
    assert claim.base[0] == pytest.approx(1e3 * 0.08 * errors["raw"].rmse)
    assert claim.base[0] + claim.y[0] == pytest.approx(1e3 * 0.13 * errors["raw"].rmse)
    share = 1 - errors["roofline"].rmse / errors["raw"].rmse
    assert numbers.percent(share) in figure.layout.title.text
    assert "no measurement" in figure.layout.annotations[0].text.replace("<br>", " ")
    table = error_table(calibration)
    assert len(table) == len(ESTIMATORS) * (1 + len(calibration.contexts)) and table["held_out_rmse_seconds"][0] == errors["roofline"].rmse


def test_another_estimator_of_the_registry_is_drawn_and_one_that_cannot_be_built_is_left_out(calibration, monkeypatch):
    class Constant:
        def seconds(self, nodes, context):
            return np.full(np.shape(nodes), 0.25)

    def refuses(_):
        raise UserError("This estimator needs more probes.")

    monkeypatch.setitem(ESTIMATORS, "constant", lambda _: Constant())
    monkeypatch.setitem(ESTIMATORS, "choosy", refuses)
    (bar,) = traces(error_figure(calibration), "constant")
    missed = [0.25 - s for (_, _, s), out in zip(CPU_PROBES, calibration.held_out, strict=True) if out]
    assert bar.y[0] == pytest.approx(1e3 * np.sqrt(np.mean(np.square(missed)))) and bar.marker.color not in ("#0072B2", "#767676")
    assert set(residual_table(calibration, calibration.contexts)["estimator"]) == set(ESTIMATORS) - {"choosy"}


def test_a_fit_that_made_it_worse_is_said():
    assert "29\u2009% larger" in error_title(-0.29) and error_title(None) == "Error of each estimator"


def runs(*medians):
    return [RunDrift(f"r{i}", f"2026-01-01T11:0{i}:00+00:00", "<b>bold</b>", "bastion", 9, m, 0.9 * m, 1.2 * m) for i, m in enumerate(medians)]


def test_drift_is_a_point_a_run_with_its_middle_half(calibration):
    drift = Drift(runs(1.0, 1.1, 1.4, 1.5))
    figure = drift_figure(drift, calibration)
    (points,) = traces(figure, "run")
    assert list(points.y) == [1.0, 1.1, 1.4, 1.5]
    np.testing.assert_allclose(points.error_y.array, [0.2, 0.22, 0.28, 0.3])
    np.testing.assert_allclose(points.error_y.arrayminus, [0.1, 0.11, 0.14, 0.15])
    assert "&lt;b&gt;bold" in points.customdata[0] and "1.25x" in figure.layout.title.text and figure.layout.title.text.endswith("ok")
    assert figure.layout.xaxis.range[0].isoformat() < "2026-01-01T10:00:00"   # begins at the calibration
    assert drift_table(drift)["median"].tolist() == [1.0, 1.1, 1.4, 1.5]
    assert len(drift_table(Drift([]))) == 0 and len(drift_figure(Drift([]), calibration).data[0].x) == 0


@pytest.mark.parametrize(("medians", "words"), [
    ([], "No run has been made"), ([1.0], "Over the last 1 run verifying took 1.00x .* a verdict needs 3 runs"),
    ([1.0] * 3, "1.00x what was predicted: the calibration holds"), ([2.0] * 9, "last 5 runs .* 2.00x .* no longer holds, measure again")])
def test_the_verdict_in_words(medians, words):
    import re
    assert re.search(words, verdict_words(Drift(runs(*medians))))
    assert "0.8 to 1.25" in rule()


@pytest.mark.parametrize(("at", "words"), [
    (Crossover(64, 256, 24, False, 256), "24 nodes"), (Crossover(64, 256, None, False, 256), "never within the 256 nodes probed"),
    (Crossover(64, 256, None, True, 256), "compute from the first node"), (Crossover(64, 256, 24, False, 90), "24 nodes, up to 90"),
    (Crossover(64, 256, None, True, 7), "compute from the first node, up to 7")])
def test_crossovers_in_words(at, words):
    assert crossover_words(at) == words


def test_labels_are_the_same_everywhere_and_never_twice(calibration):
    assert calibration_label(calibration) == "2026-01-01 10:00:00 UTC, t, bfloat16, cpu"
    twin = replace(calibration, drafter="other")
    names = labels([calibration, twin])
    assert len(set(names.values())) == 2 and all(key in name for key, name in names.items())
    odd = replace(calibration, made_at="x\u202e\n\x07" + "y" * 500)
    assert "\u202e" not in calibration_label(odd) and "\n" not in calibration_label(odd) and len(calibration_label(odd)) <= 160


def test_the_formula_and_the_table_hold_the_fitted_numbers(calibration):
    line, text = calibration.roofline, formula_with_numbers(calibration)
    assert numbers.significant(line.alpha_m) in text and numbers.significant(line.alpha_c) in text and r"\begin{cases}" in text
    assert text.count("{") == text.count("}") and FORMULA.count("{") == FORMULA.count("}")
    table = parameter_table(calibration).set_index("parameter")["value"]
    assert table["α memory"] == numbers.significant(line.alpha_m) and table["β compute"] == duration(line.beta_c)
    assert "measured" in parameter_table(calibration).set_index("parameter")["what it means"]["peak"]
    assert duration(1.2e-11) == "0\u2009ms" and throughput(154e9) == "154\u2009GFLOP/s" and throughput(989e12) == "989\u2009TFLOP/s"


def test_a_device_that_pads_trees_to_buckets_has_every_figure_and_table(calibration):
    padded = replace(calibration, buckets=buckets_to(calibration.max_probed_nodes))
    figure = verify_figure(padded, padded.contexts)
    raw, plain = (next(t for t in one.data if t.name == "raw roofline") for one in (figure, verify_figure(calibration, calibration.contexts)))
    assert (np.asarray(raw.y) >= np.asarray(plain.y)).all() and len(set(raw.y)) <= len(padded.buckets)
    assert len(verify_table(padded, padded.contexts)) and residual_figure(padded, padded.contexts).data and error_figure(padded).data
