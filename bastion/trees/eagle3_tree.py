"""EAGLE-3's dynamic tree: beams drafted level by level, then the best of all that competed (arXiv 2503.01840;
EAGLE-2, arXiv 2406.16858, sections 4.1 and 4.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bastion.step import GrowthLog
from bastion.trees.best_first import PAST_THE_STOP
from bastion.trees.draft_tree import DraftTree

TOP_K, LEVELS = 10, 8
"""Beams, and how deep they are followed. EAGLE-3's own defaults: `top_k` 10 and `depth` 7, the levels below
the first (`EaModel.from_pretrained` in SafeAILab/EAGLE; its total_token 60 is a tree of 59 drafted nodes)."""


@dataclass(frozen=True, slots=True, eq=False)
class BeamCandidates:
    """Everything a drafter proposed that drafts a level at a time: C tokens, parents before children.

    token_ids, parents, depths, ranks: int64 [C]; parents counts candidates, -1 for a child of the root;
    ranks is the place among its siblings, 0 for the most probable. path_log_probs: float64 [C].
    """

    token_ids: np.ndarray
    parents: np.ndarray
    depths: np.ndarray
    ranks: np.ndarray
    path_log_probs: np.ndarray

    def __len__(self) -> int:
        return len(self.token_ids)


def beam_candidates(first_tokens: np.ndarray, first_scores: np.ndarray, tokens: np.ndarray, scores: np.ndarray,
                    beams: np.ndarray) -> BeamCandidates:
    """The candidates of a search of k beams.

    first_tokens, first_scores: [k], the children of the root, most probable first; all k are the first
    beams. tokens, scores: [levels, k, k], row b the children of beam b with their path log-probs. beams
    int64 [levels, k]: which of a level's k * k children, counted row by row, are the beams of the next.
    """
    levels, k = beams.shape
    above = [np.full(k, -1, dtype=np.int64)]
    first = np.arange(k)  # candidates that are the beams of the level at hand
    for level in range(levels):
        above.append(np.repeat(first, k))
        first = k + level * k * k + beams[level]
    return BeamCandidates(
        token_ids=np.concatenate((first_tokens, tokens.ravel())).astype(np.int64),
        parents=np.concatenate(above),
        depths=np.concatenate((np.ones(k, np.int64), np.repeat(np.arange(2, levels + 2), k * k))),
        ranks=np.concatenate((np.arange(k), np.tile(np.arange(k), levels * k))),
        path_log_probs=np.concatenate((first_scores, scores.ravel())).astype(np.float64),
    )


def grow_reranked(candidates: BeamCandidates, root_token: int, nodes: int, trace: bool = False) -> DraftTree:
    """The `nodes` most probable candidates beside the root, most probable first.

    A child is never more probable than its parent, and of equals the one drafted first is taken, so
    what is taken is a tree, and its first n nodes are the tree of n. (The published code puts the same
    nodes back into the order in which they were drafted.) `tree.growth` logs them, and with `trace` the
    64 best of those that competed and were not taken.
    """
    order = np.argsort(-candidates.path_log_probs, kind="stable")
    order = order[np.isfinite(candidates.path_log_probs[order])]
    taken = order[:nodes]

    def log() -> GrowthLog:
        return _growth_log(candidates, order[:nodes + PAST_THE_STOP] if trace else taken, len(taken))

    return DraftTree(
        token_ids=np.concatenate(([root_token], candidates.token_ids[taken])),
        parents=np.concatenate(([-1], _renumbered(candidates, taken))),
        depths=np.concatenate(([0], candidates.depths[taken])),
        path_log_probs=np.concatenate(([0.0], candidates.path_log_probs[taken])),
        stop_reason="fixed budget" if len(taken) == nodes else "exhausted",
        grow_log=log,
    )


def _renumbered(candidates: BeamCandidates, chosen: np.ndarray) -> np.ndarray:
    """int64: place of each chosen candidate's parent among them, counted from 1; 0 for the root."""
    number = np.zeros(len(candidates) + 1, dtype=np.int64)  # the last entry is read by parents of -1
    number[chosen] = np.arange(1, len(chosen) + 1)
    return number[candidates.parents[chosen]]


def _growth_log(candidates: BeamCandidates, logged: np.ndarray, bought: int) -> GrowthLog:
    numbers = np.arange(len(logged))
    nothing = np.full(len(logged), np.nan)
    return GrowthLog(
        token_ids=candidates.token_ids[logged],
        parents=_renumbered(candidates, logged),
        depths=candidates.depths[logged],
        ranks=candidates.ranks[logged],
        path_log_probs=candidates.path_log_probs[logged],
        gains=nothing,
        prices=nothing,
        bought=numbers < bought,
        dropped=np.zeros(len(logged), dtype=bool),
    )
