"""A forward of the Llama family whose shapes and addresses depend on nothing that the device knows.

n queries, a span of cache rows, and one vector of integers decide everything: which rows are written,
who sees whom and where each token stands are worked out on the device from that vector. So the same
code runs operator by operator on a CPU and, captured, as one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from bastion.models.quick_layer import QuickLayer
from bastion.models.static_cache import CacheStore
from bastion.models.windows import FULL, ONE_WINDOW, Windows

MODELS = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
LENGTH_FREE_ROPE = {"default", "linear", "llama3", "yarn"}
"""Rotary kinds whose angles depend on the position alone, not on how long the text has become."""
FUSED_FROM = 32
"""Queries from which the fused kernel is asked for on CUDA: below it leaves most of the device idle, since it does not
split the keys among its blocks."""
HEADER = 2
"""Numbers at the head of a packed tree: committed rows, real nodes."""


@dataclass(frozen=True, slots=True)
class StaticModel:
    """The parts of a quickened model. windows: positions that each layer sees, None for all."""

    embedding: torch.Tensor
    layers: tuple[QuickLayer, ...]
    norm: nn.Module
    head: nn.Module
    rotary: nn.Module
    windows: tuple[int | None, ...]

    @property
    def lowest(self) -> float:
        return torch.finfo(self.embedding.dtype).min


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines, and sines with the first half negated, [rows, head_dim], of every position a store can hold."""

    cos: torch.Tensor
    sin: torch.Tensor


