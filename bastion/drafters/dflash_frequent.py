"""A head over the ids that a target's answers are mostly made of, for drafting on a CPU.

Log-probabilities are then over those ids alone, so each is a little too great: what is left out of the default drafter's
marginals is 2 % to 9 % of their mass on average, by prompt set. What is drafted decides how fast the answer comes and
never which, and an id that is not there comes as the target's own token.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from bastion.drafters.dflash_weights import head_of
from bastion.errors import UserError
from bastion.models.target import Target

FREQUENT_IDS_FILE = "frequent_ids.npy"
"""int32 [n] beside a drafter's weights, ascending. No safetensors file, because loaders take all of those for weights."""


def read_frequent_ids(folder: Path, vocab: int) -> np.ndarray | None:
    """int64 [n]; None without a file. Raises UserError."""
    file = folder / FREQUENT_IDS_FILE
    if not file.exists():
        return None
    try:
        ids = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        ids = np.zeros(0)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or not len(ids) or ids[0] < 0 or ids[-1] >= vocab or (np.diff(ids.astype(np.int64)) < 1).any():
        raise UserError(f"{file} must hold ascending ids below {vocab} in numpy's format; copy it again or delete it.")
    return ids.astype(np.int64)


def frequent_head(target: Target, ids: np.ndarray, dtype: torch.dtype) -> torch.nn.Linear | None:
    """Those rows of the target's head; None where it is not on a CPU or only its packed weights are at hand."""
    tied = bool(getattr(target.config, "tie_word_embeddings", False))
    weight = target.embedding.weight if tied else getattr(target.head, "weight", getattr(target.head, "plain", None))
    if weight is None or target.device.type != "cpu" or getattr(target.head, "bias", None) is not None:
        return None
    return head_of(weight.detach()[torch.from_numpy(ids)], target.device, dtype)
