"""Shapes, peaks, the roofline's own behaviour, and fits to the rough probes of a CPU."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bastion.errors import UserError
from bastion.latency import (
    CalibratedRoofline,
    DevicePeaks,
    ModelShape,
    fit_calibration,
    held_out_rmse,
    hold_out,
    published_peaks,
    raw_roofline,
)
from tests.golden import golden

SMALL = ModelShape(30, 576, 9, 3, 64, 1536, 49152, tied=True)
CPU = DevicePeaks(4e11, 1.9e10, "a CPU")
SIZES = [1, 2, 4, 8, 16, 32, 64, 128]
# Milliseconds measured on two busy cores in bfloat16 at context 128 and 512: not even rising everywhere.
CPU_PROBES = [
    (nodes, context, milliseconds / 1e3)
    for context, row in ((128, [40, 36, 47, 40, 52, 61, 90, 144]), (512, [36, 42, 42, 45, 55, 72, 121, 189]))
    for nodes, milliseconds in zip(SIZES, row, strict=True)
]


def test_shape_from_configs():
    llama = dict(
        num_hidden_layers=30, hidden_size=576, num_attention_heads=9, num_key_value_heads=3,
        intermediate_size=1536, vocab_size=49152, tie_word_embeddings=True,
    )  # fmt: skip
    assert ModelShape.from_config(llama) == SMALL
    assert ModelShape.from_config(SimpleNamespace(**llama)) == SMALL
    assert ModelShape.from_config({"text_config": llama}) == SMALL
    # Qwen3 says its head_dim, which is not hidden / heads.
    qwen = llama | {"head_dim": 128, "tie_word_embeddings": False}
    assert ModelShape.from_config(qwen) == ModelShape(30, 576, 9, 3, 128, 1536, 49152)
    # Older configs have as many key-value heads as heads; a null counts as absent.
    assert ModelShape.from_config(llama | {"num_key_value_heads": None, "head_dim": None}).kv_heads == 9
    del llama["intermediate_size"]
    with pytest.raises(UserError, match="intermediate_size"):
        ModelShape.from_config(llama)


def test_shape_from_transformers_configs():
    from transformers import LlamaConfig, Qwen3Config

    llama = LlamaConfig(
        num_hidden_layers=2, hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=96, vocab_size=300, tie_word_embeddings=True,
    )  # fmt: skip
    assert ModelShape.from_config(llama) == ModelShape(2, 64, 4, 2, 16, 96, 300, tied=True)
    qwen = Qwen3Config(
        num_hidden_layers=2, hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, intermediate_size=96, vocab_size=300, tie_word_embeddings=False,
    )  # fmt: skip
    assert ModelShape.from_config(qwen) == ModelShape(2, 64, 4, 2, 32, 96, 300)


def test_a_tied_embedding_is_counted_once():
    untied = ModelShape(30, 576, 9, 3, 64, 1536, 49152)
    once, twice = raw_roofline(SMALL, CPU), raw_roofline(untied, CPU)
    assert twice.bytes(8, 100) - once.bytes(8, 100) == 2 * 576 * 49152
    assert once.flops(8, 100) == twice.flops(8, 100)
    # The default target's weights as stored: 269 MB in bfloat16.
    assert once.parameter_bytes == pytest.approx(269e6, rel=0.005)


def test_impossible_shapes_and_peaks_are_refused():
    with pytest.raises(UserError, match="layers"):
        ModelShape(0, 576, 9, 3, 64, 1536, 49152)
    for flops, bandwidth in ((0.0, 1.0), (1.0, -1.0), (float("nan"), 1.0), (1.0, float("inf"))):
        with pytest.raises(UserError):
            DevicePeaks(flops, bandwidth)


def test_published_peaks_know_the_published_names_and_spellings_it_missed():
    names = json.loads(golden("roofline.json").read_text())["name_resolution"]["gpu"]
    for name, key in names.items():
        if key is not None:
            assert published_peaks(name) == published_peaks(key)
    assert published_peaks("NVIDIA A100-SXM4-80GB") == published_peaks("a100")
    assert published_peaks("NVIDIA H200 NVL") == published_peaks("h200")
    for unknown in ("NVIDIA L40S", "NVIDIA GeForce RTX 4090", "cpu", "", "NVIDIA A1000"):
        assert published_peaks(unknown) is None


positive = st.floats(0.0, 10.0)


@given(positive, st.floats(0.0, 0.1), positive, st.floats(0.0, 0.1), st.integers(0, 4096))
def test_seconds_never_fall_as_nodes_are_added(alpha_m, beta_m, alpha_c, beta_c, context):
    roofline = CalibratedRoofline(SMALL, CPU, alpha_m, beta_m, alpha_c, beta_c)
    seconds = roofline.seconds(np.arange(1, 600), context)
    assert (np.diff(seconds) >= -1e-12 * seconds[1:]).all()
    assert seconds[16] == pytest.approx(roofline.seconds(17, context), rel=1e-15)
    assert roofline.seconds(17, context) == max(
        roofline.memory_seconds(17, context), roofline.compute_seconds(17, context)
    )


def test_arrays_of_nodes_and_context_broadcast():
    roofline = CalibratedRoofline(SMALL, CPU, 1.2, 0.01, 1.5, 0.02)
    nodes, contexts = np.array([1, 8, 200]), np.array([[0], [900]])
    grid = roofline.seconds(nodes, contexts)
    assert grid.shape == (2, 3)
    for i, context in enumerate((0, 900)):
        for j, size in enumerate((1, 8, 200)):
            assert grid[i, j] == pytest.approx(roofline.seconds(size, context), rel=1e-14)


@settings(max_examples=25)
@given(st.floats(0.5, 3), st.floats(0, 0.02), st.floats(0.5, 3), st.floats(0, 0.02), st.booleans())
def test_clean_probes_are_predicted_exactly(alpha_m, beta_m, alpha_c, beta_c, robust):
    truth = CalibratedRoofline(SMALL, CPU, alpha_m, beta_m, alpha_c, beta_c)
    records = [(n, c, float(truth.seconds(n, c))) for n in SIZES for c in (64, 256, 1024)]
    fitted = fit_calibration(SMALL, CPU, records, robust=robust)
    assert held_out_rmse(fitted, records) < 1e-6 * records[-1][2]


@pytest.mark.parametrize("robust", [False, True])
def test_a_cpus_probes_give_a_usable_fit(robust):
    fitted = fit_calibration(SMALL, CPU, CPU_PROBES, robust=robust)
    assert min(fitted.alpha_m, fitted.beta_m, fitted.alpha_c, fitted.beta_c) >= 0
    errors = [abs(fitted.seconds(n, c) / s - 1) for n, c, s in CPU_PROBES]
    assert np.median(errors) < 0.1
    assert held_out_rmse(fitted, CPU_PROBES) < 0.3 * held_out_rmse(raw_roofline(SMALL, CPU), CPU_PROBES)
    assert fitted.next_delta(64, 128) > 0, "nodes must not look free where they are not"


def test_robust_fits_ignore_interruptions():
    truth = CalibratedRoofline(SMALL, CPU, 1.3, 0.02, 1.6, 0.018)
    clean = [(n, c, float(truth.seconds(n, c))) for n in SIZES for c in (64, 256, 512, 1024)]
    # One probe in ten hit by something else that ran, tenfold slower.
    rough = [(n, c, s * (10 if i % 10 == 3 else 1)) for i, (n, c, s) in enumerate(clean)]
    assert held_out_rmse(fit_calibration(SMALL, CPU, rough, robust=True), clean) < 1e-3
    assert held_out_rmse(fit_calibration(SMALL, CPU, rough), clean) > 5e-3


def test_robust_fits_follow_the_many_slow_probes_not_the_few_fast_ones():
    truth = CalibratedRoofline(SMALL, CPU, 1.3, 0.02, 1.6, 0.018)
    slow = [(n, c, float(truth.seconds(n, c))) for n in SIZES for c in (64, 256, 512, 1024)]
    lucky = [(n, c, s / (6 if i % 6 == 2 else 1)) for i, (n, c, s) in enumerate(slow)]
    fitted = fit_calibration(SMALL, CPU, lucky, robust=True)
    errors = [fitted.seconds(n, c) / s - 1 for n, c, s in slow]
    assert np.abs(errors).max() < 0.05


def test_repeats_count_by_their_mean_or_median():
    records = CPU_PROBES + [(n, c, s * 1.2) for n, c, s in CPU_PROBES] + [(n, c, s * 5) for n, c, s in CPU_PROBES]
    means = [(n, c, s * 7.2 / 3) for n, c, s in CPU_PROBES]
    medians = [(n, c, s * 1.2) for n, c, s in CPU_PROBES]
    for robust, reduced in ((False, means), (True, medians)):
        np.testing.assert_allclose(
            fit_calibration(SMALL, CPU, records, robust=robust).seconds(np.array(SIZES), 128),
            fit_calibration(SMALL, CPU, reduced, robust=robust).seconds(np.array(SIZES), 128),
            rtol=1e-6,
        )


@pytest.mark.parametrize(
    "records",
    [
        [], CPU_PROBES[:3], CPU_PROBES[:3] * 5, [(1, 2)] * 5, CPU_PROBES + [(0, 1, 0.1)],
        CPU_PROBES + [(1, -1, 0.1)], CPU_PROBES + [(1, 1, 0.0)], CPU_PROBES + [(1, 1, float("nan"))],
    ],
)  # fmt: skip
def test_records_that_cannot_be_fitted_are_refused(records):
    with pytest.raises(UserError):
        fit_calibration(SMALL, CPU, records)


def test_held_out_points_lie_between_fitted_ones():
    records = CPU_PROBES * 2
    mask = hold_out(records)
    assert len(mask) == len(records) and 0.15 < mask.mean() < 0.45
    np.testing.assert_array_equal(mask[: len(CPU_PROBES)], mask[len(CPU_PROBES) :])
    out = [nodes for (nodes, _, _), held in zip(records, mask, strict=True) if held]
    assert min(out) > 1 and max(out) < 128
    for context in (128, 512):
        assert any(held for (_, c, _), held in zip(records, mask, strict=True) if c == context)
    assert len(hold_out([])) == 0


def test_held_out_error_by_hand():
    class Flat:
        def seconds(self, nodes, context):
            return np.full(np.shape(nodes), 0.05)

    records = [(1, 0, 0.05), (2, 0, 0.08), (4, 0, 0.01)]
    assert held_out_rmse(Flat(), records) == pytest.approx(np.sqrt((0.03**2 + 0.04**2) / 3))
    assert held_out_rmse(Flat(), records, np.array([False, True, False])) == pytest.approx(0.03)
    with pytest.raises(UserError):
        held_out_rmse(Flat(), records, np.zeros(3, dtype=bool))
