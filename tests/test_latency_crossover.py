"""Where compute overtakes memory, against a walk over all sizes; and the errors of each estimator by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bastion.analysis.latency_estimators import crossovers, estimator_errors, reduction, residuals, summary
from bastion.latency import CalibratedRoofline, DevicePeaks, ModelShape, crossover, make_calibration, raw_roofline
from bastion.latency.buckets import buckets_to
from tests.test_latency_fit import CPU, CPU_PROBES, SMALL

SHAPE = ModelShape(2, 64, 4, 2, 16, 96, 500)


def walked(line: CalibratedRoofline, context: int, most: int):
    """The definition, size by size."""
    slower = [line.compute_seconds(n, context) > line.memory_seconds(n, context) for n in range(1, most + 1)]
    nodes = next((n for n in range(2, most + 1) if slower[n - 1] and not slower[n - 2]), None)
    begun = nodes or (1 if slower[0] else None)
    if begun is None:
        return None, False, most
    last = next((n - 1 for n in range(begun + 1, most + 1) if not slower[n - 1]), most)
    return nodes, slower[0], last


@given(st.floats(0.1, 10), st.floats(0, 1e-3), st.floats(0.1, 10), st.floats(0, 1e-3), st.floats(1e8, 1e12), st.integers(0, 3000),
       st.integers(1, 300))
def test_the_crossover_is_the_first_size_that_compute_holds_up(alpha_m, beta_m, alpha_c, beta_c, flops, context, most):
    line = CalibratedRoofline(SHAPE, DevicePeaks(flops, 1e9), alpha_m, beta_m, alpha_c, beta_c)
    at = crossover(line, context, most)
    assert (at.nodes, at.from_first, at.last) == walked(line, context, most)
    assert (at.context, at.most) == (context, most)


def test_by_hand():
    """At 12 bytes or FLOPs a second the branches are counts; a fixed compute time moves the crossing."""
    raw = raw_roofline(SHAPE, DevicePeaks(1.0, 1.0))
    never = replace(raw, alpha_c=0.0)
    assert crossover(never, 10, 64).nodes is None and not crossover(never, 10, 64).from_first
    always = replace(never, beta_c=1e12)
    at = crossover(always, 10, 64)
    assert at.nodes is None and at.from_first and at.last == 64
    # between the bytes of 7 and of 8 nodes, read downwards: compute holds up small trees only
    fixed = (raw.bytes(7, 10) + raw.bytes(8, 10)) / 2
    at = crossover(replace(never, beta_c=fixed), 10, 64)
    assert at.from_first and at.nodes is None and at.last == 7


@pytest.fixture
def calibration():
    return make_calibration(shape=SMALL, peaks=CPU, peaks_source="measured", probes=CPU_PROBES, robust=True, device_key="cpu", target="t",
                            dtype="bfloat16", attention="a", draft_seconds=0.006, other_seconds=0.002)


def test_errors_are_root_mean_squares_over_the_probes_held_out(calibration):
    errors = {error.estimator: error for error in estimator_errors(calibration)}
    lines = {"roofline": calibration.roofline, "raw": raw_roofline(calibration.shape, calibration.peaks, 2)}
    for name, line in lines.items():
        missed = [(c, float(line.seconds(n, c)) - s) for (n, c, s), out in zip(CPU_PROBES, calibration.held_out, strict=True) if out]
        assert errors[name].rmse == pytest.approx(np.sqrt(np.mean([m**2 for _, m in missed])), rel=1e-12)
        for context, value in errors[name].by_context.items():
            here = [m**2 for c, m in missed if c == context]
            assert value is None if not here else value == pytest.approx(np.sqrt(np.mean(here)), rel=1e-12)
    assert errors["roofline"].rmse == calibration.calibrated_rmse and errors["raw"].rmse == calibration.raw_rmse
    assert set(errors["raw"].by_context) == {c for _, c, _ in CPU_PROBES} == set(calibration.contexts)


def test_a_calibration_without_held_out_probes_has_no_error(calibration):
    none = replace(calibration, held_out=[False] * len(calibration.probes))
    assert all(error.rmse is None and set(error.by_context.values()) == {None} for error in estimator_errors(none))
    assert summary(none)["rmse_reduction"] is None


def test_reduction():
    assert reduction(0.1, 0.01) == pytest.approx(0.9) and reduction(0.1, 0.2) == pytest.approx(-1)
    assert reduction(None, 0.1) is None and reduction(0.1, None) is None and reduction(0.0, 0.1) is None


def test_residuals_are_predicted_less_measured(calibration):
    for row in residuals(calibration):
        line = calibration.estimator(row.estimator)
        np.testing.assert_allclose(row.residual, [line.seconds(n, c) - s for n, c, s in CPU_PROBES], rtol=1e-9)
        assert row.held_out.tolist() == calibration.held_out


def test_summary_is_plain(calibration):
    import json
    values = json.loads(json.dumps(summary(calibration)))
    assert values["estimators"]["raw"]["held_out_rmse"] == calibration.raw_rmse
    assert values["rmse_reduction"] == 1 - calibration.calibrated_rmse / calibration.raw_rmse
    assert values["crossover"]["roofline"] == {str(at.context): {"nodes": at.nodes, "compute_from_first": at.from_first}
                                               for at in crossovers(calibration)}


def test_padding_to_buckets_moves_no_crossover_and_breaks_no_summary(calibration):
    padded = replace(calibration, buckets=buckets_to(calibration.max_probed_nodes))
    for name in ("raw", "roofline"):
        assert crossovers(padded, name) == crossovers(calibration, name)
    assert summary(padded)["crossover"] == summary(calibration)["crossover"]
