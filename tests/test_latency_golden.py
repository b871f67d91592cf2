"""Roofline and calibration fit against the published cost model."""

import json

import numpy as np
import pytest

from bastion.latency import (
    PUBLISHED_PEAKS,
    CalibratedRoofline,
    ModelShape,
    fit_calibration,
    raw_roofline,
    sigma_weights,
)
from tests.golden import golden

ROOFLINE = json.loads(golden("roofline.json").read_text())
FIT = json.loads(golden("calibration_fit.json").read_text())
SHAPES = {
    name: ModelShape(*(spec[key] for key in ("L", "h", "n_q", "n_kv", "d", "h_ffn", "V")))
    for name, spec in ROOFLINE["model_specs"].items()
}
FITS = [(dataset, scale) for dataset in FIT["datasets"] for scale in (30, 0)]


def test_the_published_peaks_are_the_fallback_table():
    for key, spec in ROOFLINE["gpu_specs"].items():
        peaks = PUBLISHED_PEAKS[key]
        assert peaks.flops_per_second == spec["peak_throughput_bf16"]
        assert peaks.bytes_per_second == spec["memory_bandwidth"]


def test_flops_and_bytes_are_the_published_integers():
    for row in ROOFLINE["flops_and_memory"] + ROOFLINE["memory_other_bp"]:
        roofline = raw_roofline(SHAPES[row["model"]], PUBLISHED_PEAKS["a100"], row.get("bp", 2))
        nodes, context = row["s"], row["c"]
        assert roofline.parameter_bytes == row["footprint_param"]
        assert roofline.kv_bytes(nodes, context) == row["footprint_kv"]
        assert roofline.activation_bytes(nodes, context) == row["footprint_act"]
        assert roofline.bytes(nodes, context) == row["total_footprint"]
        assert isinstance(roofline.bytes(nodes, context), int)
        if "flops" in row:
            assert roofline.flops(nodes, context) == row["flops"]
            assert roofline.flops(np.array([nodes]), context).tolist() == [row["flops"]]


@pytest.mark.parametrize("as_array", [True, False])
def test_seconds_are_the_published_estimates(as_array):
    for case in ROOFLINE["estimator"] + ROOFLINE["crossover"]:
        roofline = CalibratedRoofline(
            SHAPES[case["model"]],
            PUBLISHED_PEAKS[case["gpu"]],
            **ROOFLINE["calibrations"][case["calibration"]],
        )
        sizes, context = case.get("s", ROOFLINE["s_grid"]), case["c"]

        def over(method, sizes=sizes, context=context):
            if as_array:
                return method(np.array(sizes), context)
            return [method(size, context) for size in sizes]

        np.testing.assert_allclose(over(roofline.seconds), case["estimate"], rtol=1e-12)
        np.testing.assert_allclose(over(roofline.next_delta), case["next_delta"], rtol=1e-12)
        bound = list(over(roofline.compute_bound))
        if "compute_branch_wins" in case:
            assert bound == case["compute_branch_wins"]
        else:
            assert sizes[bound.index(True)] == case["first_s_compute_branch_wins"]


def test_branches_are_the_published_cost_model():
    for row in ROOFLINE["compute_cost_model_latencies"]:
        roofline = raw_roofline(SHAPES[row["model"]], PUBLISHED_PEAKS[row["gpu"]])
        # Interpolated through 0, 1 and 2 nodes, so equal up to that rounding.
        assert roofline.memory_seconds(row["s"], row["c"]) == pytest.approx(row["lat_mem_s"], rel=1e-10)
        assert roofline.compute_seconds(row["s"], row["c"]) == pytest.approx(row["lat_comp_s"], rel=1e-10)


def test_sigmas():
    golden_sigmas = FIT["sigma_weights"]
    nodes = np.array(golden_sigmas["s"])
    np.testing.assert_allclose(sigma_weights(nodes, 30.0), golden_sigmas["sigma_scale_30"], rtol=1e-12)
    np.testing.assert_allclose(sigma_weights(nodes, 0.0), golden_sigmas["sigma_scale_0"], rtol=1e-12)
    assert sigma_weights(np.array([8, 8, 8]), 30.0).tolist() == golden_sigmas["all_equal_s"]


def shape_named(model: str) -> ModelShape:
    plain = model.lower().replace("-", "")
    return next(shape for name, shape in SHAPES.items() if name.replace("-", "") in plain)


@pytest.mark.parametrize(
    ("dataset", "scale"), FITS, ids=[f"{dataset['name']}-{scale}" for dataset, scale in FITS]
)
def test_fits_predict_what_the_published_fit_predicts(dataset, scale):
    shape, peaks = shape_named(dataset["model_name_or_path"]), PUBLISHED_PEAKS[dataset["gpu_type"]]
    expected = dataset["fits"][f"sigma_scale_{scale}"]
    fitted = fit_calibration(shape, peaks, dataset["records"], sigma_scale=scale)
    table = np.array(dataset["aggregated"] or dataset["records"])
    nodes, context, seconds = table[:, 0].astype(int), table[:, 1].astype(int), table[:, 2]
    published = CalibratedRoofline(shape, peaks, **expected["fit"])
    prediction = fitted.seconds(nodes, context)
    np.testing.assert_allclose(prediction, published.seconds(nodes, context), rtol=5e-3)
    sse = np.square((prediction - seconds) / sigma_weights(nodes, scale)).sum()
    assert sse <= expected["weighted_sse"] * (1 + 1e-3) + 1e-20
    assert sse >= expected["weighted_sse_best_found_by_neldermead_restarts"] * (1 - 1e-3) - 1e-20
