"""The acceptance rules and their registry: which drafted tokens the target keeps, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from bastion.decoding.acceptance import accept, walk
from bastion.decoding.methods import Method
from bastion.decoding.sampled_acceptance import Proposals, TargetRow, block, multi_round
from bastion.decoding.sampling import Draws, Sampling
from bastion.errors import UserError
from bastion.models.top_k import best_token
from bastion.trees import DraftMarginals, DraftTree
from bastion.trees.level_search import LevelCandidates
from bastion.trees.sampled import proposal

Chosen = Callable[[DraftTree, torch.Tensor, Sampling, Draws], tuple[np.ndarray, int]]
"""(tree, logits [n, vocab], sampling, draws) -> (accepted nodes int64 [a], bonus)."""
Drawn = Callable[[DraftTree, Proposals, TargetRow, Draws], tuple[np.ndarray, int]]


@dataclass(frozen=True, slots=True)
class AcceptanceRule:
    """One rule. `chosen` judges trees that a method chose; `drawn` trees whose children were drawn from the
    marginals, which a rule has instead; chain: only trees without branches."""

    summary: str
    chosen: Chosen | None = None
    drawn: Drawn | None = None
    chain: bool = False
    lossless: bool = True


def _argmax_walk(tree: DraftTree, logits: torch.Tensor, sampling: Sampling, draws: Draws) -> tuple[np.ndarray, int]:
    """What the paper's released code does: walk where the target's most probable token leads, and draw only the
    bonus token. Above temperature 0 this is not the target's distribution."""
    path, bonus = walk(tree, lambda node: best_token(logits[node]))
    return path, bonus if sampling.greedy else sampling.choose(logits[path[-1]], draws)


ACCEPTANCE: dict[str, AcceptanceRule] = {
    "walk": AcceptanceRule("follow the target's own choice at each node, for children that were chosen", chosen=accept),
    "multi-round": AcceptanceRule("speculative sampling over children drawn without replacement, child by child", drawn=multi_round),
    "block": AcceptanceRule("one drawn path, judged as a block", drawn=block, chain=True),
    "reference-argmax": AcceptanceRule("the published code's walk along the argmax; not lossless above temperature 0",
                                       chosen=_argmax_walk, lossless=False),
}


def resolve_rule(name: str, method: Method, sampling: Sampling) -> AcceptanceRule:
    """The rule that judges `method`'s trees; at temperature 0 all rules are the walk. Raises UserError."""
    rule = ACCEPTANCE.get(name)
    if rule is None:
        raise UserError(f"There is no acceptance rule {name!r}; choose one of {', '.join(ACCEPTANCE)}.")
    if sampling.greedy or (not method.needs_calibration and method.max_nodes(1) == 1):  # one choice, or nothing to choose from
        return ACCEPTANCE["walk"]
    if rule.drawn is not None:
        shape = getattr(method, "shape", None)
        if shape is None:
            raise UserError(f"The rule {name} is for trees whose children are drawn: use it with dflash, specinfer, sequoia or small-lm with widths, "
                            f"or leave {method.name} to the rule walk.")
        if rule.chain and (np.bincount(shape(8).parents[1:]) > 1).any():
            raise UserError(f"The rule {name} is for one path: use it with dflash, or the rule multi-round with {method.name}.")
    return rule


def proposals_of(tree: DraftTree, drafted: DraftMarginals | LevelCandidates, vocab: int) -> Proposals:
    """node -> float64 [vocab]: what the first of its children was drawn from."""
    if isinstance(drafted, LevelCandidates):
        def of_node(node: int) -> np.ndarray:
            row = np.zeros(vocab)
            ids, probabilities = drafted.proposals[node]
            row[ids] = probabilities
            return row
        return of_node
    by_depth = _by_depth(drafted, vocab)
    return lambda node: by_depth[int(tree.depths[node])]


def _by_depth(marginals: DraftMarginals, vocab: int) -> list[np.ndarray]:
    dense = [np.zeros(vocab) for _ in range(marginals.depth)]
    for depth, row in enumerate(dense, start=1):
        row[marginals.token_ids[depth - 1]] = proposal(marginals, depth)
    return dense


def target_rows(logits: torch.Tensor, sampling: Sampling) -> TargetRow:
    """The target's processed distribution behind a node, float64 [vocab]; each made when it is asked for."""
    def row(node: int) -> np.ndarray:
        ids, probabilities = sampling.distribution(logits[node])
        if ids is None:
            return probabilities.cpu().numpy()
        dense = np.zeros(logits.shape[-1])
        dense[ids.cpu().numpy()] = probabilities.cpu().numpy()
        return dense
    return row
