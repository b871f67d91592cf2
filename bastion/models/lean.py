"""A lean forward of the Llama family on a CPU, whose result for a token does not depend on its company.

At one to thirty tokens a forward is limited by the reading of the weights and by the number of
operators. This one runs the layers of a loaded model (`QuickLayer`) without the library around
them: weights packed once, activation, gate and residual inside the matmuls, keys and values written
in place, one table of rotations, no mask for plain decoding.

It is made so that row i of a pass over n tokens has the bits that a pass over that token alone would
have, which makes a verified tree and plain decoding the same text also where bfloat16 rounds two
tokens to the same score. Three things bring this about:

- A packed matmul of at most ROWS_AT_ONCE rows adds up each row in one order, whatever the others are.
- Keys and values are float32, and so are scores. A float32 matmul runs through the keys in order with
  one accumulator, so a key of weight 0 between two others changes nothing: a path that lies scattered
  among a tree's rows is summed like one that lies in a row. It keeps to that for a few hundred keys, so
  longer contexts are summed in blocks that begin at fixed positions.
- The sum of the weights comes out of the same matmul, from a column of ones beside the values.

`bastion.models.sameness` tests on the machine at hand whether it holds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from bastion.models.cache import RowCache
from bastion.models.quick_layer import QuickLayer
from bastion.models.quick_modules import FusedRMSNorm, added, silu_of, times

ROWS_AT_ONCE = 32
"""Rows of one packed matmul in bfloat16; with more, oneDNN blocks the sum otherwise. Past it a tree costs about 40 %
more than it would in one piece."""
SAME_ROWS = 128
"""Tokens of one pass up to which the promise is kept; a longer one (a prompt) is read as fast as it goes."""
BLOCK = 256
"""Positions whose values are summed by one matmul; BLOCK + SAME_ROWS must stay below MKL's own block of 384."""
LEAST_ROWS = 8
"""Query rows of one matmul; for fewer, MKL takes another kernel (at head size 128; at 64 three are enough)."""
DECODERS = {"LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model"}
ROTATIONS = {"default", "linear", "llama3", "yarn"}
"""Kinds of rotary embedding that turn a position by the same angles whatever the length of the text."""
TURNED_AT_ONCE = 1024


