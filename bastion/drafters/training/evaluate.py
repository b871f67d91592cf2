"""Held-out acceptance without a target in the loop, and the temperature per depth.

Greedy decoding walks one known text, so acceptance can be replayed: the drafter's marginals at
every anchor come from one pass, and each step's tree is compared with what the target wrote.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from bastion.drafters.dflash import DFlashDraftModel
from bastion.drafters.training.batches import assemble, choose_anchors
from bastion.drafters.training.shards import Dialogue
from bastion.models.top_k import top_k_log_probs
from bastion.trees import DraftMarginals, FixedBudget, grow_best_first, grow_chain


@dataclass(frozen=True, slots=True)
class Drafted:
    """Marginals at every anchor of one dialogue: ids, log_probs [anchors, depth, k], and the answer."""

    ids: np.ndarray
    log_probs: np.ndarray
    answer: np.ndarray


@torch.inference_mode()
def block_hidden(
    drafter: DFlashDraftModel, embedding: torch.Tensor, dialogue: Dialogue, anchors: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states [anchors, depth, h] and labels [anchors, depth], -1 past the end of the dialogue."""
    c = drafter.config
    batch = assemble([dialogue], [anchors], c.block_size, c.mask_token_id)
    device, dtype = embedding.device, drafter.hidden_norm.weight.dtype
    hidden = drafter(
        embedding[batch.block_ids.to(device)].to(dtype), batch.context.to(device, dtype),
        batch.positions.to(device), attention_mask=batch.mask.to(device),
    )
    return hidden.view(-1, c.block_size, c.hidden_size)[:, 1:], batch.labels[0]


@torch.inference_mode()
def draft_all(
    drafter: DFlashDraftModel, embedding: torch.Tensor, head: torch.Tensor, dialogue: Dialogue,
    temperatures: torch.Tensor, k: int = 32,
) -> Drafted:
    """Marginals at every anchor. embedding and head: [vocab, h]; temperatures: [depth]."""
    hidden, _ = block_hidden(drafter, embedding, dialogue, choose_anchors(dialogue, None))
    logits = (hidden.to(head.dtype) @ head.t()).float() / temperatures.to(head.device)[:, None]
    log_probs, ids = top_k_log_probs(logits.flatten(0, 1), k)
    log_probs, ids = log_probs.unflatten(0, logits.shape[:2]), ids.unflatten(0, logits.shape[:2])
    answer = dialogue.ids[dialogue.prompt_length :].numpy()
    return Drafted(ids.cpu().numpy(), log_probs.double().cpu().numpy(), answer)


def replay(drafted: Drafted, nodes: int, max_new_tokens: int = 64) -> tuple[int, int]:
    """Greedy decoding replayed with trees of `nodes` beside the root (0: the single path).

    Returns tokens emitted by decode steps, and steps. The first token is the prefill's.
    """
    answer = drafted.answer[:max_new_tokens]
    at, steps = 0, 0
    while at < len(answer) - 1:
        marginals = DraftMarginals(drafted.ids[at], drafted.log_probs[at])
        root = int(answer[at])
        tree = grow_chain(marginals, root) if nodes == 0 else grow_best_first(marginals, root, FixedBudget(nodes + 1))
        children = {(int(p), int(t)): i for i, (p, t) in enumerate(zip(tree.parents, tree.token_ids, strict=True))}
        node, accepted = 0, 0
        while (child := children.get((node, int(answer[at + accepted + 1])))) is not None:
            node, accepted = child, accepted + 1
            if at + accepted + 1 >= len(answer):
                break
        at += accepted + 1
        steps += 1
    return len(answer) - 1, steps


def acceptance(
    drafter: DFlashDraftModel, embedding: torch.Tensor, head: torch.Tensor, dialogues: Iterable[Dialogue],
    temperatures: torch.Tensor | None = None, sizes: tuple[int, ...] = (0, 16), max_new_tokens: int = 64,
) -> dict[int, float]:
    """tau for each tree size (0: the single path), over all decode steps of the dialogues."""
    temperatures = torch.ones(drafter.config.depth) if temperatures is None else temperatures
    tokens, steps = dict.fromkeys(sizes, 0), dict.fromkeys(sizes, 0)
    for dialogue in dialogues:
        end = dialogue.prompt_length + max_new_tokens
        if dialogue.answer_length > max_new_tokens:
            dialogue = Dialogue(dialogue.ids[:end], dialogue.prompt_length, dialogue.features[: end - 1], dialogue.source)
        if dialogue.answer_length < 2:
            continue
        drafted = draft_all(drafter, embedding, head, dialogue, temperatures)
        for size in sizes:
            emitted, taken = replay(drafted, size, max_new_tokens)
            tokens[size] += emitted
            steps[size] += taken
    return {size: tokens[size] / max(1, steps[size]) for size in sizes}


@torch.inference_mode()
def fit_depth_temperatures(
    drafter: DFlashDraftModel, embedding: torch.Tensor, head: torch.Tensor, dialogues: Iterable[Dialogue],
    anchors_per_dialogue: int | None = 40,
) -> torch.Tensor:
    """The temperature of each depth, [depth], that gives held-out labels their largest likelihood."""
    rng = random.Random(0)
    depth = drafter.config.depth
    grid = torch.exp(torch.linspace(np.log(0.7), np.log(3.0), 48))
    loss = torch.zeros(depth, len(grid), dtype=torch.float64)
    for dialogue in dialogues:
        anchors = choose_anchors(dialogue, anchors_per_dialogue, rng)
        hidden, labels = block_hidden(drafter, embedding, dialogue, anchors)
        logits = (hidden.to(head.dtype) @ head.t()).float().cpu()
        present = labels >= 0
        picked = logits.gather(-1, labels.clamp_min(0)[..., None]).squeeze(-1)
        for i, temperature in enumerate(grid.tolist()):
            nll = (logits / temperature).logsumexp(-1) - picked / temperature
            loss[:, i] += (nll * present).sum(0).double()
    return grid[loss.argmin(dim=1)]
