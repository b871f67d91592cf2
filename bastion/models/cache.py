"""A key-value cache that is allocated once and commits an accepted path in place.

transformers' own caches either grow by concatenation (every step copies the whole context) or
have a fixed length that attention always pays for. Here each layer owns one buffer; a forward
appends its n keys behind the `length` committed ones and attention reads a view. Committing
moves the accepted rows, at most n of them, and never touches the context.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from bastion.models.row_kernels import BLOCK, move_rows


class BufferLayer(CacheLayerMixin):
    """Keys and values of one layer, [batch, kv_heads, capacity, head_dim]; rows past `length` are scratch."""

    is_sliding = False
    is_croppable = True

    def __init__(self, capacity: int):
        super().__init__()
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        batch, kv_heads, _, dim = key_states.shape
        self.keys = key_states.new_empty(batch, kv_heads, self.capacity, dim)
        self.values = value_states.new_empty(batch, kv_heads, self.capacity, value_states.shape[-1])
        self.is_initialized = True

    def update(self, key_states, value_states, *args, **kwargs):
        """Write n rows behind the committed ones; returns views over committed and new rows."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[-2]
        if end > self.capacity:
            raise IndexError(f"the cache holds {self.capacity} positions and {end} were asked for")
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.capacity

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0


class KVCache(Cache):
    """`layers` buffers of `capacity` positions, filled on the first forward.

    A forward does not advance `length`: rows it wrote stay scratch until `commit` says which of
    them to keep, so a rejected branch costs nothing to forget.
    """

    def __init__(self, layers: int, capacity: int):
        super().__init__(layers=[BufferLayer(capacity) for _ in range(layers)])
        self.capacity = capacity

    @property
    def length(self) -> int:
        """Committed positions."""
        return self.layers[0].length

    @torch.inference_mode()
    def commit(self, rows: torch.Tensor | int) -> None:
        """Keep some of the rows that the last forward wrote, in the order given.

        rows: int64 [a], ascending indices into the n appended rows (tree nodes of the accepted
        path); or an int k, the first k rows as they lie, which copies nothing.
        """
        if isinstance(rows, int):
            self.truncate(self.length + rows)
            return
        start, kept = self.length, len(rows)
        for layer in self.layers:
            for buffer in (layer.keys, layer.values):
                # index_select copies before the write, so source and target rows may overlap
                buffer[:, :, start : start + kept] = buffer[:, :, start:].index_select(2, rows)
            layer.length = start + kept

    def truncate(self, length: int) -> None:
        """Set the number of committed positions, backwards or over rows already written."""
        if not 0 <= length <= self.capacity:
            raise IndexError(f"length {length} is outside the cache's {self.capacity} positions")
        for layer in self.layers:
            layer.length = length


class RowCache:
    """The same for `LeanForward`: keys and values of all layers in two buffers, moved by one compiled loop.

    keys: [layers, kv_heads, blocks, head_dim, BLOCK], in a block one column a token, so that scores of neighbouring
    tokens are worked out side by side; values: [layers, kv_heads, capacity, head_dim].
    """

    def __init__(self, layers: int, kv_heads: int, capacity: int, head_dim: int, dtype: torch.dtype):
        # zeros, because columns behind the written ones are worked out too, and thrown away
        self.keys = torch.zeros(layers, kv_heads, -(-capacity // BLOCK), head_dim, BLOCK, dtype=dtype)
        self.values = torch.zeros(layers, kv_heads, capacity, head_dim, dtype=dtype)
        self.arrays = [(keys.numpy(), values.numpy()) for keys, values in zip(self.keys, self.values, strict=True)]
        """The same memory, layer by layer, as compiled loops take it."""
        self.capacity = capacity
        self.length = 0

    @property
    def layers(self) -> list[LayerView]:
        """Copies of the keys, and the values themselves."""
        return [LayerView(keys_in_a_row(keys, self.capacity).transpose(1, 2)[None], values[None], self.length)
                for keys, values in zip(self.keys, self.values, strict=True)]

    @torch.inference_mode()
    def commit(self, rows: torch.Tensor | int) -> None:
        """As `KVCache.commit`."""
        if isinstance(rows, int):
            self.truncate(self.length + rows)
            return
        move_rows(self.keys.numpy(), self.values.numpy(), self.length, rows.numpy())
        self.length += len(rows)

    def truncate(self, length: int) -> None:
        """As `KVCache.truncate`."""
        if not 0 <= length <= self.capacity:
            raise IndexError(f"length {length} is outside the cache's {self.capacity} positions")
        self.length = length


def keys_in_a_row(keys: torch.Tensor, length: int) -> torch.Tensor:
    """The first `length` of keys [kv_heads, blocks, head_dim, BLOCK] as [kv_heads, head_dim, length]."""
    some = keys[:, : -(-length // BLOCK)]
    return some.permute(0, 2, 1, 3).flatten(2)[:, :, :length]


class LayerView(NamedTuple):
    """One layer of a `RowCache`, [1, kv_heads, capacity, head_dim]."""

    keys: torch.Tensor
    values: torch.Tensor
    length: int