@dataclass(frozen=True, slots=True)
class Layout:
    """Where n tokens stand. token_ids, positions, rows (of the cache, which they are written to) int64 [n];
    allowed bool [n, n]; length int64 [1], the committed rows, all of which are visible."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    rows: torch.Tensor
    allowed: torch.Tensor
    length: torch.Tensor


def static_model(model: nn.Module, windows: Windows) -> StaticModel | None:
    """The parts of a model that was quickened; None for one that this forward does not compute."""
    decoder = model.get_decoder()
    layers = getattr(decoder, "layers", ())
    if type(model).__name__ not in MODELS or not all(isinstance(layer, QuickLayer) for layer in layers):
        return None
    rotary = getattr(decoder, "rotary_emb", None)
    if rotary is None or getattr(rotary, "rope_type", "default") not in LENGTH_FREE_ROPE:
        return None
    config = model.config
    types = getattr(config, "layer_types", None) or [FULL] * len(layers)
    everywhere = config.model_type in ONE_WINDOW
    sees = tuple(windows.window if everywhere or kind != FULL else None for kind in types)
    return StaticModel(model.get_input_embeddings().weight, tuple(layers), decoder.norm, model.get_output_embeddings(), rotary, sees)


def rotation(model: StaticModel, rows: int) -> Rotation:
    """From the model's own rotary module, so that the angles are its own to the last bit."""
    positions = torch.arange(rows, device=model.embedding.device)[None]
    cos, sin = model.rotary(model.embedding[:1], positions)
    cos, sin = cos[0].contiguous(), sin[0].clone()
    sin[:, : sin.shape[1] // 2].neg_()
    return Rotation(cos, sin)


def tree_layout(packed: torch.Tensor, nodes: int, spare: int) -> Layout:
    """From int64 [2 + 3 * nodes]: committed rows, real nodes, token ids, depths, parents (the root's -1).

    Padded nodes write to the spare row and see the context alone; nobody sees them.
    """
    length, count = packed[0:1], packed[1:2]
    token_ids, depths, parents = packed[HEADER:].view(3, nodes)
    numbers = torch.arange(nodes, device=packed.device)
    real = numbers < count
    return Layout(
        token_ids=token_ids,
        positions=depths + length,
        rows=torch.where(real, numbers + length, spare),
        allowed=ancestors(parents) & real[:, None] & real,
        length=length,
    )


def ancestors(parents: torch.Tensor) -> torch.Tensor:
    """bool [n, n], row i true at node i and its ancestors; parents int64 [n], the root's -1.

    Paths of up to 1, 2, 4, ... steps: each doubling is one matmul, so no loop over nodes or levels.
    """
    n = len(parents)
    numbers = torch.arange(n, device=parents.device)
    steps = ((parents[:, None] == numbers) | (numbers[:, None] == numbers))
    # counts of up to n are exact enough to be told from 0 in half precision, which tensor cores take
    steps = steps.to(torch.half if parents.device.type == "cuda" else torch.float32)
    for _ in range((n - 1).bit_length()):
        steps = torch.mm(steps, steps).clamp_(max=1.0)
    return steps > 0


def forward(
    model: StaticModel, store: CacheStore, angles: Rotation, layout: Layout, span: int, watched: Sequence[int], last: int | None = None,
    fused: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(logits [n or last, vocab], features [1, n, layers * hidden] or None) of n tokens over the first `span` rows.

    Writes the tokens' keys and values to their rows. watched: as `Target.watch`. last: logits of so many last tokens.
    """
    hidden = F.embedding(layout.token_ids, model.embedding)
    cos, sin = (table[layout.positions].unsqueeze(1) for table in (angles.cos, angles.sin))
    group = model.layers[0].query_heads // model.layers[0].key_heads
    masks = {window: hiding(layout, span, window, model.lowest, hidden.dtype, group) for window in set(model.windows)}
    kept = {-1: hidden}
    for index, layer in enumerate(model.layers):
        hidden = _layer(layer, hidden, cos, sin, store.buffer[index], layout.rows, span, masks[model.windows[index]], fused)
        kept[index] = hidden
    hidden = kept[len(model.layers) - 1] = model.norm(hidden)
    features = torch.cat([kept[index] for index in watched], dim=-1)[None] if watched else None
    return model.head(hidden if last is None else hidden[len(hidden) - last :]), features


def hiding(layout: Layout, span: int, window: int | None, lowest: float, dtype: torch.dtype, group: int) -> torch.Tensor:
    """[group * n, span] in `dtype`, added to the scores: 0 where a query sees a row of the cache, else the lowest number."""
    n = len(layout.positions)
    rows = torch.arange(span, device=layout.positions.device)
    node = (rows - layout.length).clamp(0, n - 1)
    among = (rows >= layout.length) & (rows < layout.length + n)
    sees = (rows < layout.length) | (among & layout.allowed.index_select(1, node))
    if window is not None:
        where = torch.where(among, layout.positions.index_select(0, node), rows)
        sees = sees & (layout.positions[:, None] - where < window)
    return torch.zeros(n, span, dtype=dtype, device=rows.device).masked_fill_(~sees, lowest).repeat(group, 1)


def _layer(layer: QuickLayer, hidden, cos, sin, buffer, rows, span: int, mask, fused: bool) -> torch.Tensor:
    """[n, hidden] -> [n, hidden], the arithmetic of QuickLayer over keys and values in place. buffer [2, kv_heads, R, d]."""
    n, queries = len(hidden), layer.query_heads
    qkv = layer.qkv(layer.before_attention(hidden)).view(n, -1, layer.head_dim)
    turned = qkv[:, : queries + layer.key_heads]
    if layer.query_norm is not None:
        turned = torch.cat((layer.query_norm(turned[:, :queries]), layer.key_norm(turned[:, queries:])), dim=1)
    turned = torch.addcmul(turned * cos, turned.roll(layer.head_dim // 2, dims=-1), sin)
    buffer[0].index_copy_(1, rows, turned[:, queries:].transpose(0, 1))
    buffer[1].index_copy_(1, rows, qkv[:, queries + layer.key_heads :].transpose(0, 1))
    mixed = attend(turned[:, :queries].transpose(0, 1), buffer[0, :, :span], buffer[1, :, :span], mask, fused)
    hidden = hidden + layer.output(mixed.transpose(0, 1).reshape(n, -1))
    normed = layer.before_mlp(hidden)
    gate, up = layer.gate_up(normed).chunk(2, dim=-1)
    return hidden + layer.down(F.silu(gate) * up)


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, fused: bool) -> torch.Tensor:
    """[heads, n, d] of query [heads, n, d] over keys, values [kv_heads, L, d]; mask [heads / kv_heads * n, L] is added.

    Query heads that share a key head are multiplied together, so keys and values are read in place.
    """
    kv_heads, _, dim = keys.shape
    folded = query.reshape(kv_heads, -1, dim)
    if fused:
        mixed = F.scaled_dot_product_attention(folded[None], keys[None], values[None], attn_mask=mask)[0]
    else:
        scores = torch.baddbmm(mask.expand(kv_heads, -1, -1), folded, keys.transpose(1, 2), alpha=dim**-0.5)
        mixed = torch.bmm(torch.softmax(scores, dim=-1), values)
    return mixed.view(query.shape)
