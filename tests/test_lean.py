"""The lean forward: the library's numbers, and bits that do not depend on the company of a token."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, MistralConfig, Qwen3Config

from bastion.models import lean
from bastion.models.lean import SAME_ROWS
from bastion.models.sameness import keeps_bits, same_bits
from bastion.models.target import causal_mask
from tests.tiny_targets import family_pair, library_model

FAMILIES = ["llama", "qwen3", "qwen3-sliding", "qwen2-sliding", "mistral", "mistral-full"]
SMALL = dict(hidden_size=576, intermediate_size=1536, num_attention_heads=9, num_key_value_heads=3, head_dim=64, vocab_size=2048)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """To the rounding of float32 at the size of these numbers: the outputs of random layers grow to 50, with one of
    1477, and the library itself is as far from its own result in float64."""
    torch.testing.assert_close(found, expected, atol=5e-6 * float(expected.abs().max()), rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_every_layers_output_are_the_librarys(family):
    pair = family_pair(family, torch.float32, feature_layers=(-1, 0, 1, 2, 3))
    assert pair.target.lean
    ids = torch.randint(3, 60, (1, 40), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = library_model(family, torch.float32)(ids, output_hidden_states=True)
    cache = pair.target.new_cache(40)
    read = pair.target.prefill(ids[0, :25].tolist(), cache)
    rest = pair.target.forward(ids[0, 25:], torch.arange(25, 40), causal_mask(15, pair.device), cache)
    close(rest.logits, expected.logits[0, 25:])
    features = torch.cat((read.features, rest.features), dim=1)
    close(features, torch.cat(expected.hidden_states, dim=-1))


@pytest.mark.parametrize("family", ["gemma3", "gemma2"])
def test_other_families_keep_the_librarys_forward(family):
    assert not family_pair(family, torch.float32).target.lean


def test_a_prompt_is_read_alike_in_pieces_and_at_once():
    """A pass of more tokens than SAME_ROWS takes other operators than one of fewer."""
    pair = family_pair("qwen3-sliding", torch.float64)
    ids = torch.randint(3, 60, (SAME_ROWS + 5,), generator=torch.Generator().manual_seed(2))
    whole, parts = pair.target.new_cache(len(ids)), pair.target.new_cache(len(ids))
    pair.target.forward(ids, torch.arange(len(ids)), causal_mask(len(ids), pair.device), whole)
    whole.commit(len(ids))
    for some in torch.arange(len(ids)).split(50):
        pair.target.forward(ids[some], some, causal_mask(len(some), pair.device), parts)
        parts.commit(len(some))
    for one, other in zip(whole.layers, parts.layers, strict=True):
        torch.testing.assert_close(one.keys[:, :, : len(ids)], other.keys[:, :, : len(ids)])
        torch.testing.assert_close(one.values[:, :, : len(ids)], other.values[:, :, : len(ids)])


@pytest.mark.parametrize("config", [
    LlamaConfig(**SMALL),
    Qwen3Config(**SMALL | dict(hidden_size=256, intermediate_size=768, num_attention_heads=4, num_key_value_heads=2, head_dim=128)),
    MistralConfig(**SMALL | dict(num_attention_heads=4, num_key_value_heads=4), sliding_window=24),
], ids=["llama", "qwen3", "mistral"])
def test_a_tree_has_the_bits_of_plain_decoding_in_bfloat16(config):
    """Where oneDNN has bfloat16; elsewhere nothing is promised, and `keeps_bits` says so."""
    if torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        assert keeps_bits(config)


def test_the_trial_sees_a_forward_that_does_not_keep_them(monkeypatch):
    """Matmuls that add a little for every row of company: float32 shows it in the last bits."""
    pair = family_pair("llama", torch.float32)
    heard = lean.mlp_end
    monkeypatch.setattr(lean, "mlp_end", lambda layer, normed, x: heard(layer, normed, x) * (1 + 1e-6 * len(x)))
    assert not same_bits(pair.target, 20, 16)
