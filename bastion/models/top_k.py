"""The k best of a vocabulary, and the log of the softmax sum, without sorting the vocabulary."""

from __future__ import annotations

import numpy as np
import torch

_WIDTHS = (128, 64, 256, 32)
ROWS_AT_ONCE = 4


def top_k(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k greatest of each row of [rows, vocab], sorted: (values, int64 ids), both [rows, k].

    Exact, as `torch.topk`: the k greatest lie in the k chunks with the greatest maxima, so only
    those chunks are searched. One pass over the row finds the maxima; `torch.topk` on the whole
    row is several times slower on a CPU.
    """
    rows, vocab = scores.shape
    k = min(k, vocab)
    width = next((width for width in _WIDTHS if vocab % width == 0 and vocab // width >= 4 * k), None)
    if width is None or scores.device.type != "cpu":
        return torch.topk(scores, k)
    chunks = scores.view(rows, vocab // width, width)
    best = torch.topk(chunks.amax(dim=-1), k, sorted=False).indices
    found = chunks.gather(1, best[:, :, None].expand(-1, -1, width)).flatten(1)
    values, places = torch.topk(found, k)
    ids = best.gather(1, places // width) * width + places % width
    return values, ids


def top_k_log_probs(logits: torch.Tensor, k: int, temperatures: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Like `top_k`, the values turned into natural log-probabilities over the whole vocabulary, float32.

    temperatures: float32 [rows, 1], by which logits are divided first. On a CPU a few rows at a time, so that they
    stay in its cache between the passes over them.
    """
    step = max(ROWS_AT_ONCE if logits.device.type == "cpu" else len(logits), 1)
    parts = []
    for first in range(0, max(len(logits), 1), step):
        rows = logits[first : first + step].to(torch.float32, copy=True)
        if temperatures is not None:
            rows.div_(temperatures[first : first + step])
        parts.append(_top_k_log_probs(rows, k))
    return torch.cat([values for values, _ in parts]), torch.cat([ids for _, ids in parts])


def _top_k_log_probs(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Overwrites `logits`."""
    values, ids = top_k(logits, k)
    best = values[:, :1]
    return values - best - logits.sub_(best).exp_().sum(dim=-1, keepdim=True).log_(), ids


def choices(logits: torch.Tensor) -> torch.Tensor:
    """int32 [2, rows] of logits [rows, vocab]: each row's best id, the lowest of equals, and the bits of the float32 by
    which its logit lies above the second best. One tensor, so that one copy brings both to the host.

    The two best lie in the chunk with the greatest maximum, or the second heads another chunk: one pass over the
    vocabulary, and no sort of it.
    """
    rows, vocab = logits.shape
    width = next((width for width in _WIDTHS if vocab % width == 0 and vocab > width), None)
    if width is None:
        values, ids = torch.topk(logits.float(), 2)
        gaps = values[:, 0] - values[:, 1]
        return torch.stack((logits.argmax(dim=-1).int(), gaps.view(torch.int32)))
    chunks = logits.view(rows, vocab // width, width)
    maxima = chunks.amax(dim=-1)
    chunk = maxima.argmax(dim=-1, keepdim=True)
    inside = chunks.gather(1, chunk[:, :, None].expand(-1, 1, width))[:, 0]
    place = inside.argmax(dim=-1, keepdim=True)
    best = inside.gather(1, place)
    other = torch.cat((maxima.scatter(1, chunk, float("-inf")), inside.scatter(1, place, float("-inf"))), dim=1).amax(dim=-1)
    gaps = best[:, 0].float() - other.float()
    return torch.stack(((chunk * width + place)[:, 0].int(), gaps.view(torch.int32)))


def best_token(scores: torch.Tensor) -> int:
    """The id with the greatest score of [vocab], the lowest of equals, as `argmax` in a tenth of its time."""
    vocab = len(scores)
    if vocab % 128:
        return int(scores.argmax())
    # half-precision maxima are slow on a CPU
    chunks = scores.to(torch.promote_types(scores.dtype, torch.float32)).view(-1, 128)
    chunk = int(chunks.amax(dim=-1).argmax())
    return chunk * 128 + int(chunks[chunk].argmax())


def best_and_lead(scores: torch.Tensor) -> tuple[int, np.float32]:
    """`best_token` of [vocab] on a CPU, and by how much its score lies above the second best, as `choices` has it."""
    vocab, scores = len(scores), scores.to(torch.promote_types(scores.dtype, torch.float32))
    if vocab % 128:
        values = torch.topk(scores, 2).values.float()
        return int(scores.argmax()), (values[0] - values[1]).numpy()[()]
    chunks = scores.view(-1, 128)
    maxima = chunks.amax(dim=-1).numpy()  # on arrays this short numpy's calls cost a fraction of torch's
    chunk = int(maxima.argmax())
    inside = chunks[chunk].numpy()
    place = int(inside.argmax())
    maxima[chunk] = -np.inf
    other = max(np.partition(inside, -2)[-2], maxima.max())
    return chunk * 128 + place, np.float32(inside[place]) - np.float32(other)
