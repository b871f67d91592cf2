"""Draft trees and the ways to grow one. numpy only.

Terms: the drafter gives a marginal distribution per depth; a path's probability is the product of
its marginals; best-first growth adds the most probable remaining path until a budget says stop
(BASTION, arXiv 2605.29727; the fixed-size case is DDTree).
"""

from bastion.trees.beam import grow_beam
from bastion.trees.best_first import grow_best_first
from bastion.trees.budgets import AdaptiveBudget, Budget, FixedBudget
from bastion.trees.chain import grow_chain
from bastion.trees.draft_tree import DraftTree
from bastion.trees.eagle3_tree import BeamCandidates, grow_reranked
from bastion.trees.grafted import Graft, grow_grafted
from bastion.trees.marginals import DraftMarginals
from bastion.trees.sampled import grow_sampled
from bastion.trees.sequoia import sequoia_shape
from bastion.trees.static import TreeShape, grow_static, width_shape

__all__ = [
    "AdaptiveBudget",
    "BeamCandidates",
    "Budget",
    "DraftMarginals",
    "DraftTree",
    "FixedBudget",
    "Graft",
    "TreeShape",
    "grow_beam",
    "grow_best_first",
    "grow_chain",
    "grow_grafted",
    "grow_reranked",
    "grow_sampled",
    "grow_static",
    "sequoia_shape",
    "width_shape",
]
