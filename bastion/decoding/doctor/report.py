"""The report as plain values, for JSON, the shell and the page."""

from __future__ import annotations

from typing import Any

from bastion.decoding.doctor.examine import Outcome, Report
from bastion.decoding.doctor.verdict import CONFIDENCE, LEAST_GAIN, LEAST_NATS


def report_json(report: Report) -> dict[str, Any]:
    """One JSON-able object. `tried` has every change, `findings` the best of each test that found something, in order."""
    return {
        "pair": report.pair, "tau": report.tau, "positions": report.positions, "nodes": report.nodes, "seconds": report.seconds,
        "confidence": CONFIDENCE, "least_gain": LEAST_GAIN, "least_nats": LEAST_NATS,
        "findings": [_outcome(one) for one in report.findings], "tried": [_outcome(one) for one in report.outcomes],
        "healthy": report.healthy, "not_tested": dict(report.not_tested),
    }


def _outcome(one: Outcome) -> dict[str, Any]:
    tau, nats = one.tau, one.likelihood
    return {
        "test": one.test, "change": one.label, "todo": one.todo, "verdict": verdict(one),
        "tau_before": tau and tau.before, "tau_after": tau and tau.after, "tau_gain": tau and tau.gain,
        "tau_interval": tau and [tau.low, tau.high], "positions": tau and tau.positions,
        "nats_gain": nats and nats.gain, "nats_interval": nats and [nats.low, nats.high],
    }


def verdict(one: Outcome) -> str:
    """fault, slight, same (it changes nothing), worse, none (no clear difference)."""
    if one.same:
        return "same"
    if one.found:
        return "fault" if one.tau.clear_tau else "slight"
    return "worse" if one.tau.high < 0 or (one.likelihood.high < 0 and one.tau.gain < 0) else "none"
