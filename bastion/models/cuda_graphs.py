"""Capture of a piece of work of fixed shapes as a CUDA graph, and its replay. The one place that needs CUDA for it.

A graph holds the kernels and the addresses they read and write: one launch in place of a thousand.
Work that is captured reads its inputs from tensors that stay, never asks the device for a value, and
returns the same tensors at every replay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

log = logging.getLogger(__name__)

Outputs = TypeVar("Outputs")
WARM_UPS = 2
"""Runs before a capture: libraries choose their kernels and allocate workspaces then."""


class CapturedWork(Generic[Outputs]):
    """`replay()` does the work again, asynchronously, and returns its outputs: the same tensors, overwritten."""

    def __init__(self, graph: torch.cuda.CUDAGraph, outputs: Outputs):
        self.graph, self.outputs = graph, outputs

    def replay(self) -> Outputs:
        self.graph.replay()
        return self.outputs


class GraphMaker:
    """Captures on one device. Its graphs share a memory pool for what they need within, since only one runs at a time;
    outputs are each graph's own for as long as it lives."""

    def __init__(self, device: torch.device):
        self.device = device
        self.pool = torch.cuda.graph_pool_handle()

    @torch.inference_mode()
    def capture(self, work: Callable[[], Outputs]) -> CapturedWork[Outputs]:
        """Runs `work` WARM_UPS times, then records it. torch.OutOfMemoryError when its outputs do not fit."""
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                work()
        torch.cuda.current_stream(self.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            outputs = work()
        return CapturedWork(graph, outputs)


class Work(Generic[Outputs]):
    """A piece of work of fixed shapes: `run` does it operator by operator; `rest` makes its inputs such that doing it
    again harms nothing."""

    def __init__(self, name: str, run: Callable[[], Outputs], rest: Callable[[], None]):
        self.name, self.run, self.rest = name, run, rest
        self.captured: CapturedWork[Outputs] | None = None
        self.seen = False


class Works:
    """Does pieces of work, each operator by operator at first, and as a graph once `settle` has captured it.

    maker None: there are no graphs here, and nothing is ever captured.
    """

    def __init__(self, maker: GraphMaker | None):
        self.maker = maker
        self._waiting: list[Work] = []

    def do(self, work: Work[Outputs]) -> Outputs:
        if work.captured is not None:
            return work.captured.replay()
        if self.maker is not None and not work.seen:
            self._waiting.append(work)
        work.seen = True
        return work.run()

    @torch.inference_mode()
    def settle(self) -> None:
        """Capture what was done for the first time. It takes as long as several steps, so outside of a step's clock.
        What does not fit into memory goes on operator by operator, which is logged."""
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            work.rest()
            try:
                work.captured = self.maker.capture(work.run)
            except torch.OutOfMemoryError:
                log.warning("There is no memory for a graph of %s; it goes on operator by operator, which is slower.", work.name)


def graph_maker(device: torch.device) -> GraphMaker | None:
    """None where there are no CUDA graphs."""
    return GraphMaker(device) if device.type == "cuda" else None
