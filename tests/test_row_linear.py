"""Our bfloat16 layer against exact sums, and that a row's bits do not depend on its company."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn import functional as F
from transformers import LlamaConfig

from bastion.models import linear_kinds, quick_modules, sameness
from bastion.models.linear_kinds import added, linear_kind, silu_of, times, trial_linears, trial_seconds
from bastion.models.packed_linear import PackedLinear, packing_works
from bastion.models.quick_modules import quicken
from bastion.models.row_linear import RowLinear

SHAPES = [(64, 32, False), (96, 200, True), (40, 64, True), (576, 129, False)]   # inputs, outputs, bias


def layers(inputs: int, outputs: int, bias: bool) -> tuple[torch.nn.Linear, RowLinear]:
    torch.manual_seed(inputs + outputs)
    plain = torch.nn.Linear(inputs, outputs, bias=bias).bfloat16().requires_grad_(False)
    return plain, RowLinear(plain)


def exact(plain: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x.double(), plain.weight.double(), None if plain.bias is None else plain.bias.double())


def rounded_once(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Within half a unit of bfloat16's last place, and what float32 sums may be off by."""
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), wanted, rtol=2**-8 * 1.001, atol=2e-6)


@pytest.mark.parametrize("shape", SHAPES)
@torch.inference_mode()
def test_its_output_is_the_exact_one_rounded_once(shape):
    plain, rows = layers(*shape)
    for n in (1, 2, 3, 5, 6, 7, 13, 40):
        x, other = torch.randn(1, n, shape[0]).bfloat16(), torch.randn(1, n, shape[1]).bfloat16()
        wanted = exact(plain, x)
        rounded_once(rows(x), wanted)
        rounded_once(silu_of(rows, x), F.silu(wanted))
        rounded_once(times(rows, x, other), wanted * other)
        rounded_once(added(rows, x, other), wanted + other)
    assert torch.equal(rows.weights(), plain.weight)


@pytest.mark.parametrize("shape", SHAPES)
@torch.inference_mode()
def test_a_row_has_the_same_bits_in_any_company(shape):
    _, rows = layers(*shape)
    x = torch.randn(40, shape[0]).bfloat16()
    alone = torch.cat([rows(x[i : i + 1]) for i in range(len(x))])
    for n in range(1, len(x) + 1):
        first = (7 * n) % (len(x) - n + 1)
        assert torch.equal(rows(x[first : first + n]), alone[first : first + n]), n


@torch.inference_mode()
def test_numbers_that_are_none_and_rows_that_lie_apart():
    plain, rows = layers(64, 32, True)
    x = torch.randn(4, 128).bfloat16()[:, ::2]
    rounded_once(rows(x), exact(plain, x))
    x = x.clone()
    x[1, 3], x[2, 5] = float("nan"), float("inf")
    found = rows(x)
    assert found[1].isnan().all() and not found[2].isfinite().any() and found[[0, 3]].isfinite().all()
    assert rows(x[:0]).shape == (0, 32)


