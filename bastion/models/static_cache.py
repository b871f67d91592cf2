"""A key-value cache at fixed addresses for forwards of fixed shapes: one buffer for all layers.

Rows behind the committed ones are scratch, as in `KVCache`. One row at the end belongs to nobody: padded
tokens write there. Buffers outlive the decode that used them, because graphs were captured over them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

from bastion.errors import UserError
from bastion.models.device import device_name, free_memory

SPARE_ROWS = 8
"""Rows behind the capacity, the last of which padded tokens write to; 8, so that the width stays even for kernels."""
KEPT = 2
"""Stores that are kept while no decode uses them."""
LEAST_SPAN = 256


def span_of(rows: int) -> int:
    """The least span that holds `rows` cached rows: 256, 384, 512, 768, 1024, ... At most half as much again."""
    span = LEAST_SPAN
    while span < rows:
        span = span // 2 * 3 if span & (span - 1) == 0 else span // 3 * 4
    return span


@dataclass(frozen=True, slots=True)
class CacheShape:
    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    def bytes(self, rows: int) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * rows * self.dtype.itemsize


@dataclass(eq=False)
class CacheStore:
    """buffer [layers, 2 (keys, values), kv_heads, rows, head_dim]; works: what was captured over it, by its shapes."""

    buffer: torch.Tensor
    works: dict[Hashable, Any] = field(default_factory=dict)

    @property
    def capacity(self) -> int:
        return self.buffer.shape[3] - SPARE_ROWS

    @property
    def spare(self) -> int:
        """The row that belongs to nobody."""
        return self.buffer.shape[3] - 1


class StaticCache:
    """What one decode sees of a store: how many rows are committed, and where. `KVCache`'s methods, and `make_room`."""

    def __init__(self, store: CacheStore, pool: StorePool):
        self.store = store
        self._pool = pool
        self._length = 0
        self._giving_back = weakref.finalize(self, pool.give_back, store)

    @property
    def length(self) -> int:
        """Committed positions."""
        return self._length

    @property
    def capacity(self) -> int:
        return self.store.capacity

    @property
    def layers(self) -> list[CacheLayer]:
        return [CacheLayer(self.store.buffer[index, 0][None], self.store.buffer[index, 1][None], self._length)
                for index in range(self.store.buffer.shape[0])]

    @torch.inference_mode()
    def commit(self, rows: torch.Tensor | int) -> None:
        """Keep some of the rows that the last forward wrote, in the order given: int64 [a] ascending, or the first k."""
        if isinstance(rows, int):
            self.truncate(self._length + rows)
            return
        start, kept = self._length, len(rows)
        # one gather and one write for all layers; the gather is done before the write
        self.store.buffer[:, :, :, start : start + kept] = self.store.buffer[:, :, :, start:].index_select(3, rows)
        self._length = start + kept

    def truncate(self, length: int) -> None:
        """Set the number of committed positions, backwards or over rows already written."""
        if not 0 <= length <= self.capacity:
            raise IndexError(f"length {length} is outside the cache's {self.capacity} positions")
        self._length = length

    def make_room(self, rows: int) -> None:
        """Hold at least `rows` positions: when it does not, move to a larger store, over which nothing was captured yet.
        UserError when the device has no memory for it."""
        if rows <= self.capacity:
            return
        larger = self._pool.take(rows)
        larger.buffer[:, :, :, : self._length] = self.store.buffer[:, :, :, : self._length]
        self._giving_back()
        self.store = larger
        self._giving_back = weakref.finalize(self, self._pool.give_back, larger)


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """Views of one layer: keys and values [1, kv_heads, rows, head_dim]."""

    keys: torch.Tensor
    values: torch.Tensor
    length: int


class StorePool:
    """Hands out stores, each to one cache at a time, and takes them back with what was captured over them."""

    def __init__(self, shape: CacheShape, allocate: Callable[..., torch.Tensor] = torch.zeros):
        self.shape = shape
        self.free: list[CacheStore] = []
        self._allocate = allocate

    def take(self, rows: int) -> CacheStore:
        """A store of at least `rows` positions: the smallest free one, or a new one. UserError when memory does not allow."""
        fitting = [store for store in self.free if store.capacity >= rows]
        if fitting:
            best = min(fitting, key=lambda store: store.capacity)
            self.free.remove(best)
            return best
        capacity = span_of(rows)
        try:
            return self._new(capacity)
        except torch.OutOfMemoryError:
            self.drop_free()
        for smaller in (capacity, rows + -rows % SPARE_ROWS):
            try:
                return self._new(smaller)
            except torch.OutOfMemoryError:
                continue
        need, left = self.shape.bytes(rows) / 1e9, free_memory(self.shape.device)
        raise UserError(
            f"The KV cache for {rows} tokens needs {need:.1f} GB and {device_name(self.shape.device)} has "
            f"{'less' if left is None else f'{left / 1e9:.1f} GB'} free: ask for fewer new tokens, shorten the prompt, or take a "
            "smaller pair."
        )

    def drop_free(self) -> None:
        """Give back the memory of what no decode uses."""
        for store in self.free:
            store.works.clear()  # they hold the store, too
        self.free.clear()

    def cache(self, rows: int) -> StaticCache:
        return StaticCache(self.take(rows), self)

    def give_back(self, store: CacheStore) -> None:
        self.free.append(store)
        if len(self.free) > KEPT:
            dropped = min(self.free, key=lambda store: store.capacity)
            dropped.works.clear()
            self.free.remove(dropped)

    def _new(self, capacity: int) -> CacheStore:
        """Zeros, not what memory held: a hidden row still takes part in sums, with weight 0."""
        shape = self.shape
        size = (shape.layers, 2, shape.kv_heads, capacity + SPARE_ROWS, shape.head_dim)
        return CacheStore(self._allocate(size, dtype=shape.dtype, device=shape.device))
