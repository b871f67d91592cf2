"""Trees whose children are drawn from the drafter's marginals, not chosen: what SpecInfer and Sequoia verify above temperature 0."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bastion.trees.draft_tree import DraftTree
from bastion.trees.marginals import DraftMarginals
from bastion.trees.static import TreeShape

Draw = Callable[[np.ndarray], int]
"""Takes probabilities float64 [m] that add up to 1 and returns one index by them."""


def proposal(marginals: DraftMarginals, depth: int) -> np.ndarray:
    """float64 [k]: what a child at `depth` (from 1) is drawn from: the marginal over the tokens kept, made to add up to 1."""
    log_probs = marginals.log_probs[depth - 1].astype(np.float64)
    probabilities = np.exp(log_probs - log_probs.max(initial=-np.inf)) if np.isfinite(log_probs).any() else np.zeros(len(log_probs))
    return probabilities / probabilities.sum() if probabilities.sum() else probabilities


def grow_sampled(marginals: DraftMarginals, root_token: int, shape: TreeShape, draw: Draw, reason: str = "sampled") -> DraftTree:
    """As many children at each node as `shape` has there, drawn without replacement in the order they stand.

    Where the marginal has fewer tokens than children are asked for, and below the drafter's depth, the
    rest of the shape is left out.
    """
    tokens, parents, depths, paths = [root_token], [-1], [0], [0.0]
    place = {0: 0}
    left: dict[int, np.ndarray] = {}  # by shape node: what its next child is drawn from
    for node in range(1, shape.nodes):
        above, depth = int(shape.parents[node]), int(shape.depths[node])
        if above not in place or depth > marginals.depth or not marginals.k:
            continue
        if above not in left:
            left[above] = proposal(marginals, depth)
        if not left[above].sum():
            continue
        index = draw(left[above])
        place[node] = len(tokens)
        tokens.append(int(marginals.token_ids[depth - 1, index]))
        parents.append(place[above])
        depths.append(depth)
        paths.append(paths[place[above]] + float(marginals.log_probs[depth - 1, index]))
        left[above] = without(left[above], index)
    return DraftTree(
        token_ids=np.array(tokens, dtype=np.int64), parents=np.array(parents, dtype=np.int64),
        depths=np.array(depths, dtype=np.int64), path_log_probs=np.array(paths), stop_reason=reason)


def without(probabilities: np.ndarray, index: int) -> np.ndarray:
    """The distribution of the next draw without replacement; zeros when nothing is left."""
    rest = probabilities.copy()
    rest[index] = 0.0
    total = rest.sum()
    return rest / total if total > 0 else np.zeros_like(rest)
