"""Whether the lean forward keeps its promise on this machine: bits that do not depend on the tokens around.

It rests on how oneDNN happens to add up, which no document promises, so it is tried: on a model of one
layer with random weights and the widths of the model asked about.
"""

from __future__ import annotations

import copy
import json
from functools import cache
from typing import Any

import numpy as np
import torch

from bastion.models.target import Target

CONTEXTS = (20, 250)
"""The second is where keys begin a new block of those that are worked out together."""
SIZES = (3, 16, 40)
WIDEST_HEAD = 65536
"""Rows of the head that are tried."""


def keeps_bits(config: Any, dtype: torch.dtype = torch.bfloat16) -> bool:
    """Whether a tree's rows and plain decoding's have the same bits, for a library config on this CPU.

    False for a family that the lean forward does not compute.
    """
    text = copy.deepcopy(config.get_text_config())
    text.num_hidden_layers = 1
    text.vocab_size = min(text.vocab_size, WIDEST_HEAD)
    text.tie_word_embeddings = True
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:1]
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(text, name, None)
    return _tried(type(text), json.dumps(text.to_dict(), sort_keys=True, default=str), dtype, torch.get_num_threads())


@cache
def _tried(kind: type, fields: str, dtype: torch.dtype, threads: int) -> bool:
    from transformers import AutoModelForCausalLM

    from bastion.models.attention import register
    from bastion.models.quick_modules import quicken

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(kind(**json.loads(fields)), dtype=dtype, attn_implementation=register())
        target = Target(quicken(model.eval().requires_grad_(False)), "sameness")
    return target.lean and all(same_bits(target, context, nodes) for context in CONTEXTS for nodes in SIZES)


def same_bits(target: Target, context: int, nodes: int, seed: int = 0) -> bool:
    """Whether the path to the last node of a random tree, decoded token by token, gives the tree's own logits,
    keys and values, bit for bit."""
    random = np.random.default_rng([seed, context, nodes])
    tokens = random.integers(target.vocab_size, size=nodes)
    parents = np.array([-1, *(int(random.integers(max(0, i - 6), i)) for i in range(1, nodes))])
    depths, allowed = np.zeros(nodes, dtype=np.int64), np.eye(nodes, dtype=bool)
    for node in range(1, nodes):
        depths[node] = depths[parents[node]] + 1
        allowed[node] |= allowed[parents[node]]
    cache = target.new_cache(context + nodes)
    target.prefill(random.integers(target.vocab_size, size=context).tolist(), cache)
    tree = target.forward(*target.tree_inputs(tokens, depths, allowed, context), cache)
    path = np.flatnonzero(allowed[-1])
    cache.commit(torch.from_numpy(path))
    kept = [(layer.keys[:, :, : cache.length].clone(), layer.values[:, :, : cache.length].clone()) for layer in cache.layers]
    cache.truncate(context)
    for node in path:
        alone = target.forward(torch.tensor([tokens[node]]), torch.tensor([cache.length]), None, cache)
        if not torch.equal(alone.logits[0], tree.logits[node]):
            return False
        cache.commit(1)
    return all(
        torch.equal(layer.keys[:, :, : cache.length], keys) and torch.equal(layer.values[:, :, : cache.length], values)
        for layer, (keys, values) in zip(cache.layers, kept, strict=True)
    )
