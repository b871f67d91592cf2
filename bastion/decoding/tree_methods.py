"""Methods whose trees the drafter searches for itself, and which drafter goes with which method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bastion.errors import UserError
from bastion.latency import Calibration
from bastion.models.registry import Drafter
from bastion.trees import BeamCandidates, DraftMarginals, DraftTree, grow_chain, grow_reranked
from bastion.trees.eagle3_tree import LEVELS, TOP_K

if TYPE_CHECKING:
    from bastion.decoding.protocols import Method
    from bastion.models.pair import Pair


@dataclass(frozen=True)
class Eagle3:
    """EAGLE-3's dynamic tree: `top_k` beams followed `levels` deep, and the `nodes` best of all candidates kept."""

    nodes: int
    levels: int = LEVELS
    top_k: int = TOP_K
    name: str = "eagle3"
    drafts: bool = True
    wants: str = "trees"
    needs_calibration: bool = False
    calibration: None = None

    def calibrated(self, calibration: Calibration) -> Eagle3:
        return self

    def marginals(self, trace: bool) -> int:
        return 0

    def max_nodes(self, depth: int) -> int:
        return self.nodes + 1

    def search(self, deepest: int) -> tuple[int, int]:
        """(levels, beams) to draft where no node may lie deeper than `deepest`.

        No level gives more nodes than the tree has, and none is kept whose parent is not: with fewer
        beams and levels than nodes the same tree comes out as with more.
        """
        return min(self.levels, self.nodes, deepest), min(self.top_k, self.nodes)

    def grow(self, marginals: DraftMarginals, root: int, context: int, trace: bool) -> DraftTree:
        """The root alone, where there is no room to draft."""
        return grow_chain(marginals, root)

    def grow_drafted(self, candidates: BeamCandidates, root: int, trace: bool) -> DraftTree:
        return grow_reranked(candidates, root, self.nodes, trace)


def drafting_pair(method: Method, pair: Pair) -> Pair:
    """The pair with the drafter that this method wants, of those it has. UserError when it has none."""
    if method.drafts:
        pair = pair.drafted_by(getattr(method, "wants", "marginals"))
    check_drafter(method, pair.drafter)
    return pair


def check_drafter(method: Method, drafter: Drafter | None) -> None:
    """UserError when the method needs a drafter and this one is none or gives something else."""
    if not method.drafts:
        return
    wants = getattr(method, "wants", "marginals")
    if drafter is not None and wants == drafter.gives:
        return
    if wants == "levels":
        raise UserError(f"The method {method.name} needs a small language model that shares the target's tokenizer, and this pair has "
                        "none; name one with --small-lm (load_pair(small_lm=...)).")
    if drafter is None:
        raise UserError(f"The method {method.name} needs a drafter and this pair has none; use ar, or load a drafter.")
    if drafter.gives == "levels":
        raise UserError(f"The method {method.name} has no use for a small language model, which is this pair's drafter; use small-lm:N, "
                        "ngram:N or ar, or load another drafter.")
    if wants == "trees":
        raise UserError(f"The method {method.name} needs an EAGLE-3 head, and this pair's {drafter.kind} drafter gives marginals, no trees; "
                        "use bastion, dflash or ddtree:N, or load an EAGLE-3 head.")
    raise UserError(f"The method {method.name} grows its tree from marginals, and this pair's {drafter.kind} drafter gives trees of its own; "
                    "use eagle3:N, ngram:N or ar, or load a DFlash drafter.")
