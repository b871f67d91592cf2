"""Which trees and contexts a calibration times, how often, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bastion.errors import UserError


@dataclass(frozen=True, slots=True)
class ProbeGrid:
    """nodes: tree sizes, root included; contexts: cached tokens; rounds: visits to each point at most;
    seconds: no round begins later than this, so a busy machine makes a rougher fit, not a longer wait."""

    nodes: tuple[int, ...]
    contexts: tuple[int, ...]
    rounds: int
    seconds: float

    def check(self) -> ProbeGrid:
        """The grid itself; UserError when a fit and its held-out points cannot come of it."""
        if len(set(self.nodes)) < 4 or min(self.nodes) < 1:
            raise UserError("A calibration needs at least four tree sizes, of 1 node or more each.")
        if not self.contexts or min(self.contexts) < 1:
            raise UserError("A calibration needs at least one context of 1 token or more.")
        if self.rounds < 1:
            raise UserError("A calibration visits each point at least once.")
        return self

    def within(self, positions: int) -> ProbeGrid:
        """The same grid with contexts of at most `positions` tokens, each once, ascending."""
        contexts = sorted({max(1, min(context, positions)) for context in self.contexts})
        return replace(self, contexts=tuple(contexts))


QUICK_CONTEXTS, FULL_CONTEXTS = (64, 256, 768), (64, 256, 512, 1024, 2048)

QUICK_CPU = ProbeGrid((1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64), QUICK_CONTEXTS, 7, 20.0)
FULL_CPU = ProbeGrid((1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256), FULL_CONTEXTS, 15, 150.0)
QUICK_GPU = ProbeGrid((1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512), QUICK_CONTEXTS, 7, 20.0)
FULL_GPU = ProbeGrid((1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 320, 384, 448, 512, 768, 1024), FULL_CONTEXTS, 15, 150.0)


def standard_grid(device_type: str, quick: bool) -> ProbeGrid:
    """The grid for "cpu", or for anything else; quick: under a minute on a laptop for a small pair."""
    if device_type == "cpu":
        return QUICK_CPU if quick else FULL_CPU
    return QUICK_GPU if quick else FULL_GPU
