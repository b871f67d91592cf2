"""Decoding replayed on an answer that is known: what a method would accept, without the target.

At temperature 0 the text is the target's greedy answer whatever the method, and what the drafter proposes
depends on the text alone. So the target answers once, the drafter drafts once behind every token, and each
method's trees are then grown and walked against the answer: the same trees, the same steps and the same
tau as in decoding, without its cost. Not for methods that learn from measured times (`bastion@ema`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bastion.decoding.methods import NO_MARGINALS
from bastion.decoding.protocols import Method
from bastion.drafters.lookup import NgramLookup
from bastion.models.pair import Pair
from bastion.trees import DraftMarginals, DraftTree


@dataclass(frozen=True, slots=True, eq=False)
class KnownAnswer:
    """A greedy answer, and the drafter's marginals with each token of it as the root.

    answer: n token ids, the first of which the prefill emits. ids, log_probs [n - 1, depth, k]: row i was
    drafted behind answer[i]; the last token is never a root.
    """

    prompt_ids: list[int]
    answer: list[int]
    ids: np.ndarray
    log_probs: np.ndarray

    def marginals(self, place: int, wanted: int, deepest: int) -> DraftMarginals:
        """The `wanted` most probable tokens of each depth behind answer[place]."""
        return DraftMarginals(self.ids[place, :deepest, :wanted].astype(np.int64), self.log_probs[place, :deepest, :wanted])


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """One row for each decode step: nodes verified (root included), tokens emitted, surrogate. All [steps]."""

    nodes: np.ndarray
    emitted: np.ndarray
    surrogates: np.ndarray


@torch.inference_mode()
def draft_behind_each(pair: Pair, prompt_ids: Sequence[int], answer: Sequence[int], features: torch.Tensor, k: int) -> KnownAnswer:
    """Draft with every token of the answer as root. features [1, prompt + answer - 1, f]: the target's, over the text."""
    session = pair.drafter.start(len(prompt_ids) + len(answer))
    ids, log_probs, first = [], [], 0
    for place in range(len(answer) - 1):
        behind = len(prompt_ids) + place
        drafted, values = session.draft(features[:, first:behind], answer[place], k)
        ids.append(drafted.astype(np.int32))
        log_probs.append(values)
        first = behind
    shape = (0, pair.drafter.depth, k)
    return KnownAnswer(list(prompt_ids), list(answer), np.stack(ids) if ids else np.zeros(shape, dtype=np.int32),
                       np.stack(log_probs) if ids else np.zeros(shape, dtype=np.float32))


def replay(method: Method, known: KnownAnswer, position_limit: int = 1 << 30) -> Replayed:
    """The decode steps of `method`, calibrated where it needs that, on a known answer."""
    lookup_tokens = getattr(method, "lookup_tokens", 0)
    lookup = NgramLookup(known.prompt_ids, lookup_tokens) if lookup_tokens else None
    if lookup is not None:
        lookup.observe(known.answer[:1])
    place, nodes, emitted, surrogates = 0, [], [], []
    while place < len(known.answer) - 1:
        context, root = len(known.prompt_ids) + place, known.answer[place]
        deepest = max(0, position_limit - context - 2)
        marginals = known.marginals(place, method.marginals(False), deepest) if method.drafts and deepest else NO_MARGINALS
        if lookup is None:
            tree = method.grow(marginals, root, context, False)
        else:
            tree = method.grow_with(lookup.propose(marginals), marginals, root, context, deepest, False)
        count = min(walk(tree, known.answer[place + 1 :]) + 1, len(known.answer) - 1 - place)
        nodes.append(tree.nodes)
        surrogates.append(tree.surrogate)
        emitted.append(count)
        if lookup is not None:
            lookup.observe(known.answer[place + 1 : place + 1 + count])
        place += count
    return Replayed(np.array(nodes, dtype=np.int64), np.array(emitted, dtype=np.int64), np.array(surrogates))


def walk(tree: DraftTree, following: Sequence[int]) -> int:
    """How many of the tokens that follow the root the tree holds as a path from it."""
    children = {(int(parent), int(token)): node for node, (parent, token) in enumerate(zip(tree.parents, tree.token_ids, strict=True))}
    node, count = 0, 0
    for token in following:
        node = children.get((node, int(token)), -1)
        if node < 0:
            break
        count += 1
    return count
