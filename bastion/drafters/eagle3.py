"""The EAGLE-3 head: one or a few transformer layers that guess the next token from the target's features.

Row t takes the target's features of token t, from three of its layers, fused by `fc`, beside the
embedding of token t + 1, and guesses token t + 2. Where the target has not been yet, the head's own
output stands in for the features, so a whole tree can be drafted, a level a pass. It may have an
output vocabulary of its own, smaller than the target's.

Architecture: EAGLE-3 (arXiv 2503.01840) as SafeAILab/EAGLE cb7e084 (`eagle/model/cnets.py`) and vLLM's
speculators 0.9.0 (`models/eagle3`) compute it. Keys of `state_dict` are those of the speculators layout.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn
from torch.nn import functional as F

from bastion.drafters.dflash import RMSNorm, rotary_inverse_frequencies, rotate
from bastion.drafters.eagle3_config import Eagle3Config
from bastion.models.attention import grouped_attention, trainable_attention
from bastion.models.cache import KVCache

Masks = dict[int | None, torch.Tensor | None]
"""By window: additive masks [1, 1, n, w] over the newest w keys, None where all is visible."""


class Rows(Protocol):
    """Where the keys and values of earlier rows are: a KVCache, or what training keeps of them."""

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Take in the rows of a pass; returns all that its queries attend to, [b, key heads, w, head size] each."""


class Eagle3Attention(nn.Module):
    def __init__(self, config: Eagle3Config, index: int):
        super().__init__()
        self.index, self.head_dim, self.window = index, config.head_dim, config.windows[index]
        queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        width, bias = config.hidden_size * (2 if index == 0 else 1), config.attention_bias
        self.q_proj = nn.Linear(width, queries, bias=bias)
        self.k_proj = nn.Linear(width, keys, bias=bias)
        self.v_proj = nn.Linear(width, keys, bias=bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=bias)
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
            self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.qk_norm = config.qk_norm

    def keys_values(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What rows x [b, n, width] are attended by: [b, key heads, n, head size] each, keys turned to their positions."""
        k = self.k_proj(x).unflatten(-1, (-1, self.head_dim))
        v = self.v_proj(x).unflatten(-1, (-1, self.head_dim))
        if self.qk_norm:
            k = self.k_norm(k)
        return rotate(k.transpose(1, 2), cos, sin), v.transpose(1, 2)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, masks: Masks, cache: Rows) -> torch.Tensor:
        q = self.q_proj(x).unflatten(-1, (-1, self.head_dim))
        if self.qk_norm:
            q = self.q_norm(q)
        k, v = cache.update(*self.keys_values(x, cos, sin), self.index)
        q = rotate(q.transpose(1, 2), cos, sin)
        if self.training:
            mixed = trainable_attention(q, k, v, masks[self.window])
        else:
            mixed, _ = grouped_attention(self, q, k, v, masks[self.window])
        return self.o_proj(mixed.flatten(2))


class Eagle3MLP(nn.Module):
    def __init__(self, config: Eagle3Config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Eagle3Layer(nn.Module):
    """The first layer attends over the embedding and the hidden side by side, the embedding first."""

    def __init__(self, config: Eagle3Config, index: int):
        super().__init__()
        self.self_attn = Eagle3Attention(config, index)
        self.mlp = Eagle3MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        if index == 0:
            self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.first, self.norm_before_residual = index == 0, config.norm_before_residual

    def beside(self, hidden: torch.Tensor, embedding: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the first layer: what goes into attention, and the residual."""
        normed = self.hidden_norm(hidden)
        mixed = torch.cat((self.input_layernorm(embedding), normed), dim=-1)
        return mixed, normed if self.norm_before_residual else hidden

    def forward(self, hidden, embedding, cos, sin, masks: Masks, cache: Rows) -> torch.Tensor:
        mixed, hidden = self.beside(hidden, embedding) if self.first else (self.input_layernorm(hidden), hidden)
        hidden = hidden + self.self_attn(mixed, cos, sin, masks, cache)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Eagle3Model(nn.Module):
    """The head's layers and its output head. The embedding is the caller's: often it is the target's."""

    def __init__(self, config: Eagle3Config):
        super().__init__()
        self.config = config
        eps, read = config.rms_norm_eps, config.features
        if config.norm_before_fc:
            self.input_norm = RMSNorm(read * config.target_hidden_size, eps)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(RMSNorm(config.target_hidden_size, eps) for _ in range(read))
        self.fc = nn.Linear(read * config.target_hidden_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList(Eagle3Layer(config, index) for index in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        # No buffer: it stays float32 whatever dtype the module is cast to, and real on a meta module.
        self.inverse_frequencies = rotary_inverse_frequencies(config)

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """features [b, n, layers * target hidden] -> [b, n, hidden], what stands in a row's hidden place."""
        if self.config.norm_before_fc:
            features = self.input_norm(features)
        if self.config.fc_norm:
            parts = features.split(self.config.target_hidden_size, dim=-1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return self.fc(features)

    def forward(self, hidden: torch.Tensor, embedding: torch.Tensor, positions: torch.Tensor, cache: KVCache,
                visible: torch.Tensor | None = None, newest: torch.Tensor | None = None,
                anchors: torch.Tensor | None = None) -> torch.Tensor:
        """[b, n, hidden] of the last layer, before the final norm; the rows' keys and values are scratch in the cache.

        hidden, embedding: [b, n, hidden]. positions int64 [n]. visible bool [n, w]: whether a row may look at
        each of the newest w keys, its own included; None when it may at all. Older keys are visible, and
        the key in cache row r among them stands at position r. newest int64 [w]: positions of the newest
        keys, the rows' own by default; anchors int64 [n]: positions from which a layer's window is counted back.
        Both matter to layers with a window only. For drafted rows the anchor is the last one with the target's
        features, as speculators trains them: what was drafted since takes nothing from the window.
        """
        cos, sin = self.turns(positions[None], hidden.dtype)
        newest = positions if newest is None else newest
        older = cache.length + len(positions) - len(newest)
        anchors = positions if anchors is None else anchors
        masks = {window: _mask(visible, anchors, newest, older, window) for window in set(self.config.windows)}
        for layer in self.layers:
            hidden = layer(hidden, embedding, cos, sin, masks, cache)
        return hidden

    def turns(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotary cosines and sines [b, 1, n, head size] of positions int64 [b, n]."""
        if self.inverse_frequencies.device != positions.device:
            self.inverse_frequencies = self.inverse_frequencies.to(positions.device)
        angles = positions[:, None, :, None].float() * self.inverse_frequencies
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def carried(self, hidden: torch.Tensor) -> torch.Tensor:
        """What the next position takes in place of features it does not have."""
        return self.norm(hidden) if self.config.norm_output else hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., draft vocabulary] behind the last layer's output."""
        return self.lm_head(self.norm(hidden))


def _mask(visible: torch.Tensor | None, anchors: torch.Tensor, newest: torch.Tensor, older: int,
          window: int | None) -> torch.Tensor | None:
    """Additive float32 [1, 1, n, w], or of full width for a layer that sees `window` positions only."""
    if window is not None:
        near = torch.cat((torch.arange(older, device=anchors.device), newest)) > anchors[:, None] - window
        if visible is not None:
            near[:, older:] &= visible
        visible = near
    if visible is None:
        return None
    return torch.where(visible, 0.0, torch.finfo(torch.float32).min)[None, None]
