"""DFlash drafting in fixed shapes: the same arithmetic as `DFlashDraftModel.forward`, for a graph to capture.

Accepted tokens of one step are few, so they are padded to one size; the first pass, which reads the
prompt, has its own shape and runs operator by operator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from bastion.drafters.dflash import rotate, visible
from bastion.models.cuda_graphs import Work
from bastion.models.static_cache import CacheShape, StorePool, span_of
from bastion.models.static_forward import attend
from bastion.models.static_target import StaticTarget
from bastion.models.top_k import top_k_log_probs

if TYPE_CHECKING:
    from bastion.drafters.dflash_drafter import DFlashDrafter

CONTEXTS = (16, 32)
"""Sizes that new context tokens are padded to; more than the last run in their own shape."""
NUMBERS = 3
"""Integers that a pass is told: kept rows, new context tokens, the root's id."""


@dataclass(eq=False)
class Inputs:
    """Tensors that stay. numbers int64 [3]; features [1, c, layers * hidden], rows past the real ones left as they were."""

    numbers: torch.Tensor
    features: torch.Tensor


class StaticDFlashSession:
    """As `DFlashSession`, beside a `StaticTarget`, whose graphs it shares."""

    def __init__(self, drafter: DFlashDrafter, capacity: int):
        self.drafter = drafter
        self.cache = drafter.stores.cache(capacity + drafter.model.config.block_size)
        self._host = torch.zeros(NUMBERS, dtype=torch.int64, pin_memory=drafter.target.device.type == "cuda")

    @torch.inference_mode()
    def draft(self, features: torch.Tensor, root: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        """As `DFlashSession.draft`; one copy to the device and one back."""
        drafter, cache, count = self.drafter, self.cache, features.shape[1]
        block = drafter.model.config.block_size
        cache.make_room(cache.length + count + block)
        self._host.numpy()[:] = cache.length, count, root
        padded = next((size for size in CONTEXTS if size >= count), None)
        if padded is None:
            numbers = self._host.to(drafter.target.device, non_blocking=True)
            found = run(drafter, cache.store, numbers, features.to(drafter.dtype), cache.length + count + block, k)
        else:
            inputs, work = self._work(padded, min(span_of(cache.length + count + block), cache.capacity), k, features)
            inputs.numbers.copy_(self._host, non_blocking=True)
            inputs.features[:, :count].copy_(features)
            found = drafter.target.works.do(work)
        cache.truncate(cache.length + count)
        ids, bits = found.cpu().numpy()
        return ids.astype(np.int64) if drafter.target_ids is None else drafter.target_ids[ids], bits.view(np.float32)

    def _work(self, padded: int, span: int, k: int, like: torch.Tensor) -> tuple[Inputs, Work]:
        works, drafter, store = self.cache.store.works, self.drafter, self.cache.store
        if (padded, span, k) not in works:
            inputs = works.get(padded)
            if inputs is None:
                device = drafter.target.device
                inputs = works[padded] = Inputs(
                    torch.zeros(NUMBERS, dtype=torch.int64, device=device),
                    torch.zeros(1, padded, like.shape[2], dtype=drafter.dtype, device=device),
                )
            # with the numbers as they are, doing it again writes what is there already
            works[padded, span, k] = Work(
                f"a draft of {k} tokens a depth over {span} rows",
                lambda: run(drafter, store, inputs.numbers, inputs.features, span, k), lambda: None,
            )
        return works[padded], works[padded, span, k]


def static_session(drafter: DFlashDrafter, capacity: int) -> StaticDFlashSession | None:
    """A session for a drafter beside a target of fixed shapes; None beside any other."""
    if not isinstance(drafter.target, StaticTarget):
        return None
    if drafter.stores is None:
        config = drafter.model.config
        drafter.stores = StorePool(CacheShape(
            config.num_hidden_layers, config.num_key_value_heads, config.head_dim, drafter.dtype, drafter.target.device))
    return StaticDFlashSession(drafter, capacity)


def run(drafter: DFlashDrafter, store, numbers: torch.Tensor, features: torch.Tensor, span: int, k: int) -> torch.Tensor:
    """int32 [2, depth, k]: drafted ids, and the bits of their float32 log-probs, so that one copy brings both.

    numbers int64 [3]: kept rows, real rows of features [1, c, layers * hidden], the root. Keys of the real rows and of
    the block are written behind the kept ones; those of the others to the spare row.
    """
    model, config = drafter.model, drafter.model.config
    kept, count, root = numbers.split(1)
    rows, block_size = features.shape[1], config.block_size
    numbered = torch.arange(rows, device=numbers.device)
    block_positions = kept + count + torch.arange(block_size, device=numbers.device)
    real = numbered < count
    places = torch.cat((torch.where(real, kept + numbered, store.spare), block_positions))
    positions = torch.cat((torch.where(real, kept + numbered, 0), block_positions))
    context = model.hidden_norm(model.fc(features))
    block = torch.cat((drafter.embed(root), drafter.mask_embeddings))[None]
    cos, sin = _angles(model, positions, block.dtype)
    masks = _masks(config, model.attends, block_positions, span, block.dtype)
    for index, layer in enumerate(model.layers):
        normed = layer.input_layernorm(block)
        block = block + _attention(layer.self_attn, context, normed, cos, sin, store.buffer[index], places, span, masks[model.attends[index]])
        block = block + layer.mlp(layer.post_attention_layernorm(block))
    hidden = model.norm(block)[0, -drafter.depth :]
    log_probs, ids = top_k_log_probs(drafter.logits(hidden), k, drafter.temperatures)
    return torch.stack((ids.int(), log_probs.view(torch.int32)))


def _angles(model, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """[1, 1, rows, head_dim], as the model's own forward makes them."""
    if model.inverse_frequencies.device != positions.device:
        model.inverse_frequencies = model.inverse_frequencies.to(positions.device)
    angles = positions[None, None, :, None].float() * model.inverse_frequencies
    angles = torch.cat((angles, angles), dim=-1)
    return (angles.cos() * model.rotary_factor).to(dtype), (angles.sin() * model.rotary_factor).to(dtype)


def _masks(config, rules, block_positions: torch.Tensor, span: int, dtype: torch.dtype) -> dict:
    """[group * B, span] for each rule of the layers; row j of the cache stands at position j."""
    keys = torch.arange(span, device=block_positions.device)
    written = keys <= block_positions[-1:]
    group = config.num_attention_heads // config.num_key_value_heads
    lowest = torch.finfo(dtype).min
    made = {}
    for rule in set(rules):
        sees = visible(*rule, config.window_from_anchor, block_positions, keys) & written
        made[rule] = torch.zeros(sees.shape, dtype=dtype, device=keys.device).masked_fill_(~sees, lowest).repeat(group, 1)
    return made


def _attention(attention, context, block, cos, sin, buffer, places, span: int, mask) -> torch.Tensor:
    """[1, B, hidden]; buffer [2, kv_heads, rows, head_dim] takes the keys and values of context and block."""
    both, n = torch.cat((context, block), dim=1), block.shape[1]
    split = lambda x: x.unflatten(-1, (-1, attention.head_dim))  # noqa: E731
    query = rotate(attention.q_norm(split(attention.q_proj(block))).transpose(1, 2), cos[:, :, -n:], sin[:, :, -n:])
    keys = rotate(attention.k_norm(split(attention.k_proj(both))).transpose(1, 2), cos, sin)
    buffer[0].index_copy_(1, places, keys[0])
    buffer[1].index_copy_(1, places, split(attention.v_proj(both))[0].transpose(0, 1))
    mixed = attend(query[0], buffer[0, :, :span], buffer[1, :, :span], mask, fused=False)
    return attention.o_proj(mixed.transpose(0, 1).reshape(1, n, -1))
