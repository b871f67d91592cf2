"""Whether the output follows the target's distribution, from what each step recorded of its acceptance rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bastion.step import StepRecord

NOT_LOSSLESS = frozenset({"reference-argmax"})
"""Names of the acceptance rules that change the distribution above temperature 0; a reader needs no engine to say so."""


@dataclass(frozen=True, slots=True)
class RunFaithfulness:
    """One value per step that recorded it; the means run over all tokens from the first step to this one, in nats."""

    step: np.ndarray             # int64 [s]
    variation: np.ndarray        # float64 [s], mean over the step's tokens
    mean_variation: np.ndarray   # float64 [s]
    target_entropy: np.ndarray   # float64 [s]
    rule_entropy: np.ndarray     # float64 [s]
    surprise: np.ndarray         # float64 [s], mean -log p of the output under the target
    tokens: int


def run_faithfulness(steps: Sequence[StepRecord]) -> RunFaithfulness | None:
    """None when no step recorded it: temperature 0, drawn trees, an older version, or no trace."""
    known = [(step.index, step.trace.faithfulness) for step in steps if step.trace is not None and step.trace.faithfulness is not None
             and len(step.trace.faithfulness)]
    if not known:
        return None
    tokens = np.cumsum([len(one) for _, one in known])

    def running(name: str) -> np.ndarray:
        return np.cumsum([getattr(one, name).sum() for _, one in known]) / tokens

    return RunFaithfulness(np.array([index for index, _ in known]), np.array([one.variation.mean() for _, one in known]),
                           running("variation"), running("target_entropy"), running("rule_entropy"), running("surprise"), int(tokens[-1]))


def lossy_rule(info: Mapping[str, Any]) -> str:
    """The rule of a run, when the run's output does not follow the target because of it; else empty."""
    sampling = info.get("sampling")
    if not isinstance(sampling, Mapping) or info.get("method") == "ar":
        return ""
    rule, temperature = sampling.get("acceptance"), sampling.get("temperature")
    warm = isinstance(temperature, int | float) and temperature > 0
    return rule if warm and isinstance(rule, str) and rule in NOT_LOSSLESS else ""
