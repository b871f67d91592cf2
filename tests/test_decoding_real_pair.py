"""The default target, whose drafter is the shipped one, or a random one of its shape before it is shipped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from bastion import decode, load_pair
from bastion.decoding.acceptance import accept
from bastion.decoding.sampling import Sampling, SeededDraws
from bastion.models import PRESETS
from bastion.trees import DraftMarginals, FixedBudget, grow_best_first

PROMPTS = [
    "A farmer has 17 sheep and buys 5 more. How many sheep are there now?",
    "Write a Python function that adds two numbers. <|im_end|>",
]
CLOSE = 1e-3
"""Below this top-2 gap, rounding may decide between two tokens."""


@pytest.fixture(scope="module")
def real_pair(default_model, tmp_path_factory):
    drafter = Path(PRESETS["smollm2-135m"].drafter)
    if not (drafter / "model.safetensors").exists():
        drafter = random_drafter(tmp_path_factory.mktemp("drafter"))
    return load_pair(default_model, drafter, device="cpu", dtype="float32")


def random_drafter(folder: Path) -> Path:
    from bastion.drafters.dflash import DFlashConfig, DFlashDraftModel, save_dflash

    config = DFlashConfig(
        hidden_size=576, num_hidden_layers=1, num_attention_heads=9, num_key_value_heads=3, head_dim=64,
        intermediate_size=1536, vocab_size=49152, block_size=8, mask_token_id=4, target_layer_ids=(1, 14, 27),
        num_target_layers=30, rope_theta=100000.0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        save_dflash(DFlashDraftModel(config), folder)
    return folder


@pytest.mark.parametrize("prompt", PROMPTS)
def test_trees_and_paths_emit_the_greedy_ids(real_pair, prompt):
    plain = list(decode(real_pair, prompt, "ar", max_new_tokens=10, trace=False))
    ids = [token for step in plain for token in step.emitted]
    gaps = np.concatenate([step.top2_gaps for step in plain])
    for method in ("dflash", "ddtree:16", "beam:16", "specinfer:3,2,1", "sequoia:16", "ngram:8"):
        steps = list(decode(real_pair, prompt, method, max_new_tokens=10, trace=False))
        found = [token for step in steps for token in step.emitted]
        differs = next((place for place, pair in enumerate(zip(found, ids)) if pair[0] != pair[1]), None)
        if differs is None:
            assert found == ids, method
        else:
            assert gaps[differs] < CLOSE, (method, differs)


def test_sampled_tokens_follow_the_targets_distribution(real_pair):
    """Chi-square over 4000 seeds of one verification: the first token, and the second behind the likeliest first."""
    target, sampling = real_pair.target, Sampling(1.0, 0.95, 12)
    ids = real_pair.tokenizer.encode_prompt("Name a colour.")
    cache = target.new_cache(len(ids) + 16)
    with torch.inference_mode():
        target.prefill(ids, cache)
        root = torch.tensor([ids[-1]])
        cache.truncate(len(ids) - 1)
        after_root = target.forward(root, torch.tensor([len(ids) - 1]), None, cache).logits[0]
        child = int(after_root.argmax())
        cache.truncate(len(ids))
        after_child = target.forward(torch.tensor([child]), torch.tensor([len(ids)]), None, cache).logits[0]
        # a tree of likely tokens, so that the walk goes on as often as it ends
        rows = [after_root.topk(4).indices.numpy(), after_child.topk(4).indices.numpy()]
        marginals = DraftMarginals(np.stack(rows), np.log([[0.4, 0.3, 0.2, 0.1]] * 2))
        tree = grow_best_first(marginals, ids[-1], FixedBudget(12))
        cache.truncate(len(ids) - 1)
        inputs = target.tree_inputs(tree.token_ids, tree.depths, tree.ancestor_mask(), len(ids) - 1)
        logits = target.forward(*inputs, cache).logits
        firsts, seconds = [], []
        for seed in range(4000):
            path, bonus = accept(tree, logits, sampling, SeededDraws(seed))
            emitted = [*tree.token_ids[path[1:]].tolist(), bonus]
            firsts.append(emitted[0])
            if emitted[0] == child and len(emitted) > 1:
                seconds.append(emitted[1])
    assert len(seconds) == firsts.count(child) > 500
    for found, plain in ((firsts, after_root), (seconds, after_child)):
        kept, probabilities = sampling.distribution(plain)
        counts = np.array([found.count(token) for token in kept.tolist()])
        assert counts.sum() == len(found), "a token outside the distribution was emitted"
        expected = probabilities.numpy() * len(found)
        likely = expected >= 5
        observed = np.append(counts[likely], counts[~likely].sum())
        wanted = np.append(expected[likely], expected[~likely].sum())
        observed, wanted = observed[wanted > 0], wanted[wanted > 0]
        chi_square = float(((observed - wanted) ** 2 / wanted).sum())
        degrees = len(wanted) - 1
        # far in the tail (about one in 10,000): mean + 4 deviations; the seeds are fixed
        assert chi_square < degrees + 4 * np.sqrt(2 * max(degrees, 1)) + 4
