"""A decoder layer of the Llama family in as few operators as plain torch allows.

At one to thirty tokens a forward is made of thousands of small operators, and what the library
spends between them is a third of the time on a CPU. This layer computes the same from the same
weights: queries, keys and values come from one matmul, the two halves of the gated MLP from
another, and the rotation is applied to queries and keys together.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from bastion.models.attention import grouped_attention

LAYERS = {"LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer"}


class QuickLayer(nn.Module):
    """Built from a library layer, whose weights it takes over; for inference only."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.layer_idx: int = attention.layer_idx
        self.head_dim: int = attention.head_dim
        self.key_heads: int = attention.k_proj.out_features // self.head_dim
        self.query_heads: int = attention.q_proj.out_features // self.head_dim
        self.qkv = stacked((attention.q_proj, attention.k_proj, attention.v_proj))
        self.output = attention.o_proj
        self.gate_up = stacked((mlp.gate_proj, mlp.up_proj))
        self.down = mlp.down_proj
        self.before_attention = layer.input_layernorm
        self.before_mlp = layer.post_attention_layernorm
        self.query_norm = getattr(attention, "q_norm", None)
        self.key_norm = getattr(attention, "k_norm", None)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        cache=None,
        **_: object,
    ) -> torch.Tensor:
        """[b, n, hidden] -> [b, n, hidden], as the library's layer; the mask is `grouped_attention`'s."""
        qkv = self.qkv(self.before_attention(hidden_states)).unflatten(-1, (-1, self.head_dim))
        queries = self.query_heads
        turned = qkv[:, :, : queries + self.key_heads]
        if self.query_norm is not None:
            turned = torch.cat((self.query_norm(turned[:, :, :queries]), self.key_norm(turned[:, :, queries:])), dim=2)
        turned = _rotated(turned.transpose(1, 2), *position_embeddings)
        query, key = turned[:, :queries], turned[:, queries:]
        value = qkv[:, :, queries + self.key_heads :].transpose(1, 2)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        mixed, _ = grouped_attention(self, query, key, value, attention_mask)
        hidden_states = hidden_states + self.output(mixed.flatten(2))
        normed = self.before_mlp(hidden_states)
        gate, up = self.gate_up(normed).chunk(2, dim=-1)
        return hidden_states + self.down(F.silu(gate) * up)


def stacked(linears: Sequence[nn.Linear]) -> nn.Linear:
    """One linear layer whose output is theirs side by side."""
    weight = torch.cat([linear.weight for linear in linears])
    bias = None if linears[0].bias is None else torch.cat([linear.bias for linear in linears])
    both = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    both.weight = nn.Parameter(weight, requires_grad=False)
    both.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
    return both


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of x [b, heads, n, d] by cos, sin [b, n, d]; the halves of d are the pairs."""
    half = x.shape[-1] // 2
    swapped = torch.cat((x[..., half:].neg(), x[..., :half]), dim=-1)
    return torch.addcmul(x * cos.unsqueeze(1), swapped, sin.unsqueeze(1))


def is_quick(layer: nn.Module) -> bool:
    """Whether `layer` is one that `QuickLayer` computes."""
    if type(layer).__name__ not in LAYERS:
        return False
    mlp = layer.mlp
    return all(hasattr(mlp, name) for name in ("gate_proj", "up_proj", "down_proj")) and type(
        mlp.act_fn
    ).__name__ in ("SiLU", "SiLUActivation")
