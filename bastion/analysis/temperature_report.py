"""Temperatures fitted on one half of the texts and judged on the other, with the budget they would have led to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bastion.analysis.reliability import Reliability, by_depth, outcomes, overall
from bastion.analysis.surrogate_correlation import Correlation, correlate
from bastion.analysis.surrogate_evidence import RunEvidence
from bastion.analysis.surrogate_report import Unit
from bastion.analysis.temperature import DepthTemperatures, fit_temperatures, halves, stacked, temper
from bastion.analysis.temperature_regrowth import Regrowth, regrow, rescored


@dataclass(frozen=True, slots=True, eq=False)
class TemperatureReport:
    """Before and after, on the steps that were not fitted to. S is correlated with the accepted path (walked)."""

    fitted: DepthTemperatures
    how: str  # how the texts were divided, in words
    steps_fitted: int
    steps_judged: int
    before: Correlation | None  # the recorded trees' own S
    after: Correlation | None  # the same trees scored at the fitted temperatures
    depths_before: dict[int, Reliability]  # rank 1
    depths_after: dict[int, Reliability]
    first_before: Reliability
    first_after: Reliability
    regrown: pd.DataFrame  # one row per regrown step, see `regrown_frame`
    irreproducible: int  # steps left out of it: their recorded tree does not come back at temperature 1
    single: int  # counted steps that recorded one marginal a depth, a chain: nothing to choose a temperature by
    bare: int  # counted steps that recorded none, such as a lookup or a run without traces
    unscored: int  # judged steps left out of the correlations: no tree, or a token outside the recorded ranks


def temperature_report(
    evidence: Sequence[RunEvidence], unit: Unit, with_cut: bool = False, resamples: int = 1000, seed: int = 0
) -> TemperatureReport | None:
    """None when no step recorded more than one marginal a depth. Steps without are passed over and counted."""
    counts = [np.full(len(one), True) if with_cut else one.emitted == one.walked for one in evidence]
    most = [np.where(count, marginals_a_depth(one), -1) for one, count in zip(evidence, counts)]
    single, bare = (sum(int((each == wanted).sum()) for each in most) for wanted in (1, 0))
    used = [place for place, each in enumerate(most) if (each > 1).any()]
    if not used:
        return None
    evidence, counts = [evidence[place] for place in used], [most[place] > 1 for place in used]
    fit, how = halves(evidence)
    log_probs, known = stacked(evidence)
    chosen, judged = (
        np.concatenate([(mask if wanted else ~mask) & count for mask, count in zip(fit, counts)]) for wanted in (True, False)
    )
    found = fit_temperatures(log_probs[chosen], known[chosen])
    seen = outcomes(evidence)
    seen = seen.where(judged[seen.row])
    after = _tempered(seen, log_probs, found.temperature)
    recorded = np.concatenate([one.surrogate for one in evidence])
    rescore = np.concatenate([rescored(one, found.temperature) for one in evidence])
    walked = np.concatenate([one.walked for one in evidence])
    # Both correlations over the same steps: those whose every node can be scored again.
    both = judged & np.isfinite(rescore)
    clusters = None if unit == "step" else np.repeat([getattr(one, unit) for one in evidence], [len(one) for one in evidence])[both]
    grown = [regrow(one, found.temperature, np.flatnonzero(~mask & count)) for one, mask, count in zip(evidence, fit, counts)]
    return TemperatureReport(
        found,
        how,
        int(chosen.sum()),
        int(judged.sum()),
        correlate(recorded[both], walked[both], clusters, resamples, seed),
        correlate(rescore[both], walked[both], clusters, resamples, seed),
        by_depth(seen),
        by_depth(after),
        overall(seen, 1),
        overall(after, 1),
        regrown_frame(evidence, grown),
        sum(one.irreproducible for one in grown),
        single,
        bare,
        int(judged.sum() - both.sum()),
    )


def marginals_a_depth(one: RunEvidence) -> np.ndarray:
    """The most marginals that each step recorded at any depth, int64 [s]; 0 where none was recorded."""
    return np.isfinite(one.log_probs).sum(2).max(1, initial=0)


def left_out_words(report: TemperatureReport) -> str:
    """Which of the counted steps do not enter, and why; empty when all do."""
    parts = [(report.single, "recorded one marginal a depth (chains)"), (report.bare, "recorded none (lookups, or no traces)")]
    said = [f"{count} {why}" for count, why in parts if count]
    total = report.steps_fitted + report.steps_judged + report.single + report.bare
    words = f"Left out of the {total} steps, since a temperature needs several marginals a depth: {' and '.join(said)}." if said else ""
    if report.unscored:
        words += (f" Of the judged, {report.unscored} cannot be scored again (no tree, or tokens outside the recorded ranks) "
                  "and do not enter the correlations.")
    return words.strip()


def regrown_frame(evidence: Sequence[RunEvidence], grown: Sequence[Regrowth]) -> pd.DataFrame:
    """One row per regrown step: run, method, step, adaptive, nodes, tokens (after: at least), held accepted tokens, predicted seconds."""
    frames = [
        pd.DataFrame(
            {
                "run": one.run,
                "method": one.method,
                "step": one.step[part.row],
                "adaptive": part.adaptive,
                "nodes_before": part.nodes_before,
                "nodes_after": part.nodes_after,
                "tokens_before": part.tokens_before,
                "tokens_after_at_least": part.tokens_after,
                "accepted": part.tokens_before - 1,
                "accepted_held": part.held,
                "predicted_seconds_before": part.seconds_before,
                "predicted_seconds_after": part.seconds_after,
                "capped": part.capped,
            }
        )
        for one, part in zip(evidence, grown)
        if len(part.row)
    ]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame({"method": [], "nodes_before": []})


def regrown_by_method(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per method: steps, mean nodes before and after, accepted tokens and those still held, predicted tokens per second.

    Speeds are known tokens over predicted seconds of the steps that have a prediction on both sides; NaN without any.
    """
    rows = []
    for method, part in frame.groupby("method", sort=True):
        timed = part[part["predicted_seconds_before"].notna() & part["predicted_seconds_after"].notna()]
        before, after = timed["predicted_seconds_before"].sum(), timed["predicted_seconds_after"].sum()
        rows.append(
            {
                "method": method,
                "steps": len(part),
                "nodes_before": part["nodes_before"].mean(),
                "nodes_after": part["nodes_after"].mean(),
                "accepted": int(part["accepted"].sum()),
                "accepted_held": int(part["accepted_held"].sum()),
                "tokens_before": int(part["tokens_before"].sum()),
                "tokens_after_at_least": int(part["tokens_after_at_least"].sum()),
                "predicted_tokens_per_second_before": timed["tokens_before"].sum() / before if before > 0 else np.nan,
                "predicted_tokens_per_second_after_at_least": timed["tokens_after_at_least"].sum() / after if after > 0 else np.nan,
            }
        )
    return pd.DataFrame(rows)


def _tempered(seen, log_probs: np.ndarray, temperatures: np.ndarray):
    """The same outcomes with the confidence that tempered marginals would have had."""
    from bastion.analysis.reliability import Outcomes

    tempered = np.exp(temper(log_probs, temperatures)[seen.row, seen.depth - 1])
    return Outcomes(seen.row, seen.depth, seen.rank, np.where(np.isfinite(seen.confidence), tempered, np.nan))
