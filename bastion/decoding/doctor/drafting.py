"""What a drafter's network is given at one anchor, and how a test changes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from bastion.decoding.doctor.material import Answer
from bastion.models.registry import Drafter


@dataclass(frozen=True, slots=True)
class Given:
    """The arguments of one pass, as the drafter's own session made them.

    block [B, h]: embeddings of the anchor and of the masks. context [c, layers * h] and context_positions
    int64 [c]: the rows read before. positions int64 [B]: of the block. mask bool [B, c + B], True where a
    block position may look, or None for its network's own rule.
    """

    block: torch.Tensor
    context: torch.Tensor
    context_positions: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Where:
    """The anchor that is drafted behind: its place in the answer's tokens, its token, its own features [1, layers * h]."""

    place: int
    token: int
    features: torch.Tensor


@dataclass(frozen=True, slots=True)
class Change:
    """How drafting departs from the pair as loaded; empty: not at all."""

    layer_ids: tuple[int, ...] | None = None
    given: Callable[[Drafter, Given, Where], Given] | None = None
    ids: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    """(proposed ids, the same in the drafter's own vocabulary) -> other ids, int64 [anchors, depth, k]."""
    temperatures: tuple[float, ...] | None = None
    answers: Callable[[], tuple[list[Answer], list[Answer]] | None] | None = None
    """The same texts read as loaded and as proposed, to be judged on in place of the pair's own; None: no difference."""
    drafter: Callable[[], Drafter] | None = None
    """Another drafter in place of the pair's, made after `answers`."""

    @property
    def only_ids(self) -> bool:
        """Whether the network's part stays what it was."""
        return self.ids is not None and not any((self.layer_ids, self.given, self.temperatures, self.drafter, self.answers))


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to undo a fault: what it does, and what to do for good when it helps."""

    label: str
    todo: str
    change: Change
    trusted: bool = True
    """Whether a gain in likelihood without one in tau counts."""
    least_gain: float = 0.0
    """tau that has to be gained before it is named; for changes that help every drafter a little."""
