"""The single greedy path that DFlash verifies."""

from __future__ import annotations

import numpy as np

from bastion.trees.draft_tree import DraftTree
from bastion.trees.marginals import DraftMarginals


def grow_chain(marginals: DraftMarginals, root_token: int) -> DraftTree:
    """The most probable token of each depth, one below the other: depth + 1 nodes.

    Ends early at a depth where no token may be drafted (-inf).
    """
    best = marginals.log_probs[:, 0].astype(np.float64) if marginals.k else np.zeros(0)
    usable = int(np.isfinite(best).cumprod().sum())
    return DraftTree(
        token_ids=np.concatenate(([root_token], marginals.token_ids[:usable, :1].ravel())),
        parents=np.arange(-1, usable, dtype=np.int64),
        depths=np.arange(usable + 1, dtype=np.int64),
        path_log_probs=np.concatenate(([0.0], np.cumsum(best[:usable]))),
        stop_reason="chain",
    )
