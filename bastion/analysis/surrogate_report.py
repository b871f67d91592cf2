"""Everything the Surrogate page shows of a choice of runs, computed at once and kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from bastion.analysis.reliability import Outcomes, Reliability, by_depth, by_rank, outcomes, overall
from bastion.analysis.surrogate_clipping import Clipping, clipping
from bastion.analysis.surrogate_correlation import CLUSTERS, Correlation, correlate
from bastion.analysis.surrogate_evidence import RunEvidence
from bastion.analysis.surrogate_table import step_frame

Unit = Literal["prompt", "run", "step"]
Outcome = Literal["emitted", "walked"]

UNIT_WORDS = {"prompt": "prompts resampled, all their steps together", "run": "runs resampled, all their steps together",
              "step": "steps resampled as if independent"}


def resampled_words(found: Correlation, unit: Unit, words: str | None = None) -> str:
    """How the intervals of `found` were made, or why it has none. words: shorter than those of `UNIT_WORDS`."""
    if found.too_few:
        return f"{found.clusters} {unit}{'s' * (found.clusters != 1)}, too few to resample ({CLUSTERS} are needed)"
    return words or UNIT_WORDS[unit]


@dataclass(frozen=True, slots=True, eq=False)
class SurrogateReport:
    """Numbers of the steps that count: all of the chosen runs, without the cut ones unless they were asked for."""

    frame: pd.DataFrame          # rows of `step_frame`; the index is the row's place among all steps of the runs
    left_out: int                # cut steps that do not count
    outcome: Outcome
    unit: Unit
    correlation: Correlation | None
    seen: Outcomes               # of these rows
    first_choice: Reliability    # rank 1 at all reached depths
    all_ranks: Reliability
    depths: dict[int, Reliability]      # rank 1
    depths_all: dict[int, Reliability]  # all recorded ranks
    ranks: dict[str, Reliability]
    clipping: Clipping

    @property
    def bias(self) -> float:
        """Mean of S minus the outcome, in tokens a step."""
        return float((self.frame["surrogate"] - self.frame[self.outcome]).mean())


def default_unit(evidence: Sequence[RunEvidence]) -> Unit:
    """What to resample: prompts where there are five or more, since runs of one prompt share a text; else
    runs where there are five or more, since steps of one run do; else steps."""
    if len({one.prompt for one in evidence}) >= CLUSTERS:
        return "prompt"
    return "run" if len(evidence) >= CLUSTERS else "step"


def surrogate_report(evidence: Sequence[RunEvidence], unit: Unit, outcome: Outcome = "emitted", with_cut: bool = False,
                     resamples: int = 1000, seed: int = 0) -> SurrogateReport:
    """The report of the chosen runs. Without any step that counts the frame is empty and the correlation None."""
    everything = step_frame(evidence)
    frame = everything if with_cut else everything[~everything["cut"].astype(bool)]
    seen = outcomes(evidence)
    seen = seen.where(np.isin(seen.row, frame.index.to_numpy()))
    found = correlate(frame["surrogate"], frame[outcome], None if unit == "step" else frame[unit].to_numpy(), resamples, seed)
    return SurrogateReport(frame, len(everything) - len(frame), outcome, unit, found, seen, overall(seen, 1), overall(seen),
                           by_depth(seen), by_depth(seen, seen.confidence.shape[1]), by_rank(seen), clipping(frame))


def why_none(one: RunEvidence) -> str:
    """Why a run has no surrogate to judge, in a few words; empty when it has one."""
    if not len(one):
        return "no step after the prefill"
    if not np.isfinite(one.surrogate).all():
        return "a surrogate that is no finite number"
    return "" if (one.nodes > 1).any() else "no tree"
