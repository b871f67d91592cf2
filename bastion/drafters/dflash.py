"""The DFlash drafter: a few transformer layers that fill a whole block in one pass.

A block is the anchor (the last committed token) followed by B - 1 mask tokens. Its positions see
one another without a causal order, and see the context through the target's own hidden features:
features of chosen target layers are concatenated, projected by `fc`, normed by `hidden_norm`, and
every drafter layer turns the result into keys and values. Slot i of the output, through the
target's head, is the distribution of the token at position anchor + i.

Architecture: DFlash (arXiv 2602.06036), in the layout of the published checkpoints: `config.json`
and `model.safetensors`, whose keys are this module's `state_dict`. The module holds neither
embedding nor head; both are the target's.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from bastion.errors import UserError
from bastion.models.attention import grouped_attention, trainable_attention


@dataclass(frozen=True)
class DFlashConfig:
    """The shape of a drafter. `from_json` reads the published `config.json`, `to_json` writes it.

    `target_layer_ids` counts the target's layers from 0; the feature is the *output* of that
    layer, which Hugging Face calls `hidden_states[id + 1]`.
    """

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: dict | None = None
    attention_bias: bool = False
    max_position_embeddings: int = 32768

    @classmethod
    def from_json(cls, text: str) -> DFlashConfig:
        """Read a `config.json`; UserError when it is not a DFlash drafter this module can run."""
        try:
            raw = json.loads(text)
            dflash = raw.get("dflash_config") or {}
            rope = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
            theta = rope.pop("rope_theta", None) or raw.get("rope_theta") or 10000.0
            scaled = rope.get("rope_type", rope.get("type", "default")) != "default"
            heads = int(raw["num_attention_heads"])
            config = cls(
                hidden_size=int(raw["hidden_size"]),
                num_hidden_layers=int(raw["num_hidden_layers"]),
                num_attention_heads=heads,
                num_key_value_heads=int(raw.get("num_key_value_heads") or heads),
                head_dim=int(raw.get("head_dim") or raw["hidden_size"] // heads),
                intermediate_size=int(raw["intermediate_size"]),
                vocab_size=int(raw["vocab_size"]),
                block_size=int(raw.get("block_size") or dflash["block_size"]),
                mask_token_id=int(dflash["mask_token_id"]),
                target_layer_ids=tuple(int(i) for i in dflash["target_layer_ids"]),
                num_target_layers=int(raw["num_target_layers"]),
                rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
                rope_theta=float(theta),
                rope_scaling=rope if scaled else None,
                attention_bias=bool(raw.get("attention_bias", False)),
                max_position_embeddings=int(raw.get("max_position_embeddings", 32768)),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"This config.json does not describe a DFlash drafter ({error!r}); "
                "give a folder in the published DFlash layout."
            ) from None
        if raw.get("hidden_act", "silu") != "silu":
            raise UserError(f"The drafter uses the activation {raw['hidden_act']!r}; only silu is supported.")
        layer_types = set(raw.get("layer_types") or ["full_attention"])
        if layer_types != {"full_attention"}:
            raise UserError(f"The drafter has layers of type {sorted(layer_types)}; only full attention is supported.")
        if config.block_size < 2:
            raise UserError("The drafter's block_size is below 2, so it can draft nothing; give another drafter.")
        return config

    def to_json(self) -> str:
        """The published `config.json`: `from_json(c.to_json()) == c`, and public loaders read it."""
        return json.dumps(
            {
                "architectures": ["DFlashDraftModel"],
                "model_type": "qwen3",
                "attention_bias": self.attention_bias,
                "attention_dropout": 0.0,
                "block_size": self.block_size,
                "dflash_config": {
                    "mask_token_id": self.mask_token_id,
                    "target_layer_ids": list(self.target_layer_ids),
                },
                "head_dim": self.head_dim,
                "hidden_act": "silu",
                "hidden_size": self.hidden_size,
                "initializer_range": 0.02,
                "intermediate_size": self.intermediate_size,
                "layer_types": ["full_attention"] * self.num_hidden_layers,
                "max_position_embeddings": self.max_position_embeddings,
                "num_attention_heads": self.num_attention_heads,
                "num_hidden_layers": self.num_hidden_layers,
                "num_key_value_heads": self.num_key_value_heads,
                "num_target_layers": self.num_target_layers,
                "rms_norm_eps": self.rms_norm_eps,
                "rope_scaling": self.rope_scaling,
                "rope_theta": self.rope_theta,
                "sliding_window": None,
                "tie_word_embeddings": False,
                "use_cache": True,
                "use_sliding_window": False,
                "vocab_size": self.vocab_size,
            },
            indent=2,
        )

    @property
    def depth(self) -> int:
        """Drafted positions of one pass, B - 1."""
        return self.block_size - 1


def build_target_layer_ids(num_target_layers: int, num_draft_layers: int) -> list[int]:
    """The target layers a drafter reads by default: evenly spaced from 1 to `num_target_layers - 3`.

    One draft layer reads the middle. Rounds half to even, as the published code does.
    """
    if num_draft_layers == 1:
        return [num_target_layers // 2]
    first, last = 1, num_target_layers - 3
    step = (last - first) / (num_draft_layers - 1)
    return [round(first + i * step) for i in range(num_draft_layers)]


def rotary_inverse_frequencies(config: DFlashConfig) -> torch.Tensor:
    """Inverse frequencies, float32 [head_dim / 2]; of the scaled kinds `linear` and `llama3` are known."""
    dim = config.head_dim
    frequencies = 1.0 / config.rope_theta ** (torch.arange(0, dim, 2, dtype=torch.float32, device="cpu") / dim)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "linear":
        return frequencies / scaling["factor"]
    if kind == "llama3":
        # Long waves are stretched by `factor`, short ones kept, with a linear blend between.
        waves = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        keep = ((waves - low) / (high - low)).clamp(0.0, 1.0)
        return frequencies * (keep + (1 - keep) / scaling["factor"])
    raise UserError(f"The drafter scales its rotary positions by {kind!r}; only linear and llama3 are supported.")


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
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

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
        features = len(config.target_layer_ids) * config.hidden_size
        self.fc = nn.Linear(features, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(DFlashLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        # No buffer: it stays float32 whatever dtype the module is cast to, and real on a meta module.
        self.inverse_frequencies = rotary_inverse_frequencies(config)

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
        may look; None lets it see everything, which is what decoding wants.
        """
        context = self.hidden_norm(self.fc(context_features))
        if self.inverse_frequencies.device != position_ids.device:
            self.inverse_frequencies = self.inverse_frequencies.to(position_ids.device)
        angles = position_ids[:, None, :, None].float() * self.inverse_frequencies
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos().to(noise_embedding.dtype), angles.sin().to(noise_embedding.dtype)
        mask = None
        if attention_mask is not None:
            lowest = torch.finfo(torch.float32).min
            mask = torch.zeros_like(attention_mask, dtype=torch.float32).masked_fill_(~attention_mask, lowest)
        block = noise_embedding
        for index, layer in enumerate(self.layers):
            block = layer(block, context, cos, sin, mask, cache, index)
        return self.norm(block)


def save_dflash(model: DFlashDraftModel, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write `config.json` and `model.safetensors` in the published layout into an existing folder."""
    from safetensors.torch import save_file

    tensors = {name: value.detach().to("cpu", dtype).contiguous() for name, value in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(model.config.to_json() + "\n", encoding="utf-8")
