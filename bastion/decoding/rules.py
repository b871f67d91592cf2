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

NextToken = Callable[[DraftTree, int, np.ndarray], np.ndarray]
"""(tree, node, the target's distribution behind it float64 [vocab]) -> the rule's distribution of the next token [vocab]."""


@dataclass(frozen=True, slots=True)
class AcceptanceRule:
    """One rule. `chosen` judges trees that a method chose; `drawn` trees whose children were drawn from the
    marginals, which a rule has instead; chain: only trees without branches. `next_token`: what a rule for chosen
    trees makes of the target's distribution at a node it visits; with drawn trees that depends on the draw."""

    summary: str
    chosen: Chosen | None = None
    next_token: NextToken | None = None
    drawn: Drawn | None = None
    chain: bool = False
    lossless: bool = True


def _argmax_walk(tree: DraftTree, logits: torch.Tensor, sampling: Sampling, draws: Draws) -> tuple[np.ndarray, int]:
    """What the paper's released code does: walk where the target's most probable token leads, and draw only the
    bonus token. Above temperature 0 this is not the target's distribution."""
    path, bonus = walk(tree, lambda node: best_token(logits[node]))
    return path, bonus if sampling.greedy else sampling.choose(logits[path[-1]], draws)


def _targets_own(tree: DraftTree, node: int, target: np.ndarray) -> np.ndarray:
    return target


def _argmax_if_drafted(tree: DraftTree, node: int, target: np.ndarray) -> np.ndarray:
    """All mass on the most probable token where a child carries it; elsewhere the bonus is drawn from the target."""
    best = int(target.argmax())
    if best not in tree.token_ids[tree.children(node)]:
        return target
    certain = np.zeros_like(target)
    certain[best] = 1.0
    return certain


ACCEPTANCE: dict[str, AcceptanceRule] = {
    "walk": AcceptanceRule("follow the target's own choice at each node, for children that were chosen", chosen=accept, next_token=_targets_own),
    "multi-round": AcceptanceRule("speculative sampling over children drawn without replacement, child by child", drawn=multi_round),
    "block": AcceptanceRule("one drawn path, judged as a block", drawn=block, chain=True),
    "reference-argmax": AcceptanceRule("the published code's walk along the argmax; not lossless above temperature 0",
                                       chosen=_argmax_walk, next_token=_argmax_if_drafted, lossless=False),
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


def fitting_rules(method: Method) -> tuple[str, ...]:
    """Names of the rules that can judge `method`'s trees above temperature 0, its own first."""
    if hasattr(method, "told") or (not method.needs_calibration and method.max_nodes(1) == 1):
        return ("walk",)
    shape = getattr(method, "shape", None)
    chain = shape is not None and not hasattr(method, "with_rates") and not (np.bincount(shape(8).parents[1:]) > 1).any()
    return tuple(name for name, rule in ACCEPTANCE.items() if rule.drawn is None or (shape is not None and (chain or not rule.chain)))


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
