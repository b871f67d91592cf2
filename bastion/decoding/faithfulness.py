"""How faithful a step was: the rule's exact distribution of each emitted token against the target's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from bastion.decoding.rules import AcceptanceRule, target_rows
from bastion.decoding.sampling import Sampling
from bastion.step import Faithfulness
from bastion.trees import DraftTree


def faithfulness(rule: AcceptanceRule, tree: DraftTree, logits: torch.Tensor, sampling: Sampling, accepted: np.ndarray,
                 emitted: Sequence[int]) -> Faithfulness | None:
    """At the node that each emitted token was chosen at, over the whole vocabulary; logits [n, vocab].

    None at temperature 0, and for a rule whose trees are drawn: there only the mean over the drawn trees is the target's.
    """
    if sampling.greedy or rule.next_token is None:
        return None
    row = target_rows(logits, sampling)
    found = []
    for node, token in zip(accepted, emitted):   # emitted may be cut before the last accepted node
        target = row(int(node))
        given = rule.next_token(tree, int(node), target)
        found.append((0.5 * np.abs(given - target).sum(), entropy(given), entropy(target), -np.log(target[token])))
    return Faithfulness(*np.array(found, dtype=np.float64).reshape(-1, 4).T)


def entropy(probabilities: np.ndarray) -> float:
    """In nats."""
    some = probabilities[probabilities > 0]
    return float(-(some * np.log(some)).sum()) + 0.0
