"""Tiny pairs whose target runs in fixed shapes, on the CPU; and a maker of graphs that only remembers the work."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bastion.drafters.dflash_drafter import DFlashDrafter
from bastion.models.cuda_graphs import WARM_UPS
from bastion.models.pair import Pair
from bastion.models.static_forward import static_model
from bastion.models.static_target import PADDED, StaticTarget


class RememberedWork:
    """`replay` copies what the work gives into the tensors of the capture, as a graph overwrites them."""

    def __init__(self, work: Callable, outputs):
        self.work, self.outputs, self.replayed = work, outputs, 0

    def replay(self):
        self.replayed += 1
        for mine, new in zip(_tensors(self.outputs), _tensors(self.work()), strict=True):
            mine.copy_(new)
        return self.outputs


class RememberingMaker:
    def __init__(self):
        self.made: list[RememberedWork] = []

    def capture(self, work: Callable):
        for _ in range(WARM_UPS):
            work()
        # a capture computes nothing: what its outputs hold before the first replay is nobody's business
        outputs = work()
        for tensor in _tensors(outputs):
            tensor.fill_(-7)
        self.made.append(RememberedWork(work, outputs))
        return self.made[-1]


def _tensors(outputs) -> list[torch.Tensor]:
    return [outputs] if isinstance(outputs, torch.Tensor) else [tensor for tensor in outputs if tensor is not None]


def static_pair(pair: Pair, maker: RememberingMaker | None = None) -> Pair:
    """A pair over the same weights whose target is static; `maker` stands in for CUDA graphs."""
    old = pair.target
    target = StaticTarget(old.model, old.name, static_model(old.model, old._windows))
    target.works.maker = maker
    drafter = DFlashDrafter(pair.drafter.model, target, tuple(pair.drafter.temperatures[:, 0].tolist()))
    target.watch(drafter.feature_layer_ids)
    return Pair(pair.name, target, None, drafter, pair.stop_token_ids, drafter_name=pair.drafter_name, attention=PADDED)
