"""The DFlash drafter against outputs of the published implementation."""

import json

import pytest
import torch
from safetensors.torch import load_file

from bastion.drafters.dflash import (
    DFlashCache,
    DFlashConfig,
    DFlashDraftModel,
    build_target_layer_ids,
    rotary_inverse_frequencies,
    save_dflash,
)
from tests.golden import golden

TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def parity() -> dict:
    return json.loads(golden("dflash_parity.json").read_text())


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    return load_file(golden("dflash_parity.safetensors"))


@pytest.fixture(scope="module")
def model() -> DFlashDraftModel:
    folder = golden("dflash_tiny_draft")
    model = DFlashDraftModel(DFlashConfig.from_json((folder / "config.json").read_text()))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval()


@torch.no_grad()
@pytest.mark.parametrize("sequence", ["nocache", "cached", "single_token_prompt"])
def test_outputs_and_caches_of_every_call(sequence, parity, tensors, model):
    calls = [call for call in parity["calls"] if call["sequence"] == sequence]
    assert calls
    cache = None
    if sequence != "nocache":
        cache = DFlashCache(model.config, capacity=64, like=model.fc.weight)
    for call in calls:
        at = lambda name, number=call['call']: tensors[f"{sequence}.call{number}.{name}"]  # noqa: E731
        output = model(at("noise_embedding"), at("target_hidden"), at("position_ids"), cache)
        torch.testing.assert_close(output, at("output"), atol=TOLERANCE, rtol=0)
        if cache is None:
            continue
        cache.crop(call["start"])
        for layer in range(model.config.num_hidden_layers):
            for name, buffer in (("keys", cache.keys[layer]), ("values", cache.values[layer])):
                expected = at(f"cache_after_crop.layer{layer}.{name}")
                torch.testing.assert_close(buffer[:, :, : cache.length], expected, atol=TOLERANCE, rtol=0)


def test_default_target_layer_ids(parity):
    for key, expected in parity["build_target_layer_ids(num_target_layers,num_draft_layers)"].items():
        assert build_target_layer_ids(*map(int, key.split(","))) == expected


def test_rotary_inverse_frequencies(parity, model):
    expected = torch.tensor(parity["rotary_inv_freq"], dtype=torch.float32)
    torch.testing.assert_close(rotary_inverse_frequencies(model.config), expected, atol=0, rtol=1e-6)


@torch.no_grad()
def test_a_mask_in_a_batch_equals_each_block_alone(model):
    """Training runs many blocks side by side under a mask; each must see what it sees alone."""
    torch.manual_seed(0)
    size, context = model.config.block_size, 11
    features = torch.randn(2, context, len(model.config.target_layer_ids) * model.config.hidden_size)
    blocks = torch.randn(2, 2 * size, model.config.hidden_size)
    anchors = (4, 9)
    sees = torch.zeros(1, 1, 2 * size, context + 2 * size, dtype=torch.bool)
    positions = [torch.arange(context)]
    for index, anchor in enumerate(anchors):
        rows = slice(index * size, (index + 1) * size)
        sees[..., rows, :anchor] = True
        sees[..., rows, context + index * size : context + (index + 1) * size] = True
        positions.append(torch.arange(anchor, anchor + size))
    together = model(blocks, features, torch.cat(positions)[None], attention_mask=sees)
    for item in range(2):
        for index, anchor in enumerate(anchors):
            rows = slice(index * size, (index + 1) * size)
            alone = model(
                blocks[item : item + 1, rows],
                features[item : item + 1, :anchor],
                torch.arange(anchor + size)[None],
            )
            torch.testing.assert_close(together[item : item + 1, rows], alone, atol=TOLERANCE, rtol=0)


def test_saving_and_reading_back(model, tmp_path):
    save_dflash(model, tmp_path, torch.float32)
    config = DFlashConfig.from_json((tmp_path / "config.json").read_text())
    assert config == model.config
    read = load_file(tmp_path / "model.safetensors")
    published = load_file(golden("dflash_tiny_draft") / "model.safetensors")
    assert read.keys() == published.keys()
    assert all(torch.equal(read[name], published[name]) for name in published)
