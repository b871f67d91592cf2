"""One row per decode step of many runs: the surrogate beside what came of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from bastion.analysis.surrogate_evidence import RunEvidence

POSITIONS = (0, 16, 32, 64, 128, 256, 512, 1024)
"""First output token of each class of positions."""

COLUMNS = ("run", "method", "prompt_set", "temperature", "prompt", "step", "position", "nodes", "surrogate", "emitted", "walked",
           "cut", "clipped", "drafter_depth", "text")


def step_frame(evidence: Sequence[RunEvidence]) -> pd.DataFrame:
    """The decode steps of all runs, run after run.

    position: output tokens before the step. walked: nodes of the accepted path, root included, which
    is what S(n) estimates. emitted: tokens added to the output; fewer than walked on a `cut` step,
    where a stop token or the length limit ended the output. clipped: the accepted path is as deep as
    the drafter drafts. The index counts rows from 0.
    """
    if not evidence:
        return pd.DataFrame({name: [] for name in COLUMNS})
    lengths = [len(one) for one in evidence]

    def each(values: list) -> np.ndarray:
        return np.repeat(np.array(values), lengths)

    def all_of(name: str) -> np.ndarray:
        return np.concatenate([getattr(one, name) for one in evidence])

    walked, emitted, depth = all_of("walked"), all_of("emitted"), each([one.drafter_depth for one in evidence])
    return pd.DataFrame({
        "run": each([one.run for one in evidence]), "method": each([one.method for one in evidence]),
        "prompt_set": each([one.prompt_set for one in evidence]), "temperature": each([one.temperature for one in evidence]),
        "prompt": each([one.prompt for one in evidence]), "step": all_of("step"), "position": all_of("position"),
        "nodes": all_of("nodes"), "surrogate": all_of("surrogate"), "emitted": emitted, "walked": walked,
        "cut": emitted < walked, "clipped": (depth > 0) & (walked - 1 >= depth), "drafter_depth": depth,
        "text": [text for one in evidence for text in one.text]}, columns=list(COLUMNS))


def position_class(position: np.ndarray) -> np.ndarray:
    """int64, the first token of the class each position falls in (0, 16, 32, 64, ... output tokens)."""
    starts = np.array(POSITIONS)
    return starts[np.searchsorted(starts, np.asarray(position), side="right") - 1]


def position_name(start: int) -> str:
    """`16 to 31`, `1024 and more`."""
    place = POSITIONS.index(start)
    return f"{start} to {POSITIONS[place + 1] - 1}" if place + 1 < len(POSITIONS) else f"{start} and more"


def worst(frame: pd.DataFrame, count: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The `count` greatest over-estimates (S above walked) and under-estimates, worst first, with `error` = S - walked.

    Only steps whose error has the sign in question. Equal errors go by run and step.
    """
    judged = frame.assign(error=frame["surrogate"] - frame["walked"])
    over = judged[judged["error"] > 0].sort_values(["error", "run", "step"], ascending=[False, True, True])
    under = judged[judged["error"] < 0].sort_values(["error", "run", "step"])
    return over.head(count), under.head(count)
