"""Trees searched level by level with a drafter that knows the whole path: a small language model (SpecInfer,
arXiv 2305.09781; Sequoia, arXiv 2402.12374).

Such a drafter has no marginals: what may follow a node depends on all tokens above it, so each level of the
tree takes a pass of its own, over all nodes of the level before that may still have children.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from bastion.trees.draft_tree import DraftTree
from bastion.trees.eagle3_tree import BeamCandidates, grow_reranked
from bastion.trees.sampled import Draw, without

Behind = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""(candidates, their token_ids, parents, depths), all int64 [m], of m candidates of one level; parents counts candidates,
-1 for the root's children. Returns what may follow each: token ids int64 and log-probs [m, k], most probable first."""


@dataclass(frozen=True, slots=True, eq=False)
class LevelCandidates(BeamCandidates):
    """proposals: where children were drawn, what the first child of a tree node was drawn from, (token ids int64 [k],
    probabilities float64 [k]); 0 is the root, c + 1 candidate c. Empty where children were chosen."""

    proposals: Mapping[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)


class LevelSearch(Protocol):
    """What to propose behind the nodes that are looked behind, and behind which nodes to look."""

    tokens: int
    """Tokens wanted behind each node."""
    levels: int
    rows: int
    """Nodes that are looked behind, the root aside, at most."""

    def children(self, level: int, log_probs: np.ndarray) -> np.ndarray:
        """Of m nodes, from log-probs [m, k]: places int64 [m, w] of their children in their order, -1 for none.
        level counts from 0."""

    def parents(self, paths: np.ndarray, newest: int) -> np.ndarray:
        """Which candidates to look behind next: indices int64 not below `newest`, where the newest level begins.
        paths: float64 [C], path log-probs of all candidates so far."""


@dataclass(frozen=True)
class BestPaths:
    """The `nodes` most probable paths. A node is looked behind while it is among them itself, since its children
    cannot be more probable than it is; `beams` bounds how many of a level are."""

    nodes: int
    levels: int
    beams: int

    @property
    def tokens(self) -> int:
        return self.nodes

    @property
    def rows(self) -> int:
        return min(self.beams, self.nodes) * (self.levels - 1)

    def children(self, level: int, log_probs: np.ndarray) -> np.ndarray:
        return _first(log_probs, self.nodes)

    def parents(self, paths: np.ndarray, newest: int) -> np.ndarray:
        best = np.argsort(-paths, kind="stable")[: self.nodes]
        return np.sort(best[best >= newest][: self.beams])


@dataclass(frozen=True)
class PathWidths:
    """SpecInfer's expansion widths: so many children below every node of a depth, the most probable ones, or with
    `draw` ones drawn without replacement from the `tokens` most probable."""

    widths: tuple[int, ...]
    draw: Draw | None = None
    kept: int = 128

    @property
    def tokens(self) -> int:
        return self.kept if self.draw is not None else max(self.widths)

    @property
    def levels(self) -> int:
        return len(self.widths)

    @property
    def rows(self) -> int:
        return int(np.cumprod(self.widths[:-1]).sum())

    def children(self, level: int, log_probs: np.ndarray) -> np.ndarray:
        if self.draw is None:
            return _first(log_probs, self.widths[level])
        places = np.full((len(log_probs), self.widths[level]), -1)
        for row, scores in zip(places, log_probs, strict=True):
            left = shares(scores)
            for rank in range(len(row)):
                if not left.sum():
                    break
                row[rank] = self.draw(left)
                left = without(left, row[rank])
        return places

    def parents(self, paths: np.ndarray, newest: int) -> np.ndarray:
        return np.arange(newest, len(paths))


def _first(log_probs: np.ndarray, width: int) -> np.ndarray:
    """The `width` first places of each row, as `LevelSearch.children` has them."""
    return np.where(np.isfinite(log_probs[:, :width]), np.arange(min(width, log_probs.shape[1])), -1)


def shares(log_probs: np.ndarray) -> np.ndarray:
    """float64 [k]: the probabilities of the tokens kept, made to add up to 1."""
    probabilities = np.exp(log_probs.astype(np.float64) - log_probs.max(initial=-np.inf)) if np.isfinite(log_probs).any() \
        else np.zeros(len(log_probs))
    total = probabilities.sum()
    return probabilities / total if total else probabilities


def search_levels(token_ids: np.ndarray, log_probs: np.ndarray, behind: Behind, search: LevelSearch) -> LevelCandidates:
    """All candidates of a search. token_ids, log_probs: [k], what may follow the root, most probable first; `behind`
    is asked once a level."""
    proposals: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    drawn = getattr(search, "draw", None) is not None
    rows, above = (token_ids[None], log_probs[None]), np.array([-1])
    found = nothing_found()
    for level in range(search.levels):
        newest = len(found)
        ids, scores = rows
        if drawn:
            proposals.update((parent + 1, (row, shares(score))) for parent, row, score in zip(above.tolist(), ids, scores, strict=True))
        places = search.children(level, scores)
        of, ranks = np.nonzero(places >= 0)
        if not len(of):
            break
        chosen = places[of, ranks]
        base = np.append(found.path_log_probs, 0.0)[above]  # a parent of -1 is the root, whose path is certain
        added = (ids[of, chosen], above[of], np.full(len(of), level + 1), ranks, base[of] + scores[of, chosen])
        found = LevelCandidates(*(np.concatenate(both) for both in zip(_columns(found), added, strict=True)), proposals)
        if level + 1 == search.levels:
            break
        above = search.parents(found.path_log_probs, newest)
        if not len(above):
            break
        rows = behind(above, found.token_ids[above], found.parents[above], found.depths[above])
    return found


def _columns(found: LevelCandidates) -> tuple[np.ndarray, ...]:
    return found.token_ids, found.parents, found.depths, found.ranks, found.path_log_probs


def nothing_found() -> LevelCandidates:
    """Where there is no room to draft."""
    return LevelCandidates(*(np.zeros(0, dtype=np.int64) for _ in range(4)), np.zeros(0))


def grow_searched(candidates: LevelCandidates, root_token: int, nodes: int | None, trace: bool = False) -> DraftTree:
    """The tree of the `nodes` most probable candidates (`grow_reranked`), or with None of all of them, as they were found."""
    if nodes is not None:
        return grow_reranked(candidates, root_token, nodes, trace)
    return DraftTree(
        token_ids=np.concatenate(([root_token], candidates.token_ids)), parents=np.concatenate(([-1], candidates.parents + 1)),
        depths=np.concatenate(([0], candidates.depths)), path_log_probs=np.concatenate(([0.0], candidates.path_log_probs)),
        stop_reason="sampled" if candidates.proposals else "widths",
    )


def shallower(search: LevelSearch, deepest: int) -> LevelSearch:
    """The same search where no node may lie deeper than `deepest`."""
    if isinstance(search, PathWidths):
        return replace(search, widths=search.widths[:deepest])
    return replace(search, levels=min(search.levels, deepest))
