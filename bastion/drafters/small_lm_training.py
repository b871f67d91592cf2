"""A small language model in training (`bastion train --kind small-lm`): its loss, how it is measured, and its folder.

The model is written as transformers writes it, without the embedding and the head, which are the target's
(`SHARED` in config.json).
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from bastion.drafters.small_lm_config import SHARED, SHARED_PARTS
from bastion.drafters.small_lm_learning import Lesson, TextBatch, decoder_like, distil, judge, text_batch
from bastion.drafters.training.loss import SampledVocabulary
from bastion.drafters.training.shards import Dialogue
from bastion.drafters.training.soft_labels import Tail

FREQUENT, SAMPLED = 2048, 384
"""Ids that every batch's loss runs over, and how many of the others are drawn for it."""
PATH = 8
"""Tokens of the path by which weights are judged; trees would take a pass a level at every step."""


class SmallLmPupil:
    """small: layers in float32; target: frozen; tail: its layers behind the stored features; counts int64 [vocab]: how often
    each id is in the answers."""

    def __init__(self, small: nn.Module, target: nn.Module, tail: Tail, counts: torch.Tensor, lesson: Lesson = Lesson()):  # noqa: B008 - frozen
        self.module, self.width = small, small.config.hidden_size
        self.tail, self.lesson = tail, lesson
        self.embedding = target.get_input_embeddings().weight.detach()
        self.head = target.get_output_embeddings().weight.detach()
        self.vocabulary = SampledVocabulary(counts, FREQUENT, SAMPLED)
        self._heads: dict[torch.dtype, torch.Tensor] = {}

    def prepare(self, dialogues: list[Dialogue], seed: int) -> TextBatch:
        return text_batch(dialogues, self.width)

    def positions(self, batch: TextBatch) -> int:
        return int((batch.labels >= 0).sum())

    def loss(self, batch: TextBatch, dtype: torch.dtype, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss of one batch, and the share of answer tokens put first, [1]."""
        device, here = self.head.device, batch.labels >= 0
        with torch.no_grad():
            taught = self.tail(batch.upper.to(device, torch.float32))[here]
        hidden = self.module(inputs_embeds=self.embedding[batch.ids.to(device)], use_cache=False).last_hidden_state[here]
        self.vocabulary.generator.manual_seed(seed)
        toward, loss, right = distil(hidden, taught, batch.labels[here].to(device), batch.answers[here].to(device), self._head_in(dtype),
                                     self.vocabulary, self.lesson)
        return toward - toward.detach() + loss, torch.tensor([right])

    def acceptance(self, dialogues: list[Dialogue], dtype: torch.dtype, sizes: tuple[int, ...]) -> dict[int, float]:
        """Held-out tau of paths of so many tokens; 0 stands for `PATH`."""
        depths = {size: size or PATH for size in sizes}
        found = judge(self.module, self.embedding, self.head, dialogues, sorted(set(depths.values())))
        return {size: found[f"path:{depth}"] for size, depth in depths.items()}

    def save(self, folder: Path) -> None:
        save_small_lm(self.module, folder)

    def _head_in(self, dtype: torch.dtype) -> torch.Tensor:
        if dtype not in self._heads:
            self._heads[dtype] = self.head.to(dtype)
        return self._heads[dtype]


def save_small_lm(small: nn.Module, folder: Path) -> None:
    """config.json and model.safetensors (bfloat16) as transformers names them, without what the target lends."""
    config = small.config.to_diff_dict() | {
        "architectures": [type(small).__name__.removesuffix("Model") + "ForCausalLM"], "model_type": small.config.model_type,
        "vocab_size": small.config.vocab_size, SHARED: SHARED_PARTS, "dtype": "bfloat16"}
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "model.partial"
    save_file({f"model.{name}": value.to(torch.bfloat16).contiguous() for name, value in small.state_dict().items()}, partial,
              metadata={"format": "pt"})
    partial.rename(folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def start(target: nn.Module, layers: tuple[int, ...] | None, random_start: bool = False) -> nn.Module:
    """A small model on the target's device: copies of its first two layers and its last, unless others are named."""
    last = target.config.get_text_config().num_hidden_layers - 1
    small = decoder_like(target, layers or tuple(sorted({0, min(1, last), last})))
    if random_start:
        for weight in small.parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight, std=0.02)
            else:
                nn.init.ones_(weight)
    return small.to(target.device)


def finish(pupil: SmallLmPupil, folder: Path, held_out: list[Dialogue], sizes: tuple[int, ...]) -> tuple[dict[int, float], float]:
    """Of the best weights, which are in `folder`: held-out tau by path length, and the share of tokens put first."""
    best = {name.removeprefix("model."): value.float() for name, value in load_file(folder / "model.safetensors").items()}
    pupil.module.load_state_dict(best)
    found = judge(pupil.module.eval(), pupil.embedding, pupil.head, held_out, sorted({size or PATH for size in sizes}))
    return {size: found[f"path:{size or PATH}"] for size in sizes}, found["top1"]
