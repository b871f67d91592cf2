"""The DFlash drafter: a few transformer layers that fill a whole block in one pass.

A block is the anchor (the last committed token) followed by B - 1 mask tokens. Its positions see
one another without a causal order, and see the context through the target's own hidden features:
features of chosen target layers are concatenated, projected by `fc`, normed by `hidden_norm`, and
every drafter layer turns the result into keys and values. Slot i of the output, through the
target's head, is the distribution of the token at position anchor + i.

Architecture: DFlash (arXiv 2602.06036), in the layout of the published checkpoints: `config.json`
and `model.safetensors`, whose keys are this module's `state_dict`. The module holds neither
embedding nor head; both are the target's, unless a folder brings its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from bastion.drafters.dflash_config import (  # noqa: F401 - the drafter's names, from one place
    DFlashConfig,
    build_target_layer_ids,
    rotary,
    rotary_inverse_frequencies,
)
from bastion.models.attention import grouped_attention, trainable_attention

EVERYTHING = (False, None)
"""The rule of a layer whose block sees all: not causal, no window."""


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate x [b, heads, n, d] by angles [b, 1, n, d]; the halves of d are the pairs."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class DFlashCache:
    """Rotated keys and values of every drafter layer, [batch, kv_heads, capacity, head_dim].

    Allocated once. A pass writes context and block behind the `length` kept rows, and reads a
    view; `crop` rewinds to the context in place. Block rows are scratch after that.
    """

    def __init__(self, config: DFlashConfig, capacity: int, like: torch.Tensor, batch: int = 1):
        shape = (batch, config.num_key_value_heads, capacity, config.head_dim)
        self.keys = [like.new_empty(shape) for _ in range(config.num_hidden_layers)]
        self.values = [like.new_empty(shape) for _ in range(config.num_hidden_layers)]
        self.length = 0

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write n rows behind the kept ones (`length` stays); views over the kept and the new."""
        end = self.length + keys.shape[2]
        self.keys[layer][:, :, self.length : end] = keys
        self.values[layer][:, :, self.length : end] = values
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]

    def crop(self, length: int) -> None:
        """Keep the first `length` rows, which earlier passes have written."""
        self.length = length


class DFlashAttention(nn.Module):
    def __init__(self, config: DFlashConfig):
        super().__init__()
        self.head_dim = config.head_dim
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        bias = config.attention_bias
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=bias)
        normed = (lambda: RMSNorm(config.head_dim, config.rms_norm_eps)) if config.qk_norm else nn.Identity
        self.q_norm, self.k_norm = normed(), normed()

    def forward(self, block, context, cos, sin, mask, cache, layer):
        """block [b, B, h], context [b, c, h], angles [b, 1, c + B, d] -> [b, B, h]."""
        both = torch.cat((context, block), dim=1)
        split = lambda x: x.unflatten(-1, (-1, self.head_dim))  # noqa: E731
        n = block.shape[1]
        q = rotate(self.q_norm(split(self.q_proj(block))).transpose(1, 2), cos[:, :, -n:], sin[:, :, -n:])
        k = rotate(self.k_norm(split(self.k_proj(both))).transpose(1, 2), cos, sin)
        v = split(self.v_proj(both)).transpose(1, 2)
        if cache is not None:
            k, v = cache.append(layer, k, v)
        if self.training:
            mixed = trainable_attention(q, k, v, mask)
        else:
            mixed, _ = grouped_attention(self, q, k, v, mask)
        return self.o_proj(mixed.flatten(2))


class DFlashMLP(nn.Module):
    def __init__(self, config: DFlashConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DFlashLayer(nn.Module):
    def __init__(self, config: DFlashConfig):
        super().__init__()
        self.self_attn = DFlashAttention(config)
        self.mlp = DFlashMLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, block, context, cos, sin, mask, cache, layer):
        block = block + self.self_attn(self.input_layernorm(block), context, cos, sin, mask, cache, layer)
        return block + self.mlp(self.post_attention_layernorm(block))


