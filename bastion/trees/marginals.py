"""What a drafter says about the next positions: one distribution per depth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bastion.errors import UserError


@dataclass(frozen=True, slots=True, eq=False)
class DraftMarginals:
    """The k most probable tokens at each drafted depth, independent of each other.

    token_ids: int64 [depth, k]; log_probs: float32 or float64 [depth, k], natural logs. Row d
    belongs to depth d + 1 and is sorted, most probable first; -inf marks a token that may not be
    drafted. Raises UserError on shapes that differ, NaN, positive log-probs or an unsorted row.
    """

    token_ids: np.ndarray
    log_probs: np.ndarray

    def __post_init__(self) -> None:
        token_ids = np.asarray(self.token_ids, dtype=np.int64)
        log_probs = np.asarray(self.log_probs)
        if log_probs.dtype not in (np.float32, np.float64):
            log_probs = log_probs.astype(np.float64)
        if token_ids.ndim != 2 or token_ids.shape != log_probs.shape:
            raise UserError(
                "Give the draft marginals as two arrays of the same shape [depth, k], not "
                f"{token_ids.shape} and {log_probs.shape}."
            )
        # One comparison finds both an unsorted row and NaN: a NaN is never >= its neighbour.
        if log_probs.size and not (
            (log_probs[:, :-1] >= log_probs[:, 1:]).all() and (log_probs[:, 0] <= 1e-4).all()
        ):
            raise UserError(
                "Sort each row of the draft marginals, most probable first, with log-probs that "
                "are numbers no greater than 0."
            )
        object.__setattr__(self, "token_ids", token_ids)
        object.__setattr__(self, "log_probs", log_probs)

    @property
    def depth(self) -> int:
        """Drafted positions, B - 1 for a drafter of block size B."""
        return self.token_ids.shape[0]

    @property
    def k(self) -> int:
        """Tokens kept per depth."""
        return self.token_ids.shape[1]
