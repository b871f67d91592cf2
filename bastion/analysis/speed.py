"""How fast a decode was, as it went along and against plain decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bastion.records.totals import decode_steps, tokens_per_second
from bastion.step import StepRecord


@dataclass(frozen=True, slots=True)
class Progress:
    """Running means up to and with each decode step (arrays [s])."""

    step: np.ndarray               # int64
    tokens: np.ndarray             # int64, tokens that decode steps have emitted so far
    seconds: np.ndarray            # float64, seconds of decode steps so far
    tokens_per_second: np.ndarray  # float64
    tau: np.ndarray                # float64, mean acceptance length so far


def progress(steps: Sequence[StepRecord]) -> Progress:
    """Speed and tau so far, step by step; the prefill is left out of tokens and seconds."""
    rounds = decode_steps(steps)
    tokens = np.cumsum(np.array([len(step.emitted) for step in rounds], np.int64))
    seconds = np.cumsum(np.array([step.seconds.total for step in rounds], np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        speed = tokens / seconds
    return Progress(np.array([step.index for step in rounds], np.int64), tokens, seconds, speed,
                    tokens / np.arange(1, len(rounds) + 1))


def speedup(steps: Sequence[StepRecord], yardstick: Mapping[str, Any] | float | None
            ) -> float | None:
    """Tokens per second over plain decoding's on the same prompt and device, e.g. 1.62.

    `yardstick` is `run.info["yardstick"]` or its tokens per second. None until both are known.
    """
    plain = yardstick.get("tokens_per_second") if isinstance(yardstick, Mapping) else yardstick
    own = tokens_per_second(steps)
    return own / plain if own is not None and plain else None


def estimated_plain_speed(steps: Sequence[StepRecord]) -> float | None:
    """Plain decoding's tokens per second as the latency model predicts it: one node at the mean
    context of the decode steps, no drafter. An estimate, to be shown as one until the yardstick is
    measured; None without predictions."""
    seconds = [step.trace.predicted_seconds[0] for step in decode_steps(steps)
               if step.trace is not None and len(step.trace.predicted_seconds)]
    mean = float(np.mean(seconds)) if seconds else 0.0
    return 1 / mean if mean > 0 else None
