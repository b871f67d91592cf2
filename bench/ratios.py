"""How many times as fast one method is as another, prompt by prompt, against what was set as the aim.

Every ratio is taken on one prompt, between decodes that followed each other. Its mean is geometric, over the prompts of a
set and then over the sets, so that no set counts for more than another; its interval (95 %) is that of the same mean when
sets are drawn anew, and prompts within them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bench.measure import spread
from bench.tables import Table

ADAPTIVE = ("bastion", "bastion+ngram")
BEST = "best of " + " and ".join(ADAPTIVE)
AIMS = (("ar", "generate", 1.7), (BEST, "ar", 1.4), (BEST, "generate", 2.5), (BEST, "generate+lookup", 1.0))
"""(faster, slower, the least that the ratio should be)."""
DRAWS = 4000

Units = dict[str, dict[str, dict[str, Any]]]
Speed = Callable[[dict[str, Any]], float | None]


def decode_speed(told: dict[str, Any]) -> float | None:
    """Tokens behind the first per second from the first token to the last; None where there is none."""
    return told["tokens"] / told["seconds"] if told["tokens"] and told["seconds"] > 0 else None


def whole_speed(told: dict[str, Any]) -> float | None:
    """All tokens per second of the whole call, the reading of the prompt included; None as there."""
    return told["emitted"] / (told["seconds"] + told["first_seconds"]) if decode_speed(told) else None


def by_set(units: Units, above: str, below: str, speed: Speed = decode_speed) -> dict[str, list[float]]:
    """{set: ratio on each of its prompts on which both have a speed}."""
    found: dict[str, list[float]] = {}
    for key, told in units.items():
        if above in told and below in told and (fast := speed(told[above])) and (slow := speed(told[below])):
            found.setdefault(key.partition("/")[0], []).append(fast / slow)
    return found


def mean(ratios: dict[str, list[float]]) -> float:
    """Geometric, over the prompts of a set, then over the sets."""
    return float(np.exp(np.mean([np.log(some).mean() for some in ratios.values()])))


def interval(ratios: dict[str, list[float]], draws: int = DRAWS) -> tuple[float, float]:
    """95 % of `mean` when as many sets are drawn anew with replacement, and of each as many prompts."""
    rng = np.random.default_rng(0)
    drawn = np.stack([np.log(some)[rng.integers(0, len(some), (draws, len(ratios), len(some)))].mean(axis=2) for some in ratios.values()])
    sets = rng.integers(0, len(ratios), (draws, len(ratios)))
    low, high = np.exp(np.percentile(drawn[sets, np.arange(draws)[:, None], np.arange(len(ratios))].mean(axis=1), (2.5, 97.5)))
    return float(low), float(high)


def judge(units: Units, aims: Sequence[tuple[str, str, float]] = AIMS) -> list[dict[str, Any]]:
    """One row an aim both of whose methods were measured. "best of" is one method for all prompts, not the best of each."""
    rows = []
    for above, below, aim in aims:
        chosen = _best(units) if above == BEST else above
        ratios = by_set(units, chosen, below) if chosen else {}
        if not ratios:
            continue
        every = [one for some in ratios.values() for one in some]
        rows.append({"above": chosen, "below": below, "aim": aim, "mean": mean(ratios), "interval": interval(ratios), "spread": spread(every).json(),
                     "least": min(every), "most": max(every), "whole": mean(by_set(units, chosen, below, whole_speed)), "holds": mean(ratios) >= aim})
    return rows


def _best(units: Units) -> str | None:
    """The adaptive method with the best mean against `ar`, or against `generate` where `ar` was not measured."""
    for below in ("ar", "generate"):
        found = {method: mean(ratios) for method in ADAPTIVE if (ratios := by_set(units, method, below))}
        if found:
            return max(found, key=found.__getitem__)
    return None


def tabulate(rows: Sequence[dict[str, Any]]) -> Table:
    header = ["ratio of tokens/s, prompt by prompt", "geometric mean", "95 %", "quartiles", "least-most", "prompt included", "aim", "reached"]
    return Table(header, [[f"{row['above']} / {row['below']}", f"{row['mean']:.2f}x",
                           f"{row['interval'][0]:.2f}-{row['interval'][1]:.2f}",
                           f"{row['spread']['low']:.2f}-{row['spread']['high']:.2f}", f"{row['least']:.2f}-{row['most']:.2f}",
                           f"{row['whole']:.2f}x", f"{row['aim']:.1f}x", "yes" if row["holds"] else "no"] for row in rows])