class LeanForward:
    """Runs `decoder`, a library model whose layers are `QuickLayer`s, whose weights it shares."""

    def __init__(self, decoder: nn.Module):
        self.decoder = decoder
        self.layers: list[QuickLayer] = list(decoder.layers)
        first = self.layers[0]
        self.key_heads, self.head_dim = first.key_heads, first.head_dim
        self.group = first.query_heads // first.key_heads
        self.dtype = first.before_attention.weight.dtype  # a lent embedding may be stored in another
        self.sum_dtype = torch.promote_types(self.dtype, torch.float32)
        self.rows_at_once = ROWS_AT_ONCE if self.dtype == torch.bfloat16 else SAME_ROWS
        self.turns = torch.empty(0)
        """complex [positions, head_dim / 2]: the rotation of each pair at each position."""

    def new_cache(self, capacity: int) -> RowCache:
        while len(self.turns) < capacity:
            self._turn_further()
        return RowCache(len(self.layers), self.key_heads, capacity, self.head_dim, self.sum_dtype)

    def _turn_further(self) -> None:
        positions = torch.arange(len(self.turns), len(self.turns) + TURNED_AT_ONCE)[None]
        cos, sin = self.decoder.rotary_emb(torch.empty(0, dtype=self.sum_dtype), positions)
        half = self.head_dim // 2
        more = torch.complex(cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous())
        self.turns = torch.cat((self.turns.to(more.dtype).view(-1, half), more))

    def __call__(
        self, token_ids: torch.Tensor, positions: torch.Tensor, masks: Sequence[torch.Tensor | None], cache: RowCache,
        watched: Sequence[int] = (), in_place: bool = True,
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """n tokens behind the committed rows: ([n, hidden] behind the final norm, outputs of the watched layers).

        masks: for each layer, additive [n, w] over the newest w keys, or None. Layer -1 is the embedding; the
        last layer's output is the one behind the norm. in_place: committed rows stand at their own positions;
        where they do not, because a tree is still being drafted, no bits are promised.
        """
        seen_by = {id(mask): (mask == 0).to(self.sum_dtype)[:, None] for mask in masks if mask is not None}
        x = self.decoder.embed_tokens(token_ids)
        turns = self.turns[positions][:, None]
        seen = {-1: x}
        step = self.rows_at_once if len(x) <= SAME_ROWS else len(x)
        blocks = _blocks(positions, cache.length) if in_place and len(x) <= SAME_ROWS else None
        for index, layer in enumerate(self.layers):
            qkv = _by_rows(lambda rows, at=layer: at.qkv(at.before_attention(rows)), x, step=step)
            mixed = self._attend(layer, qkv, turns, masks[index], seen_by.get(id(masks[index])), cache, blocks)
            x = _by_rows(layer_end, x, mixed, layer=layer, step=step)
            if index in watched:
                seen[index] = x
        x = self.decoder.norm(x)
        seen[len(self.layers) - 1] = x
        return x, seen

    def _attend(self, layer: QuickLayer, qkv, turns, mask, visible, cache: RowCache, blocks) -> torch.Tensor:
        """qkv [n, (heads + 2 kv_heads) * d] -> [n, heads * d]; writes the new keys and values into the cache."""
        n, heads, kv, group, dim = len(qkv), layer.query_heads, self.key_heads, self.group, self.head_dim
        start, end = cache.length, cache.length + n
        rows = cache.rows[layer.layer_idx]  # [kv, capacity, 2d + 1 and padding]
        qkv = qkv.view(n, heads + 2 * kv, dim)
        turned = qkv[:, : heads + kv]
        if layer.query_norm is not None:
            turned = torch.cat((layer.query_norm(turned[:, :heads]), layer.key_norm(turned[:, heads:])), dim=1)
        # pairs of the rotation lie half a head apart; side by side they are complex numbers
        pairs = torch.empty(n, heads + kv, dim // 2, 2, dtype=self.sum_dtype)
        pairs.copy_(turned.view(n, heads + kv, 2, dim // 2).transpose(-1, -2))
        pairs = torch.view_as_complex(pairs).mul_(turns)
        turned = torch.view_as_real(pairs).view(n, heads + kv, dim)
        rows[:, start:end, :dim] = turned[:, heads:].transpose(0, 1)
        rows[:, start:end, dim : 2 * dim] = qkv[:, heads + kv :].transpose(0, 1)
        query = torch.zeros if n * group < LEAST_ROWS else torch.empty
        query = query(kv, max(n * group, LEAST_ROWS), dim, dtype=self.sum_dtype)
        torch.mul(
            turned[:, :heads].view(n, kv, group, dim), dim**-0.5,
            out=query[:, : n * group].view(kv, n, group, dim).transpose(0, 1),
        )
        # query rows are ordered by token, then by head of the group
        scores = torch.bmm(query, rows[:, :end, :dim].transpose(1, 2))  # [kv, n * group, end]
        if mask is not None:
            newest = scores[:, : n * group].view(kv, n, group, end)[..., end - mask.shape[1] :]
            newest += mask[:, None]
        scores -= scores.amax(dim=-1, keepdim=True)
        # exp is slow where it underflows; what is hidden becomes 0 below
        weights = scores.clamp_min_(-80.0).exp_()
        if mask is not None:
            newest = weights[:, : n * group].view(kv, n, group, end)[..., end - mask.shape[1] :]
            newest *= visible
        mixed = _summed(weights, rows[:, :end, dim : 2 * dim + 1], blocks)[:, : n * group]
        out = torch.empty(n, kv, group, dim, dtype=self.dtype)
        torch.div(mixed[..., :dim].view(kv, n, group, dim), mixed[..., dim:].view(kv, n, group, 1), out=out.transpose(0, 1))
        return out.view(n, heads * dim)


def layer_end(x: torch.Tensor, mixed: torch.Tensor, layer: QuickLayer) -> torch.Tensor:
    """What a layer does behind its attention: x, mixed [n, ...] -> [n, hidden]."""
    x = added(layer.output, mixed, x)
    normed = layer.before_mlp(x)
    return added(layer.down, times(layer.up, normed, silu_of(layer.gate, normed)), x)


def _by_rows(work, *rows: torch.Tensor, step: int, **more) -> torch.Tensor:
    """`work` on at most `step` rows at a time."""
    if len(rows[0]) <= step:
        return work(*rows, **more)
    return torch.cat([work(*parts, **more) for parts in zip(*(tensor.split(step) for tensor in rows), strict=True)])


Blocks = list[tuple[int, int | None, torch.Tensor | None]]


def _blocks(positions: torch.Tensor, length: int) -> Blocks:
    """(first row, row behind the last, which of them) of each block of BLOCK positions.

    Committed rows stand at their own positions. The new rows of a tree may belong to two blocks, in no
    order; then each block takes all of them, and the third says which are its own.
    """
    whole = length // BLOCK
    blocks: Blocks = [(block * BLOCK, (block + 1) * BLOCK, None) for block in range(whole)]
    deepest = int(positions.max()) // BLOCK
    if deepest == whole:
        return [*blocks, (whole * BLOCK, None, None)]
    block_of = torch.cat((torch.arange(whole * BLOCK, length), positions)) // BLOCK
    return blocks + [(whole * BLOCK, None, block_of == block) for block in range(whole, deepest + 1)]


def _summed(weights: torch.Tensor, values: torch.Tensor, blocks: Blocks | None) -> torch.Tensor:
    """weights [kv, m, L] times values [kv, L, d + 1], block by block."""
    if blocks is None or len(blocks) == 1:
        return torch.bmm(weights, values)
    total = None
    for first, end, own in blocks:
        part = weights[:, :, first:end]
        part = torch.bmm(part if own is None else part * own, values[:, first:end])
        total = part if total is None else total.add_(part)
    return total


def lean_forward(model: nn.Module) -> LeanForward | None:
    """The lean forward of a library model that has been quickened; None for one it does not compute."""
    decoder = model.get_decoder()
    layers = getattr(decoder, "layers", None)
    if type(decoder).__name__ not in DECODERS or decoder.embed_tokens.weight.device.type != "cpu":
        return None
    kind = getattr(decoder.rotary_emb, "rope_type", None)
    if kind not in ROTATIONS or not all(isinstance(layer, QuickLayer) for layer in layers):
        return None
    if not isinstance(decoder.norm, FusedRMSNorm) or layers[0].head_dim % 2 or layers[0].gate is None:
        return None
    return LeanForward(decoder)
