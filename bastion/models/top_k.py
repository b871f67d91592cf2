"""The k best of a vocabulary, and the log of the softmax sum, without sorting the vocabulary."""

from __future__ import annotations

import torch

_WIDTHS = (128, 64, 256, 32)


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


def top_k_log_probs(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Like `top_k`, the values turned into natural log-probabilities over the whole vocabulary, float32."""
    logits = logits.float()
    values, ids = top_k(logits, k)
    return values - torch.logsumexp(logits, dim=-1, keepdim=True), ids
