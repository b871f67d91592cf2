"""The target over trees, and the cache that commits in place."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bastion.decoding.loop import _Decoding
from bastion.models.attention import register
from bastion.models.linear_kinds import linear_kind
from bastion.models.packed_linear import packing_works
from bastion.models.quick_layer import QuickLayer
from bastion.models.quick_modules import FusedRMSNorm, quicken
from bastion.models.target import Target, causal_mask
from bastion.trees import DraftMarginals, FixedBudget, grow_best_first
from tests.tiny_pair import tiny_pair

PAIR = tiny_pair(vocab=11, block=5, positions=256)


def fresh_prefill(ids):
    """Features, and every layer's keys and values, of a plain causal pass over `ids`."""
    cache = PAIR.target.new_cache(len(ids))
    output = PAIR.target.prefill(ids, cache)
    return output, cache


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(0, 10), min_size=1, max_size=30),
    st.integers(1, 24),
    st.integers(0, 2**32 - 1),
)
def test_committing_any_path_of_any_tree_equals_a_fresh_prefill(prompt, nodes, seed):
    random = np.random.default_rng(seed)
    scores = np.sort(random.normal(size=(4, 11)))[:, ::-1]
    log_probs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    ids = np.stack([random.permutation(11) for _ in range(4)])
    tree = grow_best_first(DraftMarginals(ids, log_probs), int(random.integers(11)), FixedBudget(nodes))
    target = PAIR.target
    cache = target.new_cache(len(prompt) + tree.nodes)
    target.prefill(prompt, cache)
    inputs = target.tree_inputs(tree.token_ids, tree.depths, tree.ancestor_mask(), cache.length)
    output = target.forward(*inputs, cache)
    path = tree.path(int(random.integers(tree.nodes)))
    cache.commit(torch.from_numpy(path))
    whole = [*prompt, *tree.token_ids[path].tolist()]
    expected, fresh = fresh_prefill(whole)
    assert cache.length == fresh.length == len(whole)
    for ours, theirs in zip(cache.layers, fresh.layers, strict=True):
        for name in ("keys", "values"):
            left, right = (getattr(layer, name)[:, :, : len(whole)] for layer in (ours, theirs))
            torch.testing.assert_close(left, right, atol=1e-9, rtol=0)
    # logits and features at the accepted nodes are those of the plain sequence, too
    torch.testing.assert_close(output.logits[path[-1]], expected.logits[0], atol=1e-9, rtol=0)
    torch.testing.assert_close(output.features[0, path], expected.features[0, len(prompt) :], atol=1e-9, rtol=0)


def test_after_every_step_the_cache_is_that_of_the_committed_tokens():
    prompt = [1, 2, 3, 4]
    from bastion.decoding.methods import resolve_method
    from bastion.decoding.rules import resolve_rule
    from bastion.decoding.sampling import Sampling, SeededDraws

    method, sampling = resolve_method("ddtree:9"), Sampling(1.0)
    decoding = _Decoding(PAIR, prompt, method, resolve_rule("walk", method, sampling), sampling, 30, frozenset(), SeededDraws(1), False, None)
    ids = list(prompt)
    buffers = None
    for step in decoding.records():
        ids += step.emitted
        if decoding.finished:
            break
        committed = ids[: decoding.cache.length]
        assert len(committed) == len(ids) - 1  # all but the root of the next step
        expected, fresh = fresh_prefill(committed)
        for ours, theirs in zip(decoding.cache.layers, fresh.layers, strict=True):
            torch.testing.assert_close(ours.keys[:, :, : len(committed)], theirs.keys, atol=1e-9, rtol=0)
        count = decoding.features.shape[1]
        torch.testing.assert_close(decoding.features[0], expected.features[0, -count:], atol=1e-9, rtol=0)
        where = [layer.keys.data_ptr() for layer in decoding.cache.layers]
        assert buffers in (None, where), "a buffer was allocated anew"
        buffers = where


def test_a_prompt_longer_than_one_chunk_reads_as_one_pass(monkeypatch):
    ids = np.random.default_rng(0).integers(11, size=50).tolist()
    whole, _ = fresh_prefill(ids)
    monkeypatch.setattr("bastion.models.target.PREFILL_CHUNK", 16)
    chunked, cache = fresh_prefill(ids)
    assert cache.length == 50
    torch.testing.assert_close(chunked.logits, whole.logits, atol=1e-9, rtol=0)
    torch.testing.assert_close(chunked.features, whole.features, atol=1e-9, rtol=0)


@pytest.mark.parametrize("kind", ["Llama", "Mistral", "Qwen2", "Qwen3", "Granite"])
def test_quick_layers_compute_what_the_librarys_do(kind):
    """Logits, features and a tree step against the library's own forward; Granite's layers stay its own."""
    import transformers

    options = dict(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=64, tie_word_embeddings=False,
        initializer_range=0.3, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )
    if kind == "Llama":
        options |= {"attention_bias": True, "mlp_bias": False}
    config = getattr(transformers, f"{kind}Config")(**options)
    torch.manual_seed(0)
    plain = getattr(transformers, f"{kind}ForCausalLM")(config).eval().requires_grad_(False)
    for name, parameter in plain.named_parameters():
        if "norm" in name or "bias" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    with torch.inference_mode():
        expected = plain(torch.tensor([ids]), output_hidden_states=True)
    model = copy.deepcopy(plain)
    model.set_attn_implementation(register())
    target = Target(quicken(model), kind)
    assert any(isinstance(module, QuickLayer) for module in model.modules()) == (kind != "Granite")
    for layers in ((0, 2), (1,), (2, 0, 1)):
        target.watch(layers)
        cache = target.new_cache(16)
        output = target.prefill(ids[:5], cache)
        more = target.forward(torch.tensor(ids[5:]), torch.arange(5, 8), causal_mask(3, target.device), cache)
        torch.testing.assert_close(output.logits, expected.logits[0, 4:5], atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(more.logits, expected.logits[0, 5:], atol=2e-5, rtol=1e-4)
        features = torch.cat((output.features, more.features), dim=1)
        wanted = torch.cat([expected.hidden_states[layer + 1] for layer in layers], dim=-1)
        torch.testing.assert_close(features, wanted, atol=2e-5, rtol=1e-4)
    target.watch(())
    assert target.prefill(ids, target.new_cache(8)).features is None


def test_a_models_own_norm_and_the_quick_one_agree():
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    norm = LlamaRMSNorm(32, eps=1e-5)
    torch.nn.init.uniform_(norm.weight)
    x = torch.randn(2, 3, 32)
    torch.testing.assert_close(FusedRMSNorm(norm)(x), norm(x))


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 2e-2), (torch.float32, 1e-5)])
def test_packed_layers_agree_with_plain_ones(dtype, tolerance):
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.SiLU(), torch.nn.Linear(96, 32, bias=False))
    model = model.to(dtype).requires_grad_(False)
    x = torch.randn(1, 40, 64).to(dtype)
    with torch.inference_mode():
        expected = model(x)
        quick = quicken(model)
        for n in (1, 2, 3, 8, 40):
            torch.testing.assert_close(quick(x[:, :n]), expected[:, :n], atol=tolerance, rtol=tolerance)
    assert type(quick[0]) is (linear_kind(dtype) or torch.nn.Linear)
    assert not packing_works(torch.float64)
