"""What only a GPU would show: tensors on two devices in one operator, and how often a step waits for the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bastion import decode
from bastion.decoding.methods import resolve_method
from bastion.drafters.dflash_drafter import DFlashDrafter
from bastion.drafters.eagle3_drafter import Eagle3Drafter
from bastion.models.pair import Pair
from bastion.models.static_forward import static_model
from bastion.models.static_target import StaticTarget
from bastion.models.target import Target
from bastion.models.top_k import choices
from tests.fake_cuda import CUDA, fake_cuda
from tests.tiny_eagle3 import tiny_eagle3_pair
from tests.tiny_pair import tiny_calibration, tiny_pair
from tests.tiny_targets import family_pair

PROMPT = [1, 2, 3, 4, 1, 2]
TOKENS = 14


def pair_on(device: torch.device, static: bool, pair: Pair) -> Pair:
    """`pair` itself, moved."""
    model = pair.target.model.to(device)
    target = StaticTarget(model, "tiny", static_model(model, pair.target._windows), graphs=False) if static else Target(model, "tiny")
    drafter = DFlashDrafter(pair.drafter.model.to(device), target, (1.0,) * 4)
    target.watch(drafter.feature_layer_ids)
    return Pair("tiny", target, None, drafter, frozenset(), drafter_name="tiny-drafter")


def text(pair: Pair, method, **options) -> list[list[int]]:
    return [step.emitted for step in decode(pair, PROMPT, method, max_new_tokens=TOKENS, stop_token_ids=(), **options)]


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("method, waits", [("ar", 1), ("dflash", 2), ("ddtree:6", 2), ("bastion", 2), ("bastion+ngram", 2)])
def test_a_greedy_step_waits_for_its_draft_and_for_its_verification(static, method, waits):
    """No wait beside these two on the way of a step."""
    plain = tiny_pair(vocab=11, block=5, positions=400)
    method = resolve_method(method)
    if method.needs_calibration:
        method = method.calibrated(tiny_calibration(plain))
    expected = text(plain, method)
    with fake_cuda() as device:
        pair = pair_on(CUDA, static, plain)
        run = decode(pair, PROMPT, method, max_new_tokens=TOKENS, stop_token_ids=(), trace=False)
        found = [next(run).emitted]
        device.waits.clear()
        found += [step.emitted for step in run]
    assert found == expected
    steps = len(found) - 1
    assert device.waits.total() == waits * steps, dict(device.waits)


@pytest.mark.parametrize("static", [True, False])
def test_drawing_steps_run_with_all_tensors_on_the_device(static):
    """A draw asks the device node by node, which takes more waits; each is on a node's row alone."""
    plain = tiny_pair(vocab=11, block=5, positions=400)
    expected = text(plain, "ddtree:6", temperature=1.0, top_p=0.9, seed=3)
    with fake_cuda() as device:
        assert text(pair_on(CUDA, static, plain), "ddtree:6", temperature=1.0, top_p=0.9, seed=3) == expected
    assert device.waits


@pytest.mark.parametrize("kind", ["gemma3", "qwen3-sliding", "eagle3"])
def test_other_families_and_drafters_wait_no_more_and_mix_no_devices(kind):
    eagle = kind == "eagle3"
    plain = tiny_eagle3_pair(vocab=11, drafted=7) if eagle else family_pair(kind, torch.float64)
    method, prompt = "eagle3:8" if eagle else "ddtree:6", [*range(1, 10)]
    expected = [step.emitted for step in decode(plain, prompt, method, max_new_tokens=10, stop_token_ids=())]
    with fake_cuda() as device:
        target = Target(plain.target.model.to(CUDA), kind)
        model = plain.drafter.model.to(CUDA)
        drafter = Eagle3Drafter(model, target, plain.drafter.targets) if eagle else DFlashDrafter(model, target, (1.0,) * 4)
        target.watch(drafter.feature_layer_ids)
        run = decode(Pair(kind, target, None, drafter), prompt, method, max_new_tokens=10, stop_token_ids=(), trace=False)
        found = [next(run).emitted]
        device.waits.clear()
        found += [step.emitted for step in run]
    assert found == expected
    assert device.waits.total() == 2 * (len(found) - 1), dict(device.waits)


def test_the_fake_device_finds_what_it_is_for():
    with fake_cuda() as device:
        here, there = torch.ones(3), torch.ones(3, device=CUDA)
        with pytest.raises(RuntimeError, match="same device"):
            here + there
        assert device.waits.total() == 0
        assert (there + 1).sum().item() == 6.0 and there.cpu().tolist() == [1.0] * 3 and int(there[0]) == 1
        assert device.waits.total() == 3


@given(st.sampled_from([11, 96, 256, 640]), st.integers(0, 2**32 - 1))
def test_choices_are_the_lowest_of_the_best_and_their_lead(vocab, seed):
    logits = torch.from_numpy(np.random.default_rng(seed).integers(-3, 4, size=(5, vocab)).astype(np.float32))
    ids, bits = choices(logits).numpy()
    expected = torch.topk(logits, 2).values
    assert ids.tolist() == logits.argmax(dim=-1).tolist()
    assert bits.view(np.float32).tolist() == (expected[:, 0] - expected[:, 1]).tolist()
