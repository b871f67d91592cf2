"""Where compute overtakes memory: the tree size from which arithmetic, no longer reading, sets the time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bastion.latency.roofline import CalibratedRoofline


@dataclass(frozen=True, slots=True)
class Crossover:
    """At one context, over trees of 1 to `most` nodes.

    nodes: the first size whose compute branch is the slower one while one node less was held up by
    memory; None when there is no such size. from_first: compute is the slower branch already at one
    node. last: the last size of that run of compute-bound sizes, `most` unless memory is slower again
    beyond it (its attention scores grow with the square of the nodes).
    """

    context: int
    most: int
    nodes: int | None
    from_first: bool
    last: int


def crossover(roofline: CalibratedRoofline, context: int, most: int) -> Crossover:
    """The crossover of `roofline` at `context` cached tokens, within 1..most nodes (what was probed)."""
    compute = np.asarray(roofline.compute_bound(np.arange(1, most + 1), context), dtype=bool)
    rises = np.flatnonzero(~compute[:-1] & compute[1:]) + 1   # places in `compute`; place p is p + 1 nodes
    begun = 0 if not len(rises) and compute[0] else int(rises[0]) if len(rises) else None
    if begun is None:
        return Crossover(context, most, None, False, most)
    falls = np.flatnonzero(~compute[begun:])
    last = begun + int(falls[0]) if len(falls) else most
    return Crossover(context, most, begun + 1 if len(rises) else None, bool(compute[0]), last)
