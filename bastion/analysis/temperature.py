"""A temperature per depth for the drafter's recorded marginals, fitted and judged on different texts.

At temperature T the recorded probabilities p of a depth become M p^(1/T) / sum(p^(1/T)), where M is
their sum: only the recorded ranks are rescaled among themselves, and the tail outside them keeps its
mass. These are temperatures on top of whatever the drafter applied before the marginals were recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bastion.analysis.surrogate_evidence import RunEvidence

RANGE = (0.2, 5.0)
FEWEST = 20
"""Outcomes that a depth must have before it is given a temperature of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class DepthTemperatures:
    """Arrays [D], depth 1 first. Where `fitted` is false the temperature is 1, for want of outcomes."""

    temperature: np.ndarray  # float64
    fitted: np.ndarray       # bool
    outcomes: np.ndarray     # int64, outcomes within the recorded ranks that were fitted to
    nll_before: np.ndarray   # float64, mean -log of the target's token under them, T = 1; NaN without any
    nll_after: np.ndarray    # float64, the same at `temperature`


def temper(log_probs: np.ndarray, temperatures: np.ndarray) -> np.ndarray:
    """log_probs [..., D, K] at one temperature per depth [D], the recorded mass of each row kept.

    float64; a depth at temperature 1 is returned as it was, bit for bit. -inf stays -inf.
    """
    result = np.array(log_probs, np.float64)
    for d, temperature in enumerate(temperatures):
        if temperature != 1:
            row = result[..., d, :]
            kept, scaled = _log_sum(row), _log_sum(row / temperature)
            shift = np.subtract(kept, scaled, out=np.zeros_like(kept), where=np.isfinite(kept))  # nothing recorded: nothing to shift
            result[..., d, :] = row / temperature + shift[..., None]
    return result


def fit_temperatures(log_probs: np.ndarray, known: np.ndarray, fewest: int = FEWEST) -> DepthTemperatures:
    """Minimise the mean negative log-likelihood of the target's tokens at each depth by itself.

    log_probs [s, D, K], known [s, D] as in `RunEvidence`. Tokens outside the recorded ranks have a
    likelihood that no temperature changes, so they do not enter; nor do steps with one recorded rank.
    The loss is convex in 1 / T, so that the minimum within RANGE is the only one.
    """
    from scipy.optimize import minimize_scalar

    depth = known.shape[1]
    temperature, before, after = np.ones(depth), np.full(depth, np.nan), np.full(depth, np.nan)
    count = np.zeros(depth, np.int64)
    for d in range(depth):
        rows, ranks = usable(log_probs, known, d)
        count[d] = len(rows)
        if not len(rows):
            continue

        def loss(inverse: float, rows: np.ndarray = rows, ranks: np.ndarray = ranks) -> float:
            return mean_nll(rows, ranks, 1 / inverse)

        before[d] = after[d] = loss(1.0)
        if len(rows) >= fewest:
            best = float(minimize_scalar(loss, bounds=(1 / RANGE[1], 1 / RANGE[0]), method="bounded", options={"xatol": 1e-7}).x)
            temperature[d], after[d] = 1 / best, loss(best)
    return DepthTemperatures(temperature, count >= fewest, count, before, after)


def usable(log_probs: np.ndarray, known: np.ndarray, d: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows float64 [m, K], the target's rank int64 [m]) of the outcomes at depth index d that a temperature can change."""
    if not log_probs.size:
        return np.zeros((0, 0)), np.zeros(0, np.int64)
    several = np.isfinite(log_probs[:, d]).sum(1) > 1
    keep = (known[:, d] >= 0) & several
    return log_probs[keep, d].astype(np.float64), known[keep, d]


def mean_nll(rows: np.ndarray, ranks: np.ndarray, temperature: float) -> float:
    """Mean -log of M p^(1/T) / sum(p^(1/T)) at the target's rank; rows float64 [m, K], m > 0."""
    scaled = rows / temperature
    chosen = scaled[np.arange(len(ranks)), ranks]
    return float((_log_sum(scaled) - chosen - _log_sum(rows)).mean())


def stacked(evidence: Sequence[RunEvidence]) -> tuple[np.ndarray, np.ndarray]:
    """log_probs float32 [s, D, K] and known [s, D] of all runs, padded to the largest D and K."""
    from bastion.analysis.surrogate_evidence import UNSEEN

    depth = max((one.log_probs.shape[1] for one in evidence), default=0)
    width = max((one.log_probs.shape[2] for one in evidence), default=0)
    steps = sum(len(one) for one in evidence)
    log_probs, known = np.full((steps, depth, width), -np.inf, np.float32), np.full((steps, depth), UNSEEN, np.int64)
    first = 0
    for one in evidence:
        rows = slice(first, first + len(one))
        log_probs[rows, :one.log_probs.shape[1], :one.log_probs.shape[2]] = one.log_probs
        known[rows, :one.known.shape[1]] = one.known
        first += len(one)
    return log_probs, known


def halves(evidence: Sequence[RunEvidence]) -> tuple[list[np.ndarray], str]:
    """bool [s] per run, true for the steps to fit on, and in words how they were divided.

    Runs of one prompt share a text, so that prompts are dealt out in turn where there are two or more; else the
    runs; a single run gives every other step.
    """
    prompts = list(dict.fromkeys(one.prompt for one in evidence))
    if len(prompts) > 1:
        return [np.full(len(one), prompts.index(one.prompt) % 2 == 0) for one in evidence], "every other prompt"
    return [np.arange(len(one)) % 2 == 0 for one in evidence], "every other step"


def _log_sum(values: np.ndarray) -> np.ndarray:
    """log of the sum of exp over the last axis; -inf for a row without any."""
    top = values.max(-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(values - top).sum(-1)) + top[..., 0]
