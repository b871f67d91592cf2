"""Synthetic acceptance: a simulated drafter that is right at chosen rates, to study engine and budget without a trained one.

It knows the target's own next tokens, because the target decodes plainly first, outside every clock. At depth d
the true token stands at rank j, counted from 0, with probability r_d (1 - r_d)^j: at rank 0 with the chosen rate r_d,
and each further rank is right as often among the cases that the ranks before it missed. Other ranks hold wrong tokens.
The stated log-probs are those of this law, so they are calibrated by construction. Nothing about it is measured of any
drafter; its runs say `simulated`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from bastion.errors import UserError
from bastion.latency import Calibration
from bastion.trees import AdaptiveBudget, DraftMarginals, DraftTree, grow_best_first

if TYPE_CHECKING:
    from bastion.models.pair import Pair

DEPTH = 7
"""Drafted positions where one rate is given for all."""
DEEPEST = 64
RANKS = 128


@dataclass(frozen=True)
class SyntheticSession:
    """known: the prompt's ids and the target's plain answer. rates: r_1, r_2, ..."""

    rates: tuple[float, ...]
    known: tuple[int, ...]
    vocab: int
    seed: int

    def draft_at(self, context: int, root: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Token ids int64 and log-probs float64 [depth, k] behind `root`, which stands at position `context`.

        The same seed and position give the same draft.
        """
        k = min(k, self.vocab - 1)
        random = np.random.default_rng([self.seed, context])
        ranks = np.array([_rank(rate, draw) for rate, draw in zip(self.rates, random.random(len(self.rates)), strict=True)])
        ids = np.empty((len(self.rates), k), dtype=np.int64)
        for row, rank in enumerate(ranks):
            place = context + row + 1
            true = self.known[place] if place < len(self.known) else -1
            wrong = random.choice(self.vocab, size=k + 1, replace=False)
            ids[row] = wrong[wrong != true][:k]
            if rank < k and true >= 0:
                ids[row, rank] = true
        return ids, np.stack([_log_probs(rate, k) for rate in self.rates])


def _rank(rate: float, draw: float) -> int:
    """The rank of the true token for a draw uniform in [0, 1): geometric, 0 with probability `rate`."""
    return 0 if rate == 1 else int(math.log1p(-draw) / math.log1p(-rate))


def _log_probs(rate: float, k: int) -> np.ndarray:
    if rate == 1:
        return np.array([0.0, *[-np.inf] * (k - 1)])
    return math.log(rate) + np.arange(k) * math.log1p(-rate)


@dataclass(frozen=True)
class Synthetic:
    """Best-first growth stopped by the device's latency, as `bastion`, over a simulated drafter's marginals.

    Its draft time is what looking the tokens up takes, near zero, and the stop takes it as none.
    """

    rates: tuple[float, ...]
    name: str = "synthetic"
    calibration: Calibration | None = None
    session: SyntheticSession | None = None
    drafts: bool = False
    """The pair's own drafter is not asked."""
    needs_calibration: bool = True

    def marginals(self, trace: bool) -> int:
        return RANKS

    def calibrated(self, calibration: Calibration) -> Synthetic:
        """With the device's times, but for the drafter's: no network runs."""
        return replace(self, calibration=self.calibration or replace(calibration, draft_seconds=0.0))

    def told(self, known: Sequence[int], vocab: int, seed: int) -> Synthetic:
        """With what the target will say, which its drafts are made of."""
        return replace(self, session=SyntheticSession(self.rates, tuple(known), vocab, seed))

    def max_nodes(self, depth: int) -> int:
        return self.calibration.max_probed_nodes

    def grow(self, marginals: DraftMarginals, root: int, context: int, trace: bool) -> DraftTree:
        budget = AdaptiveBudget(seconds=partial(self.calibration.verify_seconds, context=context), draft_seconds=self.calibration.draft_seconds,
                                other_seconds=self.calibration.other_seconds, max_nodes=self.max_nodes(0))
        return grow_best_first(marginals, root, budget, trace=trace)


def synthetic(argument: str | None) -> Synthetic:
    """From "0.8", or "0.9,0.8,0.6": one rate for each depth. Raises UserError."""
    try:
        rates = tuple(float(part) for part in (argument or "").split(","))
    except ValueError:
        rates = ()
    if not rates or len(rates) > DEEPEST or not all(0 < rate <= 1 for rate in rates):
        raise UserError(f"Write the method synthetic with its rates of agreement, above 0 and at most 1: synthetic:0.8, or one for each "
                        f"of up to {DEEPEST} depths, as synthetic:0.9,0.8,0.6.")
    return Synthetic(rates * DEPTH if len(rates) == 1 else rates, name="synthetic:" + ",".join(f"{rate:g}" for rate in rates))


def tell(method: Synthetic, pair: Pair, prompt_ids: list[int], max_new_tokens: int, seed: int,
         on_notice: Callable[[str], None] | None, plainly: Callable[[int], Iterator]) -> Synthetic:
    """The method with the target's plain answer, decoded now. plainly: tokens -> records of a plain decode.

    The answer reaches as far past `max_new_tokens` as the deepest draft does.
    """
    if on_notice is not None:
        on_notice("Decoding plainly first: the simulated drafter is told what the target will say.")
    answer = [token for step in plainly(max_new_tokens + len(method.rates)) for token in step.emitted]
    return method.told([*prompt_ids, *answer], pair.target.vocab_size, seed)