class DFlashDraftModel(nn.Module):
    """The drafter's layers; `state_dict` keys are those of the published checkpoints."""

    def __init__(self, config: DFlashConfig):
        super().__init__()
        self.config = config
        self.fc = nn.Linear(config.feature_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(DFlashLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        # No buffer: it stays float32 whatever dtype the module is cast to, and real on a meta module.
        self.inverse_frequencies, self.rotary_factor = rotary(config)
        self.attends = [config.attends(index) for index in range(config.num_hidden_layers)]

    def forward(
        self,
        noise_embedding: torch.Tensor,
        context_features: torch.Tensor,
        position_ids: torch.Tensor,
        cache: DFlashCache | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Hidden states of the block, [b, B, h], ready for the target's head.

        noise_embedding [b, B, h]: embedding of the anchor, then of the mask token (in training any
        number of blocks side by side). context_features [b, c, layers * h]: features of context
        positions not yet in the cache. position_ids int64 [b or 1, c + B]: of context, then block.
        attention_mask: bool, broadcast to [b, 1, B, cached + c + B], True where a block position
        may look; None is what decoding wants: each layer's own rule, which lets a layer of full
        attention see everything.
        """
        context = self.hidden_norm(self.fc(context_features))
        if self.inverse_frequencies.device != position_ids.device:
            self.inverse_frequencies = self.inverse_frequencies.to(position_ids.device)
        angles = position_ids[:, None, :, None].float() * self.inverse_frequencies
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos(), angles.sin()
        if self.rotary_factor != 1.0:
            cos, sin = cos * self.rotary_factor, sin * self.rotary_factor
        cos, sin = cos.to(noise_embedding.dtype), sin.to(noise_embedding.dtype)
        block = noise_embedding
        masks = self._own_masks(block.shape[1], position_ids[0], cache) if attention_mask is None else None
        shared = None if attention_mask is None else additive(attention_mask)
        for index, layer in enumerate(self.layers):
            block = layer(block, context, cos, sin, masks[index] if masks else shared, cache, index)
        return self.norm(block)

    def _own_masks(self, n: int, positions: torch.Tensor, cache: DFlashCache | None) -> Sequence[torch.Tensor | None]:
        """Additive masks [1, 1, n, L] of the layers; None where all is visible. positions [c + n]: what is not cached."""
        if all(rule == EVERYTHING for rule in self.attends):
            return [None] * len(self.attends)
        cached = torch.arange(cache.length if cache is not None else 0, device=positions.device)
        keys = torch.cat((cached, positions))
        made = {rule: additive(visible(*rule, self.config.window_from_anchor, positions[-n:], keys)[None, None])
                for rule in set(self.attends) if rule != EVERYTHING}
        return [made.get(rule) for rule in self.attends]


def visible(
    causal: bool, window: int | None, from_anchor: bool, queries: torch.Tensor, keys: torch.Tensor
) -> torch.Tensor:
    """bool [n, L]: which keys each block position sees. queries [n], keys [L]: positions, the anchor's first.

    A window of w hides keys w and more positions back (and, without causal order, ahead): z-lab/dflash,
    `_attention_mask`. from_anchor: it hides context further back than w from the anchor, for the whole
    block: vllm speculators 0.9.0, `dflash/attention.py`.
    """
    back = queries[:, None] - keys[None]
    sees = back >= 0 if causal else torch.ones_like(back, dtype=torch.bool)
    if window is None:
        return sees
    if from_anchor:
        return sees & (keys >= queries[0] - window)
    sees = sees & (back < window)
    return sees if causal else sees & (-back < window)


def additive(sees: torch.Tensor) -> torch.Tensor:
    """float32: 0 where `sees` is true and the lowest number elsewhere."""
    lowest = torch.finfo(torch.float32).min
    return torch.zeros_like(sees, dtype=torch.float32).masked_fill_(~sees, lowest)


def save_dflash(model: DFlashDraftModel, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write `config.json` and `model.safetensors` in the published layout into an existing folder."""
    from safetensors.torch import save_file

    tensors = {name: value.detach().to("cpu", dtype).contiguous() for name, value in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(model.config.to_json() + "\n", encoding="utf-8")
