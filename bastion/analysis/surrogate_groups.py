"""The same numbers for each method, prompt set, stretch of the text, temperature or run."""

from __future__ import annotations

import numpy as np
import pandas as pd

from bastion.analysis.reliability import Outcomes, overall
from bastion.analysis.surrogate_table import position_class, position_name

GROUPINGS = {"method": "method", "prompt_set": "prompt set", "position": "position in the text", "temperature": "temperature",
             "run": "run"}
"""Column of `step_frame` -> the words a page shows."""


def grouped(frame: pd.DataFrame, seen: Outcomes, by: str, outcome: str = "emitted") -> pd.DataFrame:
    """One row per group: group, steps, surrogate and outcome means, bias, pearson, spearman, ece (rank 1).

    frame: rows of `step_frame`, any part of them, with its index kept; seen: outcomes of the same
    runs, of which those of other rows are passed over. bias: mean of S minus the outcome. Correlations
    are NaN where a group is too small or does not vary, ece where no depth was traced.
    """
    from scipy.stats import pearsonr, spearmanr

    keys = position_class(frame["position"].to_numpy()) if by == "position" else frame[by].to_numpy()
    rows = []
    for key, part in frame.groupby(keys, sort=True, dropna=False):
        x, y = part["surrogate"].to_numpy(np.float64), part[outcome].to_numpy(np.float64)
        varies = len(part) >= 3 and np.ptp(x) > 0 and np.ptp(y) > 0
        error = overall(seen.where(np.isin(seen.row, part.index.to_numpy())), ranks=1).error
        rows.append({"group": _named(by, key), "steps": len(part), "mean_surrogate": x.mean(), f"mean_{outcome}": y.mean(),
                     "bias": (x - y).mean(), "pearson": pearsonr(x, y).statistic if varies else np.nan,
                     "spearman": spearmanr(x, y).statistic if varies else np.nan, "ece": np.nan if error is None else error})
    return pd.DataFrame(rows, columns=["group", "steps", "mean_surrogate", f"mean_{outcome}", "bias", "pearson", "spearman", "ece"])


def _named(by: str, key: object) -> str:
    if by == "position":
        return position_name(int(key))
    if by == "temperature":
        return "unknown" if pd.isna(key) else f"{key:g}"
    return str(key) or ("no set" if by == "prompt_set" else "unnamed")
