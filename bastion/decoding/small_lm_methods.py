"""Trees that a small language model drafts: the N most probable paths, or SpecInfer's expansion widths."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bastion.drafters.small_lm import LEVELS
from bastion.errors import UserError
from bastion.latency import Calibration
from bastion.trees import DraftMarginals, DraftTree, TreeShape, grow_chain, width_shape
from bastion.trees.level_search import BestPaths, LevelCandidates, LevelSearch, PathWidths, grow_searched, shallower
from bastion.trees.sampled import Draw

BEAMS = 16
"""Nodes of one level that are looked behind, at most."""
LARGEST = 8192


@dataclass(frozen=True)
class SmallLm:
    """`nodes`: the N most probable paths the small model finds, `levels` deep at most. `widths`: so many children
    below every node of a depth; these can be drawn as well as chosen."""

    nodes: int | None = None
    widths: tuple[int, ...] = ()
    levels: int = LEVELS
    beams: int = BEAMS
    name: str = "small-lm"
    drafts: bool = True
    wants: str = "levels"
    needs_calibration: bool = False
    calibration: None = None
    latency: None = None

    def calibrated(self, calibration: Calibration) -> SmallLm:
        return self

    def marginals(self, trace: bool) -> int:
        return 0

    def max_nodes(self, depth: int) -> int:
        return self.nodes + 1 if self.nodes is not None else width_shape(self.widths).nodes

    def search(self, deepest: int, draw: Draw | None = None) -> tuple[LevelSearch]:
        """What to search where no node may lie deeper than `deepest`; draw: children are drawn by it, not chosen."""
        whole = BestPaths(self.nodes, min(self.levels, self.nodes), self.beams) if self.nodes is not None else PathWidths(self.widths, draw)
        return (shallower(whole, deepest),)

    def grow(self, marginals: DraftMarginals, root: int, context: int, trace: bool) -> DraftTree:
        """The root alone, where there is no room to draft."""
        return grow_chain(marginals, root)

    def grow_drafted(self, candidates: LevelCandidates, root: int, trace: bool) -> DraftTree:
        return grow_searched(candidates, root, self.nodes, trace)


@dataclass(frozen=True)
class SmallLmWidths(SmallLm):
    """The form with widths, whose shape is known beforehand."""

    def shape(self, depth: int) -> TreeShape:
        return width_shape(self.widths)


def small_lm(argument: str | None) -> SmallLm:
    """`N` or `a,b,c`. UserError for anything else."""
    parts = [part.strip() for part in (argument or "").split(",")]
    if not all(re.fullmatch(r"\d{1,4}", part) and int(part) for part in parts) or (len(parts) == 1 and int(parts[0]) >= LARGEST):
        raise UserError("Write the method small-lm with its number of nodes, 1 to 8191, such as small-lm:16, or with the number of "
                        "children at each depth, such as small-lm:4,2,2,1.")
    if len(parts) == 1:
        return SmallLm(int(parts[0]), name=f"small-lm:{int(parts[0])}")
    widths = tuple(map(int, parts))
    nodes = level = 1
    for width in widths:
        level *= width
        nodes += level
    if nodes > LARGEST:
        raise UserError(f"small-lm:{argument} is a tree of {nodes} nodes; ask for {LARGEST} at most.")
    return SmallLmWidths(widths=widths, name="small-lm:" + ",".join(map(str, widths)))
