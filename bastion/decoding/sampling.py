"""Which token the target chooses at a node: the one place where randomness enters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from bastion.errors import UserError
from bastion.models.top_k import top_k

Draws = Callable[[torch.Tensor], int]
"""Takes probabilities float64 [m], which need not sum to 1 exactly, and returns one index by them."""

FEW = 1024
"""Candidates looked at before the whole vocabulary is sorted for top-p."""


@dataclass(frozen=True)
class Sampling:
    """temperature 0 takes the most probable token. top_p 1 and top_k 0 leave the distribution whole.

    In this order, as Hugging Face applies them: logits / temperature, the top_k greatest, then the
    smallest set of most probable tokens that holds top_p of the mass.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        if not (_is_number(self.temperature) and 0 <= self.temperature < math.inf):
            raise UserError(f"Give temperature as a number of 0 or more, not {self.temperature!r}.")
        if not (_is_number(self.top_p) and 0 < self.top_p <= 1):
            raise UserError(f"Give top_p as a number above 0 and at most 1, not {self.top_p!r}.")
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k < 0:
            raise UserError(f"Give top_k as a whole number of 0 (off) or more, not {self.top_k!r}.")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def distribution(self, logits: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        """(token ids int64 [m], probabilities float64 [m]) for logits [vocab]; ids None means all, in order."""
        if logits.device.type == "mps":  # has no float64
            logits = logits.cpu()
        scores = logits.double() / self.temperature
        if not self.top_k and self.top_p == 1:
            return None, torch.softmax(scores, dim=-1)
        if self.top_k:
            values, ids = _first(top_k(scores[None], self.top_k))
            probabilities = torch.softmax(values, dim=-1)
            return _nucleus(ids, probabilities, self.top_p)
        log_mass = torch.logsumexp(scores, dim=-1)
        values, ids = _first(top_k(scores[None], FEW))
        probabilities = (values - log_mass).exp()
        if probabilities.sum() < self.top_p:
            values, ids = torch.sort(scores, descending=True)
            probabilities = (values - log_mass).exp()
        return _nucleus(ids, probabilities, self.top_p)

    def choose(self, logits: torch.Tensor, draws: Draws) -> int:
        """One token of the target's processed distribution at temperature above 0."""
        ids, probabilities = self.distribution(logits)
        index = draws(probabilities)
        return index if ids is None else int(ids[index])


class SeededDraws:
    """Inverse of the cumulative distribution at uniform numbers from one seed.

    One number per token that a step emits, whatever the tree, so that every method spells the same
    text from the same seed, up to rounding.
    """

    def __init__(self, seed: int):
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, probabilities: torch.Tensor) -> int:
        uniform = torch.rand((), dtype=torch.float64, generator=self.generator).item()
        cumulative = probabilities.cumsum(0)
        # right=True passes over tokens of probability 0
        index = torch.searchsorted(cumulative, (uniform * cumulative[-1]).reshape(1), right=True)
        return min(int(index), len(probabilities) - 1)


def _nucleus(ids: torch.Tensor, probabilities: torch.Tensor, top_p: float):
    """The fewest leading tokens that hold `top_p` of the mass, renormalised; sorted input."""
    if top_p < 1:
        before = probabilities.cumsum(0) - probabilities
        kept = max(int((before < top_p).sum()), 1)
        ids, probabilities = ids[:kept], probabilities[:kept]
    return ids, probabilities / probabilities.sum()


def _first(pair: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return pair[0][0], pair[1][0]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
