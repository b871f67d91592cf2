"""Pairs for the GPU check: the shape of Qwen3-8B with random weights made on the device, and tiny ones."""

from __future__ import annotations

import torch
from torch import nn

from bastion.drafters.dflash import DFlashConfig, DFlashDraftModel, build_target_layer_ids
from bastion.drafters.dflash_drafter import DFlashDrafter
from bastion.models.attention import register
from bastion.models.pair import Pair
from bastion.models.quick_modules import quicken
from bastion.models.static_forward import static_model
from bastion.models.static_target import PADDED, StaticTarget
from bastion.models.target import Target

QWEN3_8B = dict(vocab_size=151_936, hidden_size=4096, intermediate_size=12_288, num_hidden_layers=36, num_attention_heads=32,
                num_key_value_heads=8, head_dim=128)
TINY = dict(vocab_size=1024, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
            head_dim=16)
DRAFT_LAYERS, BLOCK = 5, 16
DRAFTERS = {"Qwen/Qwen3-8B": "z-lab/Qwen3-8B-DFlash-b16"}
"""Whose shape the random drafter has: a calibration measured with it serves the pair of that name, being the same work."""


def random_pair(shape: dict, device: torch.device, dtype: torch.dtype, name: str, positions: int = 8192, spread: float = 0.02) -> Pair:
    """A Qwen3 target of that shape beside a DFlash drafter of its width: DRAFT_LAYERS layers, blocks of BLOCK. Plain, not static."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(**shape, max_position_embeddings=positions, tie_word_embeddings=False, initializer_range=spread,
                         bos_token_id=None, eos_token_id=None, pad_token_id=None, attn_implementation=register(), dtype=dtype)
    draft = DFlashConfig(
        hidden_size=shape["hidden_size"], num_hidden_layers=min(DRAFT_LAYERS, shape["num_hidden_layers"] - 2),
        num_attention_heads=shape["num_attention_heads"], num_key_value_heads=shape["num_key_value_heads"], head_dim=shape["head_dim"],
        intermediate_size=shape["intermediate_size"], vocab_size=shape["vocab_size"], block_size=BLOCK, mask_token_id=0,
        target_layer_ids=tuple(build_target_layer_ids(shape["num_hidden_layers"], min(DRAFT_LAYERS, shape["num_hidden_layers"] - 2))),
        num_target_layers=shape["num_hidden_layers"],
    )
    with torch.device("meta"):
        model, drafter = Qwen3ForCausalLM(config).to(dtype), DFlashDraftModel(draft).to(dtype)
    torch.manual_seed(0)
    for made in (model, drafter):
        made.to_empty(device=device).eval().requires_grad_(False)
        for key, weight in made.named_parameters():
            weight.fill_(1.0) if "norm" in key else weight.normal_(0.0, spread)
    # what is no parameter was left empty too: the angles are made anew
    model.model.rotary_emb = type(model.model.rotary_emb)(config).to(device)
    target = Target(quicken(model), name)
    return with_drafter(target, drafter)


def with_drafter(target: Target, drafter: nn.Module) -> Pair:
    made = DFlashDrafter(drafter, target, (1.0,) * drafter.config.depth)
    target.watch(made.feature_layer_ids)
    return Pair(target.name, target, None, made, frozenset(), drafter_name=DRAFTERS.get(target.name, "random"), attention=PADDED if target.padded else "bastion")


def in_fixed_shapes(pair: Pair, graphs: bool) -> Pair:
    """The same weights under a static target, with or without graphs."""
    parts = static_model(pair.target.model, pair.target._windows)
    return with_drafter(StaticTarget(pair.target.model, pair.target.name, parts, graphs), pair.drafter.model)
