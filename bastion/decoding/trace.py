"""What a step shows beyond its outcome; worked out after the step's clock has stopped."""

from __future__ import annotations

import numpy as np
import torch

from bastion.latency import Calibration, Estimator
from bastion.models.top_k import top_k_log_probs
from bastion.step import Faithfulness, StepTrace
from bastion.trees import DraftMarginals, DraftTree

TARGET_CHOICES = 5
"""The target's own choice at a node and its next four."""


def trace_step(
    tree: DraftTree,
    marginals: DraftMarginals,
    logits: torch.Tensor,
    context: int,
    latency: Estimator | None,
    calibration: Calibration | None,
    faithful: Faithfulness | None = None,
) -> StepTrace:
    """logits [n, vocab] of the verified nodes. latency: what the tree was grown by, before it hears of this step;
    verify times are left empty without it, draft and other time without a calibration."""
    # One pass over the vocabulary serves the choices at every node and the log-prob of every child.
    top_log_probs, top_ids = top_k_log_probs(logits, TARGET_CHOICES)
    target_log_probs = np.full(tree.nodes, np.nan, dtype=np.float32)
    if tree.nodes > 1:
        parents = torch.from_numpy(tree.parents[1:]).to(logits.device)
        tokens = torch.from_numpy(tree.token_ids[1:]).to(logits.device)
        # log-softmax of the child's token = its logit - (the row's best logit - the best's log-prob)
        log_mass = logits.gather(1, top_ids[:, :1])[:, 0].float() - top_log_probs[:, 0]
        target_log_probs[1:] = (logits[parents, tokens].float() - log_mass[parents]).cpu().numpy()
    growth = tree.growth
    predicted = np.zeros(0)
    if latency is not None:
        sizes = np.arange(1, max(tree.nodes, 1 + (len(growth) if growth is not None else 0)) + 1)
        predicted = np.asarray(latency.seconds(sizes, context), dtype=np.float64)
    return StepTrace(
        marginal_token_ids=marginals.token_ids,
        marginal_log_probs=marginals.log_probs.astype(np.float32, copy=False),
        target_log_probs=target_log_probs,
        target_top_ids=top_ids.cpu().numpy(),
        target_top_log_probs=top_log_probs.cpu().numpy(),
        growth=growth,
        predicted_seconds=predicted,
        predicted_draft_seconds=calibration.draft_seconds if calibration else None,
        predicted_other_seconds=calibration.other_seconds if calibration else None,
        faithfulness=faithful,
    )
