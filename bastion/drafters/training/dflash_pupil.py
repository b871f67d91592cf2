"""A DFlash drafter in training: its batches, its loss and how its acceptance is measured."""

from __future__ import annotations

import random
from pathlib import Path

import torch

from bastion.drafters.dflash import DFlashDraftModel, save_dflash
from bastion.drafters.training.batches import Batch, assemble, choose_anchors
from bastion.drafters.training.evaluate import acceptance
from bastion.drafters.training.loss import SampledVocabulary, depth_weights, draft_loss
from bastion.drafters.training.shards import Dialogue


class DFlashPupil:
    """embedding, head: the target's, [vocab, h], frozen. counts int64 [vocab]: how often each id is in the answers."""

    def __init__(self, drafter: DFlashDraftModel, embedding: torch.Tensor, head: torch.Tensor, counts: torch.Tensor,
                 anchors: int, decay: float):
        self.module, self.width = drafter, drafter.config.hidden_size
        self.embedding, self.head, self.anchors = embedding, head, anchors
        self.vocabulary = SampledVocabulary(counts)
        self.weights = depth_weights(drafter.config.depth, decay)

    def prepare(self, dialogues: list[Dialogue], seed: int) -> Batch:
        rng, c = random.Random(seed), self.module.config
        return assemble(dialogues, [choose_anchors(d, self.anchors, rng) for d in dialogues], c.block_size, c.mask_token_id)

    def positions(self, batch: Batch) -> int:
        return int((batch.labels >= 0).sum())

    def loss(self, batch: Batch, dtype: torch.dtype, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss of one batch and the share of right first guesses per depth."""
        device, c = self.embedding.device, self.module.config
        hidden = self.module(
            self.embedding[batch.block_ids.to(device)].to(dtype), batch.context.to(device, dtype), batch.positions.to(device),
            attention_mask=batch.mask.to(device),
        )
        hidden = hidden.view(len(batch.labels), -1, c.block_size, c.hidden_size)[:, :, 1:]
        self.vocabulary.generator.manual_seed(seed)
        return draft_loss(hidden, batch.labels.to(device), self.head, self.vocabulary, self.weights)

    def acceptance(self, dialogues: list[Dialogue], dtype: torch.dtype, sizes: tuple[int, ...]) -> dict[int, float]:
        return acceptance(self.module, self.embedding, self.head, dialogues, sizes=sizes)

    def save(self, folder: Path) -> None:
        save_dflash(self.module, folder)
