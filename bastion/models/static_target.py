"""A target whose trees are verified in fixed shapes: padded to a bucket, over a span of a cache that stays in place.

What runs is `static_forward`; where the device has CUDA graphs each (bucket, span) is captured after its
first use, which ran operator by operator, and replayed from then on. Without graphs nothing else changes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from bastion.latency.buckets import bucket_of
from bastion.models import static_forward
from bastion.models.cuda_graphs import Work, Works, graph_maker
from bastion.models.static_cache import SPARE_ROWS, CacheShape, CacheStore, StaticCache, StorePool, span_of
from bastion.models.target import Target, TargetOutput
from bastion.models.top_k import choices
from bastion.models.windows import windows_of
from bastion.trees import DraftTree

STATE = "target"
GRAPHS = "BASTION_GRAPHS"
"""Environment variable: 0 leaves a CUDA device without fixed shapes and graphs."""
PADDED = "bastion-padded"
"""The attention's name in calibrations of targets of fixed shapes, whose times are others."""


@dataclass(eq=False)
class LaidOut:
    """A tree on its way to be verified. packed: int64 [2 + 3 * bucket] on the device (`static_forward.tree_layout`)."""

    packed: torch.Tensor
    nodes: int
    bucket: int


@dataclass(eq=False)
class StoreState:
    """What a store needs beside its buffer: the angles of its positions, and verifying over it, by (bucket, span, features)."""

    angles: static_forward.Rotation
    works: dict[tuple[int, int, tuple[int, ...]], Work] = field(default_factory=dict)


class StaticTarget(Target):
    """`parts`: of `static_forward.static_model`. graphs False: run operator by operator even where graphs are to be had.

    `tree_inputs` and `forward` serve any mask and any shape, as ever; `lay_out` and `verify` are the quick way for trees.
    """

    padded = True

    def __init__(self, model, name: str, parts: static_forward.StaticModel, graphs: bool = True):
        super().__init__(model, name)
        self.parts = parts
        self.works = Works(graph_maker(self.device) if graphs else None)
        first = parts.layers[0]
        self.pool = StorePool(CacheShape(self.layers, first.key_heads, first.head_dim, self.dtype, self.device))
        self._staged: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def watch(self, layer_ids: Sequence[int]) -> None:
        """As `Target.watch`, without hooks: this forward has every layer's output in its hands."""
        super().watch(layer_ids)
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def new_cache(self, capacity: int) -> StaticCache:
        return self.pool.cache(capacity)

    # -- any shape -----------------------------------------------------------------------------

    @torch.inference_mode()
    def forward(self, token_ids, positions, mask, cache: StaticCache, rows: int | None = None) -> TargetOutput:
        """As `Target.forward`."""
        n = len(token_ids)
        cache.make_room(cache.length + n)
        state = self._state(cache)
        allowed = torch.ones(n, n, dtype=torch.bool, device=self.device) if mask is None else mask == 0
        length = torch.full((1,), cache.length, device=self.device)
        layout = static_forward.Layout(token_ids, positions, torch.arange(n, device=self.device) + length, allowed, length)
        span = cache.length + n
        span += -span % SPARE_ROWS  # kernels like even widths, and there are spare rows
        logits, features = static_forward.forward(
            self.parts, cache.store, state.angles, layout, span, self._watched, last=rows, fused=self._fused(n)
        )
        return TargetOutput(logits, features)

    # -- trees ---------------------------------------------------------------------------------

    @torch.inference_mode()
    def lay_out(self, tree: DraftTree, context: int) -> LaidOut:
        """One copy to the device, which builds the mask, the positions and the rows from it."""
        bucket = bucket_of(tree.nodes)
        staged, packed = self._stage(bucket)
        pack(staged.numpy(), tree, context, bucket)
        packed.copy_(staged, non_blocking=True)
        return LaidOut(packed, tree.nodes, bucket)

    @torch.inference_mode()
    def verify(self, laid_out: LaidOut, cache: StaticCache) -> TargetOutput:
        """Logits [n, vocab] and features [1, n, ...]: views of tensors that the next `verify` of that size overwrites."""
        cache.make_room(cache.length + laid_out.nodes)
        state = self._state(cache)
        span = min(span_of(cache.length + laid_out.nodes), cache.capacity)
        key = (laid_out.bucket, span, self._watched)
        if key not in state.works:
            state.works[key] = self._work(cache.store, state, laid_out, span)
        logits, best, features = self.works.do(state.works[key])
        nodes = laid_out.nodes
        return TargetOutput(logits[:nodes], None if features is None else features[:, :nodes], best[:, :nodes])

    def settle(self) -> None:
        self.works.settle()

    def _work(self, store: CacheStore, state: StoreState, laid_out: LaidOut, span: int) -> Work:
        packed, bucket, watched = laid_out.packed, laid_out.bucket, self._watched

        def run() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
            layout = static_forward.tree_layout(packed, bucket, store.spare)
            logits, features = static_forward.forward(
                self.parts, store, state.angles, layout, span, watched, fused=self._fused(bucket)
            )
            return logits, choices(logits), features

        # without a real node nothing but the spare row is written
        return Work(f"{bucket} nodes over {span} rows", run, lambda: packed[1].zero_())

    def _fused(self, queries: int) -> bool:
        return self.device.type == "cuda" and queries >= static_forward.FUSED_FROM

    def _state(self, cache: StaticCache) -> StoreState:
        works = cache.store.works
        if STATE not in works:
            works[STATE] = StoreState(static_forward.rotation(self.parts, cache.capacity + SPARE_ROWS))
        return works[STATE]

    def _stage(self, bucket: int) -> tuple[torch.Tensor, torch.Tensor]:
        """int64 [2 + 3 * bucket] on the host, pinned where a device copies from it, and on the device."""
        if bucket not in self._staged:
            size = static_forward.HEADER + 3 * bucket
            host = torch.zeros(size, dtype=torch.int64, pin_memory=self.device.type == "cuda")
            self._staged[bucket] = host, torch.zeros(size, dtype=torch.int64, device=self.device)
        return self._staged[bucket]


def pack(into: np.ndarray, tree: DraftTree, context: int, bucket: int) -> None:
    """Write a tree, padded to `bucket` nodes, as `static_forward.tree_layout` reads it. Padded nodes are of token 0 at
    depth 0, below nobody."""
    into[0], into[1] = context, tree.nodes
    rows = into[static_forward.HEADER :].reshape(3, bucket)
    for row, values, padding in zip(rows, (tree.token_ids, tree.depths, tree.parents), (0, 0, -1), strict=True):
        row[: tree.nodes], row[tree.nodes :] = values, padding


def target_for(model, name: str) -> Target:
    """The quickest target for a loaded model: of fixed shapes on CUDA, where its forward is one that `static_forward` knows."""
    device = next(model.parameters()).device
    parts = None
    if device.type == "cuda" and os.environ.get(GRAPHS, "1") != "0":
        parts = static_forward.static_model(model, windows_of(model.config.get_text_config(), name))
    return Target(model, name) if parts is None else StaticTarget(model, name, parts)
