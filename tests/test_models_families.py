"""Targets of several families decode what the library's `generate` writes, past their sliding windows too."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from bastion import decode, load_pair
from bastion.decoding import Bastion, BestFirst
from bastion.errors import UserError
from bastion.models.windows import windows_of
from bastion.trees import FixedBudget
from tests.tiny_pair import tiny_calibration
from tests.tiny_targets import COMMON, FAMILIES, TURNS, WINDOW, family_pair, library_model

PROMPT = torch.randint(3, COMMON["vocab_size"], (1, 19), generator=torch.Generator().manual_seed(4))
NEW = 40
SLIDING = [name for name in FAMILIES if name not in ("qwen3", "llama", "mistral-full")]


@cache
def generated(family: str, dtype: torch.dtype) -> list[int]:
    model = library_model(family, dtype)
    ids = model.generate(PROMPT, max_new_tokens=NEW, do_sample=False, eos_token_id=None, pad_token_id=0)
    return ids[0, PROMPT.shape[1] :].tolist()


@cache
def pair_of(family: str, dtype: torch.dtype):
    return family_pair(family, dtype)


def assert_same(found, expected):
    """To the rounding of float32, in which the library norms and weighs even float64 models; the window's absence is seen
    at once (`test_the_window_matters_to_these_models`)."""
    torch.testing.assert_close(found, expected, atol=2e-5 * float(expected.abs().max()), rtol=0)


def emitted(pair, method) -> list[int]:
    return [token for step in decode(pair, PROMPT[0].tolist(), method, max_new_tokens=NEW) for token in step.emitted]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("method", ["ar", "dflash", "ddtree:8", "bastion", "ngram:6"])
def test_ids_are_those_of_generate(family, dtype, method):
    pair = pair_of(family, dtype)
    chosen = Bastion(calibration=tiny_calibration(pair)) if method == "bastion" else method
    assert PROMPT.shape[1] > WINDOW and NEW > 2 * WINDOW
    assert len(set(generated(family, dtype))) > 5, "a text that repeats itself would prove little"
    assert emitted(pair, chosen) == generated(family, dtype)


def with_ids(family, nodes, dtype=torch.float64):
    """The pair, and a tree of `nodes` nodes with its cache, behind the prompt."""
    pair = pair_of(family, dtype)
    cache = pair.target.new_cache(64)
    output = pair.target.prefill(PROMPT[0].tolist(), cache)
    session = pair.drafter.start(64)
    from bastion.trees import DraftMarginals, grow_best_first

    marginals = DraftMarginals(*session.draft(output.features, 5, 8))
    return pair, cache, grow_best_first(marginals, 5, FixedBudget(nodes))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_node_of_a_tree_is_scored_as_its_path_alone(family):
    """Siblings share a position, so a mask by cache row would hide or show the wrong keys."""
    pair, cache, tree = with_ids(family, 24)
    assert tree.depths.max() >= 2 and len(set(tree.depths.tolist())) < tree.nodes - 5
    context = PROMPT.shape[1]
    inputs = pair.target.tree_inputs(tree.token_ids, tree.depths, tree.ancestor_mask(), context)
    logits = pair.target.forward(*inputs, cache).logits
    plain = library_model(family, torch.float64)
    for node in range(tree.nodes):
        path, at = [], node
        while at >= 0:
            path.append(int(tree.token_ids[at]))
            at = int(tree.parents[at])
        ids = torch.cat((PROMPT, torch.tensor([path[::-1]])), dim=1)
        with torch.inference_mode():
            expected = plain(ids, use_cache=False).logits[0, -1]
        assert_same(logits[node], expected)


@pytest.mark.parametrize("family", ["gemma3", "mistral", "qwen3-sliding"])
def test_a_long_prompt_read_in_chunks(family, monkeypatch):
    monkeypatch.setattr("bastion.models.target.PREFILL_CHUNK", 5)
    assert emitted(pair_of(family, torch.float64), "ddtree:8") == generated(family, torch.float64)


@pytest.mark.parametrize("family", SLIDING)
def test_the_window_matters_to_these_models(family):
    """Without it they write something else, so the tests above would see a window that is ignored."""
    pair = family_pair(family, torch.float64)
    pair.target._windows = replace(pair.target._windows, window=1 << 30)
    assert emitted(pair, "ar") != generated(family, torch.float64)


@pytest.mark.parametrize("family", ["gemma3", "qwen3-sliding"])
def test_features_are_the_librarys_hidden_states(family):
    pair = family_pair(family, torch.float64, feature_layers=(-1, 1))
    output = pair.target.prefill(PROMPT[0].tolist(), pair.target.new_cache(32))
    with torch.inference_mode():
        states = library_model(family, torch.float64)(PROMPT, output_hidden_states=True).hidden_states
    assert_same(output.features, torch.cat((states[0], states[2]), -1))


def test_drafters_take_the_embedding_without_gemmas_scaling():
    pair = pair_of("gemma3", torch.float64)
    weight = library_model("gemma3", torch.float64).get_input_embeddings().weight
    assert torch.equal(pair.target.embed(torch.tensor([3, 5])), weight[[3, 5]])


def test_a_gemma_with_eyes_decodes_text(tmp_path):
    """The published Gemma-3 folders hold an image tower beside the language model."""
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    text = COMMON | {"sliding_window": WINDOW, "sliding_window_pattern": 2, "query_pre_attn_scalar": 16}
    eyes = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14,
                vision_use_head=False)
    config = Gemma3Config(text_config=text, vision_config=eyes, mm_tokens_per_image=1, image_token_index=59, boi_token_index=58,
                          eoi_token_index=57, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = Gemma3ForConditionalGeneration(config).double().eval()
        for key, weight in model.named_parameters():
            if "norm" in key:
                weight.data.normal_(6.0 if "post_" in key else 0.0, 0.3)
    prompt = PROMPT.clamp(max=56)
    expected = model.generate(prompt, max_new_tokens=NEW, do_sample=False, eos_token_id=None, pad_token_id=0)[0, 19:].tolist()
    model.save_pretrained(tmp_path)
    pair = load_pair(tmp_path, device="cpu", dtype="float64")
    for method in ("ar", "ngram:6"):
        steps = decode(pair, prompt[0].tolist(), method, max_new_tokens=NEW, stop_token_ids=())
        assert [token for step in steps for token in step.emitted] == expected


@pytest.mark.parametrize(
    "name, fields, words",
    [
        ("Cohere2Config", dict(sliding_window=4, layer_types=TURNS), "sliding_attention"),
        ("GptOssConfig", dict(layer_types=["full_attention"] * 4), "attention sinks"),
        ("MixtralConfig", dict(sliding_window=4), "sliding_attention"),
        ("Qwen3NextConfig", {}, "linear_attention"),
        ("Gemma3TextConfig", dict(use_bidirectional_attention=True), "both directions"),
    ],
)
def test_attention_that_trees_cannot_be_verified_under(name, fields, words):
    import transformers

    config = getattr(transformers, name)(num_hidden_layers=4, **fields)
    with pytest.raises(UserError, match=words) as caught:
        windows_of(config, "the model")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_deep_trees_look_past_their_own_root():
    """A tree deeper than the window: its far nodes no longer see the root."""
    pair = pair_of("mistral", torch.float64)
    tokens = np.arange(5, 5 + 2 * WINDOW)
    depths = np.arange(2 * WINDOW)
    cache = pair.target.new_cache(64)
    pair.target.prefill(PROMPT[0].tolist(), cache)
    allowed = np.tril(np.ones((2 * WINDOW,) * 2, dtype=bool))
    logits = pair.target.forward(*pair.target.tree_inputs(tokens, depths, allowed, PROMPT.shape[1]), cache).logits
    ids = torch.cat((PROMPT, torch.from_numpy(tokens)[None]), dim=1)
    with torch.inference_mode():
        expected = library_model("mistral", torch.float64)(ids, use_cache=False).logits[0, PROMPT.shape[1] :]
    assert_same(logits, expected)


def test_a_fixed_budget_by_object():
    pair = pair_of("gemma3", torch.float64)
    assert emitted(pair, BestFirst(FixedBudget(12))) == generated("gemma3", torch.float64)
