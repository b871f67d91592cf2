"""A lean forward of the Llama family on a CPU, whose result for a token does not depend on its company.

At one to thirty tokens a forward is limited by the reading of the weights and by what happens between
the matmuls. This one runs the layers of a loaded model (`QuickLayer`) without the library around
them: weights packed once, the residual inside the matmuls, and everything else in compiled loops
(`row_kernels`).

It is made so that row i of a pass over n tokens has the bits that a pass over that token alone would
have, which makes a verified tree and plain decoding the same text also where bfloat16 rounds two
tokens to the same score. The loops reckon each row by itself, over the tokens that it sees and no others,
in their order. A packed matmul of at most ROWS_AT_ONCE rows adds up each row in one order, whatever the
others are; `RowLinear` is made so, oneDNN happens to work so, and `bastion.models.sameness` tests on the machine at
hand whether it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from bastion.models.cache import RowCache, keys_in_a_row
from bastion.models.linear_kinds import added
from bastion.models.quick_layer import QuickLayer
from bastion.models.quick_modules import FusedRMSNorm
from bastion.models.row_kernels import BLOCK, attend_rows, gate_rows, norm_rows
from bastion.models.row_numbers import as_array

ROWS_AT_ONCE = 32
"""Rows of one packed matmul in bfloat16; with more, oneDNN blocks the sum otherwise. Past it a tree costs about 40 %
more than it would in one piece."""
SAME_ROWS = 128
"""Tokens of one pass up to which the promise is kept; a longer one (a prompt) is read as fast as it goes."""
DECODERS = {"LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model"}
ROTATIONS = {"default", "linear", "llama3", "yarn"}
"""Kinds of rotary embedding that turn a position by the same angles whatever the length of the text."""
TURNED_AT_ONCE = 1024
LEAST_EXPONENT = -80.0
"""Below it a weight is nothing beside the greatest, which is 1; e to much less is slow to reckon with."""


@dataclass(frozen=True)
class _Norm:
    """What `norm_rows` takes of an RMS norm."""

    weight: np.ndarray
    share: np.floating
    eps: np.floating

    def rows(self, x: torch.Tensor, out: np.ndarray) -> None:
        norm_rows(as_array(x), self.weight, self.share, self.eps, out)


@dataclass(frozen=True)
class _Seen:
    """Which rows each of n tokens sees: the first `context`, and rows[i, : counts[i]] behind them, int32 ascending."""

    context: int
    rows: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True)
class _Rows:
    """What the layers of one pass share: rotations, what is seen, and two tensors that each layer writes anew, with
    the arrays over their memory."""

    cos: np.ndarray
    sin: np.ndarray
    seen: list[_Seen]
    normed: torch.Tensor
    normed_array: np.ndarray
    mixed: torch.Tensor
    mixed_array: np.ndarray


class LeanForward:
    """Runs `decoder`, a library model whose layers are `QuickLayer`s, whose weights it shares."""

    def __init__(self, decoder: nn.Module):
        self.decoder = decoder
        self.layers: list[QuickLayer] = list(decoder.layers)
        first = self.layers[0]
        self.query_heads, self.key_heads, self.head_dim = first.query_heads, first.key_heads, first.head_dim
        self.dtype = first.before_attention.weight.dtype  # a lent embedding may be stored in another
        self.sum_dtype = torch.promote_types(self.dtype, torch.float32)
        self.rows_at_once = ROWS_AT_ONCE if self.dtype == torch.bfloat16 else SAME_ROWS
        self.cos = self.sin = torch.empty(0, self.head_dim // 2, dtype=self.sum_dtype)
        """[positions, head_dim / 2]: the rotation of each pair at each position."""
        self._number = np.float64 if self.sum_dtype == torch.float64 else np.float32
        self._per_dim, self._least = self._number(1 / self.head_dim), self._number(LEAST_EXPONENT)
        self._norms = [(self._norm(layer.before_attention), self._norm(layer.before_mlp)) for layer in self.layers]
        self._head_norms = [(self._norm(layer.query_norm), self._norm(layer.key_norm)) for layer in self.layers]
        self._last_norm = self._norm(decoder.norm)
        self._compile()

    @torch.inference_mode()
    def _compile(self) -> None:
        """One token through one layer, so that no clock of a decode sees the loops being compiled (once a machine: the
        result is kept on disk)."""
        cache = RowCache(1, self.key_heads, 1, self.head_dim, self.sum_dtype)
        turns = np.zeros((1, self.head_dim // 2), self._number)
        x = torch.zeros(1, self.decoder.embed_tokens.weight.shape[1], dtype=self.dtype)
        self._row_layer(0, x, self._rows(turns, turns, [seen_rows(None, 1, 1)]), cache)

    def _norm(self, norm: FusedRMSNorm | None) -> _Norm:
        """Without a norm its weight is empty."""
        weight = torch.empty(0, dtype=self.dtype) if norm is None else norm.weight.detach()
        eps = 0.0 if norm is None else norm.eps
        return _Norm(as_array(weight), self._number(1 / max(len(weight), 1)), self._number(eps))

    def new_cache(self, capacity: int) -> RowCache:
        while len(self.cos) < capacity:
            self._turn_further()
        return RowCache(len(self.layers), self.key_heads, capacity, self.head_dim, self.sum_dtype)

    def _turn_further(self) -> None:
        positions = torch.arange(len(self.cos), len(self.cos) + TURNED_AT_ONCE)[None]
        turns = self.decoder.rotary_emb(torch.empty(0, dtype=self.sum_dtype), positions)
        self.cos, self.sin = (torch.cat((known, more[0, :, : self.head_dim // 2]))
                              for known, more in zip((self.cos, self.sin), turns, strict=True))

    def __call__(
        self, token_ids: torch.Tensor, positions: torch.Tensor, masks: Sequence[torch.Tensor | None], cache: RowCache,
        watched: Sequence[int] = (),
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """n tokens behind the committed rows: ([n, hidden] behind the final norm, outputs of the watched layers).

        masks: for each layer, additive [n, w] over the newest w keys, or None. Layer -1 is the embedding; the
        last layer's output is the one behind the norm.
        """
        x = self.decoder.embed_tokens(token_ids)
        few = len(x) <= SAME_ROWS
        layer_of = self._row_layer if few else self._long_layer
        shared = self._for_rows(positions, masks, cache) if few else self._for_long(positions, masks)
        seen = {-1: x}
        for index in range(len(self.layers)):
            x = layer_of(index, x, shared, cache)
            if index in watched:
                seen[index] = x
        if few:
            self._last_norm.rows(x, shared.normed_array)  # the layers have no more use for it
            x = shared.normed
        else:
            x = self.decoder.norm(x)
        seen[len(self.layers) - 1] = x
        return x, seen

    # a token, a tree

    def _for_rows(self, positions, masks, cache: RowCache) -> _Rows:
        n, end = len(positions), cache.length + len(positions)
        seen = {key: seen_rows(mask, n, end) for key, mask in {id(mask): mask for mask in masks}.items()}
        return self._rows(self.cos[positions].numpy(), self.sin[positions].numpy(), [seen[id(mask)] for mask in masks])

    def _rows(self, cos: np.ndarray, sin: np.ndarray, seen: list[_Seen]) -> _Rows:
        normed = torch.empty(len(cos), self.decoder.embed_tokens.weight.shape[1], dtype=self.dtype)
        mixed = torch.empty(len(cos), self.query_heads * self.head_dim, dtype=self.dtype)
        return _Rows(cos, sin, seen, normed, as_array(normed), mixed, as_array(mixed))

    def _row_layer(self, index: int, x: torch.Tensor, rows: _Rows, cache: RowCache) -> torch.Tensor:
        layer, (before_attention, before_mlp), step = self.layers[index], self._norms[index], self.rows_at_once
        (query, key), (keys, values), seen = self._head_norms[index], cache.arrays[index], rows.seen[index]
        before_attention.rows(x, rows.normed_array)
        qkv = _by_rows(layer.qkv, rows.normed, step=step)
        attend_rows(as_array(qkv), query.weight, key.weight, self._per_dim, query.eps, rows.cos, rows.sin, keys, values,
                    cache.length, seen.context, seen.rows, seen.counts, self._least, rows.mixed_array)
        x = _by_rows(lambda *some: added(layer.output, *some), rows.mixed, x, step=step)
        before_mlp.rows(x, rows.normed_array)
        return _by_rows(lambda *some: mlp_end(layer, *some), rows.normed, x, step=step)

    # a prompt

    def _for_long(self, positions, masks) -> tuple[torch.Tensor, torch.Tensor, Sequence[torch.Tensor | None]]:
        return self.cos[positions][:, None], self.sin[positions][:, None], masks

    def _long_layer(self, index: int, x: torch.Tensor, shared, cache: RowCache) -> torch.Tensor:
        layer = self.layers[index]
        cos, sin, masks = shared
        mixed = self._attend(layer, layer.qkv(layer.before_attention(x)), cos, sin, masks[index], cache)
        x = added(layer.output, mixed, x)
        return mlp_end(layer, layer.before_mlp(x), x)

    def _attend(self, layer: QuickLayer, qkv, cos, sin, mask, cache: RowCache) -> torch.Tensor:
        """qkv [n, (heads + 2 kv_heads) * d] -> [n, heads * d]; writes the new keys and values into the cache."""
        n, heads, kv, dim = len(qkv), self.query_heads, self.key_heads, self.head_dim
        start, end, half = cache.length, cache.length + n, dim // 2
        keys, values = cache.keys[layer.layer_idx], cache.values[layer.layer_idx]
        qkv = qkv.view(n, heads + 2 * kv, dim)
        turned = qkv[:, : heads + kv]
        if layer.query_norm is not None:
            turned = torch.cat((layer.query_norm(turned[:, :heads]), layer.key_norm(turned[:, heads:])), dim=1)
        low, high = turned[..., :half].to(self.sum_dtype), turned[..., half:].to(self.sum_dtype)
        turned = torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
        places = torch.arange(start, end)
        keys[:, places // BLOCK, :, places % BLOCK] = turned[:, heads:]
        values[:, start:end] = qkv[:, heads + kv :].transpose(0, 1)
        # query rows are ordered by head of the group, then by token
        query = turned[:, :heads].view(n, kv, heads // kv, dim).permute(1, 2, 0, 3).reshape(kv, -1, dim) * dim**-0.5
        scores = torch.bmm(query, keys_in_a_row(keys, end))
        if mask is not None:
            scores.view(kv, heads // kv, n, end)[..., end - mask.shape[1] :] += mask
        mixed = torch.bmm(torch.softmax(scores, dim=-1), values[:, :end])
        return mixed.view(heads, n, dim).transpose(0, 1).to(self.dtype).reshape(n, heads * dim)


def mlp_end(layer: QuickLayer, normed: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """What a layer does behind its second norm: normed, x [n, hidden] -> [n, hidden]."""
    both = layer.gate_up(normed)
    n, width = both.shape
    if n > SAME_ROWS:  # two threads are quicker there
        gate, up = both.chunk(2, dim=-1)
        return added(layer.down, F.silu(gate) * up, x)
    gated = torch.empty(n, width // 2, dtype=both.dtype)
    gate_rows(as_array(both), as_array(gated))
    return added(layer.down, gated, x)


def seen_rows(mask: torch.Tensor | None, n: int, end: int) -> _Seen:
    """Of an additive mask [n, w] over the newest w of `end` rows; None: all are seen."""
    width = n if mask is None else mask.shape[1]
    visible = np.ones((n, width), dtype=bool) if mask is None else mask.numpy() == 0
    counts = visible.sum(axis=1, dtype=np.int32)
    rows = np.zeros((n, width), dtype=np.int32)
    which, columns = np.nonzero(visible)
    rows[which, np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)] = columns + (end - width)
    return _Seen(end - width, rows, counts)


def _by_rows(work, *rows: torch.Tensor, step: int) -> torch.Tensor:
    """`work` on at most `step` rows at a time."""
    if rows[0].shape[0] <= step:
        return work(*rows)
    return torch.cat([work(*parts) for parts in zip(*(tensor.split(step) for tensor in rows), strict=True)])


def lean_forward(model: nn.Module) -> LeanForward | None:
    """The lean forward of a library model that has been quickened; None for one it does not compute."""
    decoder = model.get_decoder()
    layers = getattr(decoder, "layers", None)
    if type(decoder).__name__ not in DECODERS or decoder.embed_tokens.weight.device.type != "cpu":
        return None
    kind = getattr(decoder.rotary_emb, "rope_type", None)
    if kind not in ROTATIONS or not all(isinstance(layer, QuickLayer) for layer in layers):
        return None
    if not isinstance(decoder.norm, FusedRMSNorm) or layers[0].head_dim % 2:
        return None
    if layers[0].before_attention.weight.dtype == torch.float16:  # which the compiled loops do not know
        return None
    return LeanForward(decoder)
