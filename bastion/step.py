"""What one step of a decode leaves behind: the record every page, chart and test reads.

Lowest of all layers (numpy only), so that decoding can write records and a laptop without
torch can read them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Wall seconds of a step's four stages, device synchronised at each border."""

    draft: float = 0.0
    build: float = 0.0
    verify: float = 0.0
    commit: float = 0.0

    @property
    def total(self) -> float:
        return self.draft + self.build + self.verify + self.commit


@dataclass(frozen=True, slots=True)
class GrowthLog:
    """One row per node popped by best-first growth, in pop order, the root left out.

    Rows past the stop are logged too (`bought` is False there) when tracing is on. All arrays
    have length P, the number of pops. Indices in `parents` count pops from 1; 0 is the root, so
    that row i describes the node that would be tree node i + 1.
    """

    token_ids: np.ndarray       # int64 [P]
    parents: np.ndarray         # int64 [P]
    depths: np.ndarray          # int64 [P], 1 for a child of the root
    ranks: np.ndarray           # int64 [P], 0 for the most probable token of its depth
    path_log_probs: np.ndarray  # float64 [P]
    gains: np.ndarray           # float64 [P], left side of the stop rule; NaN under a fixed budget
    prices: np.ndarray          # float64 [P], right side of the stop rule; NaN under a fixed budget
    bought: np.ndarray          # bool [P], the node is in the verified tree
    dropped: np.ndarray         # bool [P], passed the rule, then lost to bucket rounding

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Faithfulness:
    """For each emitted token of a step, the acceptance rule's exact distribution of it, given the tree, against the
    target's at the same node: both over the whole vocabulary, after temperature, top-p and top-k. In nats."""

    variation: np.ndarray       # float64 [e], total variation between the two, 0 for a lossless rule
    rule_entropy: np.ndarray    # float64 [e]
    target_entropy: np.ndarray  # float64 [e]
    surprise: np.ndarray        # float64 [e], -log of the target's probability of the token that was emitted

    def __len__(self) -> int:
        return len(self.variation)


@dataclass(frozen=True, slots=True)
class StepTrace:
    """What a step can show beyond its outcome; None on a step decoded with `trace=False`.

    n is the number of tree nodes, K the number of target choices kept per node.
    """

    marginal_token_ids: np.ndarray   # int64 [depth, k]; [0, 0] for a method without marginals
    marginal_log_probs: np.ndarray   # float32 [depth, k]
    target_log_probs: np.ndarray     # float32 [n], target's log-prob of the node's token given its path; NaN at the root
    target_top_ids: np.ndarray       # int64 [n, K], target's most probable next tokens after each node
    target_top_log_probs: np.ndarray # float32 [n, K]
    growth: GrowthLog | None = None
    predicted_seconds: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """float64 [N]: predicted verify seconds for 1..N nodes at this context; empty without calibration."""
    predicted_draft_seconds: float | None = None
    predicted_other_seconds: float | None = None
    faithfulness: Faithfulness | None = None
    """None at temperature 0, for drawn trees, and in runs recorded before it was."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of `bastion.decode`. Node 0 of the tree is the root (the anchor)."""

    index: int                  # 0 for the prefill, then 1, 2, ...
    kind: str                   # "prefill" or "decode"
    emitted: list[int]          # ids added to the output, cut at a stop token or max_new_tokens
    context: int                # tokens before the root, whose keys and values are cached
    root: int                   # token id of the root
    token_ids: np.ndarray       # int64 [n]
    parents: np.ndarray         # int64 [n], -1 for the root, parents precede children
    depths: np.ndarray          # int64 [n]
    path_log_probs: np.ndarray  # float64 [n], 0 at the root
    accepted: np.ndarray        # int64 [a], node indices of the accepted path, root first
    bonus: int                  # the target's own token after the last accepted node
    surrogate: float            # S(n): sum of path probabilities, root counted as 1
    stop_reason: str            # why the tree stopped growing
    seconds: StepSeconds
    top2_gaps: np.ndarray       # float32 [len(emitted)], target's top-2 logit gap where each token was chosen
    predicted_verify_seconds: float | None = None
    trace: StepTrace | None = None

    @property
    def nodes(self) -> int:
        """Nodes verified, root included; 0 for the prefill, whose tree is empty."""
        return len(self.token_ids)
