"""What a small language model learns from: its start in the target's own layers, its batches and its loss.

It has the target's embedding and head, frozen, and a few layers of the target's shape. The target's answers
are stored with its features; the layers behind the last stored feature, run once more, give the target's own
distribution at every position, which says more than the one token it chose.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from bastion.drafters.training.loss import SampledVocabulary
from bastion.drafters.training.shards import Dialogue
from bastion.errors import UserError


def decoder_like(target: nn.Module, layers: Sequence[int]) -> nn.Module:
    """A decoder of copies of these target layers (counted from 0) and of its final norm, which takes embeddings
    and has none of its own. UserError for layers that the target does not have."""
    from transformers import AutoModel

    decoder = target.get_decoder()
    if not layers or not all(0 <= index < len(decoder.layers) for index in layers):
        raise UserError(f"The small model cannot start from layers {list(layers)}: the target has layers 0 to {len(decoder.layers) - 1}.")
    config = copy.deepcopy(target.config.get_text_config())
    config.num_hidden_layers = len(layers)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[index] for index in layers]
    with torch.device("meta"):
        small = AutoModel.from_config(config, attn_implementation="sdpa")
    small.embed_tokens = nn.Identity()
    small.layers = nn.ModuleList(copy.deepcopy(decoder.layers[index]) for index in layers)
    for place, layer in enumerate(small.layers):
        layer.self_attn.layer_idx = place
        layer.self_attn.config = small.config
    small.norm, small.rotary_emb = copy.deepcopy(decoder.norm), copy.deepcopy(decoder.rotary_emb)
    return small.float().requires_grad_(True)


@dataclass(slots=True)
class TextBatch:
    """b whole dialogues, padded behind. ids: int64 [b, n]; labels: int64 [b, n], the token behind each, -1 for none;
    answers: bool [b, n], whether that token is of the answer; upper: [b, n, h], the last stored feature."""

    ids: torch.Tensor
    labels: torch.Tensor
    answers: torch.Tensor
    upper: torch.Tensor


def text_batch(dialogues: Sequence[Dialogue], width: int) -> TextBatch:
    """Each dialogue but for its last token, which has no successor and no feature; width: of one feature."""
    longest = max(len(d.ids) for d in dialogues) - 1
    ids = torch.zeros(len(dialogues), longest, dtype=torch.long)
    labels, answers = torch.full_like(ids, -1), torch.zeros_like(ids, dtype=torch.bool)
    upper = torch.zeros(len(dialogues), longest, width, dtype=dialogues[0].features.dtype)
    for row, dialogue in enumerate(dialogues):
        length = len(dialogue.ids) - 1
        ids[row, :length] = dialogue.ids[:-1]
        labels[row, :length] = dialogue.ids[1:]
        answers[row, dialogue.prompt_length - 1: length] = True
        upper[row, :length] = dialogue.features[:, -width:]
    return TextBatch(ids, labels, answers, upper)


@dataclass(frozen=True, slots=True)
class Lesson:
    """Weights of the loss. Of an answer's positions it is `soft_share` the cross-entropy with the target's
    distribution, else that with the token it chose; of a prompt's only the former, `prompt_weight` times."""

    soft_share: float = 0.5
    prompt_weight: float = 0.3


def distil(
    hidden: torch.Tensor, taught: torch.Tensor, labels: torch.Tensor, answers: torch.Tensor, head: torch.Tensor,
    vocabulary: SampledVocabulary, lesson: Lesson = Lesson(),  # noqa: B008 - frozen
) -> tuple[torch.Tensor, float, float]:
    """What to call `backward` on, the loss, and the share of answer tokens that the small model puts first.

    hidden, taught [m, h]: the small model's states and the target's at m positions; labels int64 [m]; answers
    bool [m]; head [vocab, h], frozen. The loss's gradient in the logits is the difference of two distributions,
    so it is written down and not left to autograd, which would pass over [m, ids] several times more.
    """
    with torch.no_grad():
        ids, correction, local = vocabulary.choose(labels.cpu())
        part, correction, local = head[ids.to(head.device)], correction.to(hidden.device), local.to(hidden.device)
        wanted = torch.softmax((taught.to(part.dtype) @ part.t()).float().add_(correction), dim=-1)
        wanted.mul_(torch.where(answers, lesson.soft_share, 1.0)[:, None])
        wanted.scatter_add_(1, local[:, None], torch.where(answers, 1 - lesson.soft_share, 0.0)[:, None])
        log_probs = F.log_softmax((hidden.to(part.dtype) @ part.t()).float().add_(correction), dim=-1)
        weights = torch.where(answers, 1.0, lesson.prompt_weight)
        weights /= weights.sum()
        loss = -float(torch.einsum("ij,ij,i", wanted, log_probs, weights))
        right = float((log_probs.argmax(-1) == local)[answers].float().mean())
        in_logits = log_probs.exp_().sub_(wanted).mul_(weights[:, None])
        gradient = (in_logits.to(part.dtype) @ part).to(hidden.dtype)
    return (hidden * gradient).sum(), loss, right


@torch.no_grad()
def judge(
    small: nn.Module, embedding: torch.Tensor, head: torch.Tensor, dialogues: Iterable[Dialogue], depths: Sequence[int] = (4, 8),
    max_new_tokens: int = 64,
) -> dict[str, float]:
    """top1: share of held-out answer tokens put first. path:D: tau of greedy decoding with its D most probable tokens in
    a row, exactly, since such a path follows the text up to its first mistake (steps as in decoding; the first token
    is the prefill's)."""
    right, all_of_them = 0, 0
    emitted, steps = 0, dict.fromkeys(depths, 0)
    for dialogue in dialogues:
        hidden = small(inputs_embeds=embedding[dialogue.ids[:-1]].to(small.dtype)[None], use_cache=False).last_hidden_state[0]
        guesses = (hidden[dialogue.prompt_length - 1:].to(head.dtype) @ head.t()).argmax(-1)
        answer = dialogue.ids[dialogue.prompt_length:][:max_new_tokens]
        hits = (guesses[: len(answer)] == answer).tolist()
        right, all_of_them = right + sum(hits), all_of_them + len(hits)
        emitted += len(answer) - 1
        for depth in depths:
            at = 0
            while at < len(answer) - 1:
                reach = 0
                while reach < depth and at + reach + 1 < len(answer) and hits[at + reach + 1]:
                    reach += 1
                at += reach + 1
                steps[depth] += 1
    return {"top1": right / max(1, all_of_them)} | {f"path:{depth}": emitted / max(1, taken) for depth, taken in steps.items()}
