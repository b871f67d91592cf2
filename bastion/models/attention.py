"""Grouped attention as two plain matmuls, registered with transformers under the name `bastion`.

Two things set it apart from the library's own functions. Query heads that share a key head are
multiplied together, so keys and values are read in place and never repeated. And the mask may
cover only the newest keys: a tree step masks its own n nodes and sees the whole context, so the
mask has the size of the tree and not of the context.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F
from transformers import AttentionInterface

NAME = "bastion"


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Attention of `query` [b, heads, n, d] over `key`, `value` [b, kv_heads, L, d].

    `attention_mask` is additive, [b or 1, 1, n, w] with w <= L, and belongs to the last w keys;
    the L - w keys before them are visible to every query. None hides nothing. Returns
    [b, n, heads, d]. The softmax runs in float32, or float64 for float64 models.
    """
    batch, heads, n, dim = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    scaling = dim**-0.5 if scaling is None else scaling
    # [b, kv_heads, group * n, d]: one matmul per key head serves its whole group
    folded = (query * scaling).reshape(batch, kv_heads, group * n, dim)
    # keys on the left: on CPUs bf16 matmul reads them twice as fast that way round
    scores = torch.matmul(key, folded.transpose(-1, -2)).transpose(-1, -2)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if attention_mask is not None:
        width = attention_mask.shape[-1]
        scores.view(batch, kv_heads, group, n, -1)[..., -width:] += attention_mask.unsqueeze(2)
    weights = torch.softmax(scores, dim=-1).to(value.dtype)
    mixed = torch.matmul(weights, value).view(batch, heads, n, dim)
    return mixed.transpose(1, 2).contiguous(), None


def trainable_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor
) -> torch.Tensor:
    """The same result through torch's fused kernel, which has a backward pass that stores no scores.

    Shapes as in `grouped_attention`, but the mask is of full width, [b, 1, n, L].
    """
    batch, heads, n, dim = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    folded = query.reshape(batch, kv_heads, group * n, dim)
    mask = attention_mask.to(query.dtype).repeat(1, 1, group, 1)
    mixed = F.scaled_dot_product_attention(folded, key, value, attn_mask=mask)
    return mixed.view(batch, heads, n, dim).transpose(1, 2)


def register() -> str:
    """Make the function known to transformers; returns the name to pass as `attn_implementation`."""
    AttentionInterface.register(NAME, grouped_attention)
    return NAME
