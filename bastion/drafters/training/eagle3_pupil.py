"""An EAGLE-3 head in training: its batches, its loss and how its acceptance is measured."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import torch
from torch.nn import functional as F

from bastion.drafters.eagle3 import Eagle3Model
from bastion.drafters.eagle3_drafter import Eagle3Drafter
from bastion.drafters.eagle3_weights import save_eagle3
from bastion.drafters.training.batches import choose_anchors
from bastion.drafters.training.eagle3_replay import acceptance
from bastion.drafters.training.eagle3_unroll import UnrolledBatch, assemble_unrolled, unroll
from bastion.drafters.training.loss import depth_weights
from bastion.drafters.training.shards import Dialogue
from bastion.drafters.training.soft_labels import Tail
from bastion.models.quick_modules import quicken
from bastion.models.target import Target


class Eagle3Pupil:
    """`targets` int64 [draft vocabulary]: the target's ids of the head's own. tail: gives the target's distributions; without one the
    loss is on the tokens alone. hard: the token's share of the label, the rest is the target's distribution.

    What decides at temperature 0 is the target's first token, and its distribution says more about the others.
    """

    def __init__(self, model: Eagle3Model, target: Target, targets: torch.Tensor, tail: Tail | None, steps: int = 4,
                 anchors: int = 64, decay: float = 4.0, hard: float = 0.5):
        self.module, self.target, self.targets, self.tail = model, target, targets, tail
        self.steps, self.anchors, self.hard = steps, anchors, hard if tail is not None else 1.0
        self.width, self.layer_ids = model.config.hidden_size, model.config.feature_layer_ids
        self.weights = depth_weights(steps, decay)
        self.own_ids = torch.full((target.vocab_size,), -1)
        self.own_ids[targets] = torch.arange(len(targets))
        self.embedding = target.embedding.weight.detach()
        self.head = target.head.weight.detach()[targets.to(target.device)]

    def prepare(self, dialogues: list[Dialogue], seed: int) -> UnrolledBatch:
        rng = random.Random(seed)
        return assemble_unrolled(dialogues, [choose_anchors(d, self.anchors, rng) for d in dialogues], self.steps)

    def positions(self, batch: UnrolledBatch) -> int:
        return int((batch.labels >= 0).sum())

    def loss(self, batch: UnrolledBatch, dtype: torch.dtype, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss of one batch, and the share of right first guesses at each step."""
        labels = torch.where(batch.labels >= 0, self.own_ids[batch.labels], -1).to(self.embedding.device)
        soft = None if self.hard == 1.0 else self.distributions(batch, dtype)
        outputs = unroll(self.module, self.embedding, batch, dtype)
        total, weight, shares = 0.0, 0.0, []
        for step, output in enumerate(outputs):
            known = labels[:, :, step] >= 0
            logits = self.module.logits(output[known]).float()
            wanted = labels[:, :, step][known]
            if soft is None:
                each = F.cross_entropy(logits, wanted, reduction="none")
            else:
                probs, at = soft
                aim = probs[at[:, :, step][known]] * (1 - self.hard)
                each = F.cross_entropy(logits, aim.scatter_add_(1, wanted[:, None], torch.full_like(aim[:, :1], self.hard)), reduction="none")
            total = total + self.weights[step] * each.sum()
            weight = weight + self.weights[step] * len(each)
            few = slice(0, 256)  # enough for the log
            shares.append((logits[few].detach().argmax(-1) == wanted[few]).float().mean().cpu())
        return total / max(weight, 1e-9), torch.stack(shares)

    @torch.no_grad()
    def distributions(self, batch: UnrolledBatch, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """The target's distribution over the draft vocabulary behind every token that a label follows: float32
        [rows, draft vocabulary], and int64 [b, A, S], the row of each label (0 where none is)."""
        width = self.embedding.shape[1]
        hidden = self.tail(batch.context[:, :, -width:].to(self.embedding.device, dtype))
        before = batch.anchors[:, :, None] + torch.arange(self.steps)
        flat = before + torch.arange(len(before))[:, None, None] * batch.context.shape[1]
        flat = torch.where(batch.labels >= 0, flat, 0)
        rows, at = flat.unique(return_inverse=True)
        logits = hidden.flatten(0, 1)[rows.to(hidden.device)] @ self.head.to(hidden.dtype).t()
        return logits.float().softmax(-1), at.to(hidden.device)

    def acceptance(self, dialogues: list[Dialogue], dtype: torch.dtype, sizes: tuple[int, ...]) -> dict[int, float]:
        """tau for each tree size, through the session that decoding uses."""
        model = quicken(copy.deepcopy(self.module).to(dtype).eval().requires_grad_(False))
        return acceptance(Eagle3Drafter(model, self.target, self.targets), dialogues, sizes)

    def save(self, folder: Path) -> None:
        save_eagle3(self.module, self.targets, folder)
