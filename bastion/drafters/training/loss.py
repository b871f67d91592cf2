"""Cross-entropy over a part of the vocabulary, weighted by depth.

The head over all ids costs more than the drafter itself. The loss sees the batch's own labels,
the most frequent ids and a random sample of the rest; the sample's logits are raised by
log(1 / inclusion probability), so that the normaliser stays unbiased.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F


def depth_weights(depth: int, decay: float = 4.0) -> torch.Tensor:
    """exp(-(k - 1) / decay) for k = 1..depth: a token counts only where all before it were right."""
    return torch.exp(-torch.arange(depth) / decay)


class SampledVocabulary:
    """Chooses the ids that a batch's loss runs over.

    counts: int64 [vocab], how often each id occurs in the training answers.
    """

    def __init__(self, counts: torch.Tensor, frequent: int = 4096, sampled: int = 768, seed: int = 0):
        order = counts.argsort(descending=True)
        self.size = len(counts)
        self.frequent, self.rest = order[:frequent], order[frequent:]
        self.sampled = min(sampled, len(self.rest))
        self.generator = torch.Generator().manual_seed(seed)

    def choose(self, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """labels int64 [m] -> ids [s], correction of their logits [s], labels as indices into ids [m]."""
        known = torch.zeros(self.size, dtype=torch.bool)
        known[self.frequent] = True
        known[labels] = True
        certain = known.nonzero().squeeze(-1)
        correction = torch.zeros(len(certain))
        if self.sampled:
            drawn = self.rest[torch.randint(len(self.rest), (self.sampled,), generator=self.generator)].unique()
            drawn = drawn[~known[drawn]]
            certain = torch.cat((certain, drawn))
            raised = math.log(max(1.0, len(self.rest) / max(1, len(drawn))))
            correction = torch.cat((correction, torch.full((len(drawn),), raised)))
        where = torch.empty(self.size, dtype=torch.long)
        where[certain] = torch.arange(len(certain))
        return certain, correction, where[labels]


def draft_loss(
    hidden: torch.Tensor, labels: torch.Tensor, head: torch.Tensor, vocabulary: SampledVocabulary, weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of one batch and the share of right first guesses per depth (for the log).

    hidden [b, A, depth, h], labels int64 [b, A, depth] with -1 for none, head [vocab, h].
    """
    depth = labels.shape[-1]
    present = labels >= 0
    ids, correction, local = vocabulary.choose(labels[present].cpu())
    logits = hidden[present] @ head[ids.to(head.device)].t()
    logits = logits.float() + correction.to(logits.device)
    local = local.to(logits.device)
    each = F.cross_entropy(logits, local, reduction="none")
    weight = weights.to(each.device).expand(labels.shape)[present]
    right = torch.zeros(labels.shape, device=each.device)
    right[present] = (logits.argmax(-1) == local).float()
    shares = right.view(-1, depth).sum(0) / present.view(-1, depth).sum(0).clamp_min(1)
    return (each * weight).sum() / weight.sum(), shares.detach()