def test_threads_do_not_get_in_each_others_way():
    _, rows = layers(576, 129, False)
    inputs = [torch.randn(n, 576).bfloat16() for n in (1, 3, 8, 17)]
    with torch.inference_mode():
        wanted = [rows(x) for x in inputs]

    @torch.inference_mode()
    def work(which: int) -> bool:
        return all(torch.equal(rows(inputs[which]), wanted[which]) for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_a_target_made_of_them_keeps_bits(monkeypatch):
    monkeypatch.setattr(quick_modules, "linear_kind", lambda dtype: RowLinear)
    sameness._tried.cache_clear()
    config = LlamaConfig(hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, vocab_size=150)
    assert sameness.keeps_bits(config)
    sameness._tried.cache_clear()


def test_the_kind_is_what_the_processor_and_the_trial_say(monkeypatch):
    said = {"native": True, "quicker": True, "packs": True}
    monkeypatch.setattr(linear_kinds, "_multiplies_bfloat16", lambda: said["native"])
    monkeypatch.setattr(linear_kinds, "_rows_are_quicker", lambda: said["quicker"])
    monkeypatch.setattr(linear_kinds, "packing_works", lambda dtype: said["packs"])
    assert linear_kind(torch.bfloat16) is PackedLinear
    said["native"] = False
    assert linear_kind(torch.bfloat16) is RowLinear and linear_kind(torch.float32) is PackedLinear
    said["packs"] = False   # as on processors with AVX2 alone
    assert linear_kind(torch.bfloat16) is RowLinear and linear_kind(torch.float32) is None
    said["quicker"] = False
    assert linear_kind(torch.bfloat16) is None


@torch.inference_mode()
def test_layers_of_one_model_are_swapped_each_by_its_own_number_type(monkeypatch):
    """A small model in bfloat16 behind an embedding that a float32 target lends it."""
    kinds = {torch.float32: PackedLinear if packing_works(torch.float32) else None, torch.bfloat16: RowLinear, torch.float64: None}
    monkeypatch.setattr(quick_modules, "linear_kind", kinds.__getitem__)
    plain = torch.nn.ModuleList(torch.nn.Linear(64, 32).to(dtype).requires_grad_(False) for dtype in kinds)
    inputs = [torch.randn(3, 64, dtype=dtype) for dtype in kinds]
    wanted = [layer(x) for layer, x in zip(plain, inputs, strict=True)]
    model = quicken(torch.nn.ModuleList([torch.nn.Embedding(4, 64), *plain]))
    for layer, kind, x, expected in zip(model[1:], kinds.values(), inputs, wanted, strict=True):
        assert type(layer) is (kind or torch.nn.Linear)
        torch.testing.assert_close(layer(x), expected, rtol=2e-2, atol=2e-2)


def test_large_models_keep_float32_as_it_is(monkeypatch):
    monkeypatch.setattr(quick_modules, "linear_kind", lambda dtype: RowLinear if dtype == torch.bfloat16 else PackedLinear)
    monkeypatch.setattr(quick_modules, "BOTH_KEPT_BYTES", 64 * 32 * 4 - 1)
    model = quicken(torch.nn.ModuleList(torch.nn.Linear(64, 32).to(dtype).requires_grad_(False) for dtype in (torch.float32, torch.bfloat16)))
    assert [type(layer) for layer in model] == [torch.nn.Linear, RowLinear]


@pytest.mark.parametrize("dtype", [dtype for dtype in (torch.float32, torch.bfloat16) if packing_works(dtype)])
@torch.inference_mode()
def test_packed_weights_can_be_had_back(dtype):
    plain = torch.nn.Linear(96, 200).to(dtype)
    packed = PackedLinear(plain)
    assert torch.equal(packed.weights(), plain.weight)
    packed.plain = None   # as bfloat16 has it
    torch.testing.assert_close(packed.weights(), plain.weight, rtol=0, atol=0)


@pytest.mark.parametrize("ours, theirs", [(1.0, 2.0), (2.0, 1.0)])
@pytest.mark.parametrize("packs", [True, False])
def test_the_trial_is_made_once(monkeypatch, tmp_path, ours, theirs, packs):
    monkeypatch.setenv("BASTION_HOME", str(tmp_path))
    monkeypatch.setattr(linear_kinds, "packing_works", lambda dtype: packs)
    monkeypatch.setattr(linear_kinds, "trial_linears", lambda dtype, kind: [kind])
    asked = []
    monkeypatch.setattr(linear_kinds, "trial_seconds", lambda all_: asked.append(all_) or {kind: ours if kind is RowLinear else theirs for kind in all_})
    for _ in range(2):
        linear_kinds._rows_are_quicker.cache_clear()
        assert linear_kinds._rows_are_quicker() == (ours < theirs)
    linear_kinds._rows_are_quicker.cache_clear()
    other = PackedLinear if packs else None
    assert asked == [{other: (torch.bfloat16, [other]), RowLinear: (torch.bfloat16, [RowLinear])}]


def test_where_our_layers_cannot_run_they_are_not_taken(monkeypatch, tmp_path):
    monkeypatch.setenv("BASTION_HOME", str(tmp_path))

    def fails(contestants):
        raise ValueError("No threading layer could be loaded.")

    monkeypatch.setattr(linear_kinds, "trial_seconds", fails)
    linear_kinds._rows_are_quicker.cache_clear()
    assert not linear_kinds._rows_are_quicker()
    linear_kinds._rows_are_quicker.cache_clear()


def test_a_trial_times_every_kind():
    took = trial_seconds({kind: (torch.bfloat16, trial_linears(torch.bfloat16, kind)) for kind in (None, RowLinear)})
    assert set(took) == {None, RowLinear} and all(0 < seconds < 60 for seconds in took.values())
