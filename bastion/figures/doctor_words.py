"""The doctor's report in words and rows, the same in a shell and on the page. Reads `report_json`'s object."""

from __future__ import annotations

from typing import Any

from bastion.figures import numbers

TESTS = {"anchor": "anchor embedding at slot 0", "layers": "feature layers", "context": "where the features end",
         "template": "chat template and thinking mode", "positions": "positions", "mask": "mask token",
         "order": "attention within the block", "vocabulary": "vocabulary map", "target weights": "quantised or altered target",
         "drafter numbers": "number type of the drafter", "temperatures": "depth temperatures"}
"""name -> title of every test, for where no engine is at hand."""
HEADER = ("test", "change", "tau as loaded", "tau with it", "gain of tau", "gain, nats a token", "verdict")
VERDICTS = {"fault": "fault", "slight": "slight fault", "worse": "healthy: worse with it", "none": "healthy: no clear gain",
            "same": "healthy: already so"}


def headline(report: dict[str, Any]) -> str:
    count = len(report["findings"])
    said = "no fault found" if not count else f"{count} fault{'s' * (count > 1)} found, the costliest first"
    return (f"{report['pair']}: tau {numbers.significant(report['tau'])} at {numbers.count(report['positions'])} positions, {said}.")


def finding(one: dict[str, Any]) -> str:
    """One sentence: what helped, by how much, and what to do."""
    return (f"{one['test']}: tau {numbers.significant(one['tau_before'])} becomes {numbers.significant(one['tau_after'])} with "
            f"{one['change']}. Next: {one['todo']}.")


def verdict(one: dict[str, Any]) -> str:
    return VERDICTS[one["verdict"]]


def rows(report: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row for each change that was tried, in the order of HEADER."""
    return [(one["test"], one["change"], *_numbers(one), verdict(one)) for one in report["tried"]]


def _numbers(one: dict[str, Any]) -> tuple[str, str, str, str]:
    if one["tau_before"] is None:
        return ("", "", "", "")
    return (numbers.significant(one["tau_before"]), numbers.significant(one["tau_after"]),
            interval(one["tau_gain"], one["tau_interval"], 2), interval(one["nats_gain"], one["nats_interval"], 3))


def interval(value: float, ends: list[float], digits: int) -> str:
    low, high = (f"{end:+.{digits}f}" for end in ends)
    return f"{value:+.{digits}f} ({low} to {high})"


def method(report: dict[str, Any]) -> str:
    """What the numbers are, in a paragraph."""
    return (f"Measured, not decoded: the drafter proposes at every position of the target's own greedy answers, and tau is the mean of what "
            f"a best-first tree of {report['nodes']} nodes beside the root would emit there. A change that raises tau undoes a fault: it is "
            f"named where its whole {report['confidence']:.0%} interval (bootstrap over stretches of positions) lies above "
            f"{report['least_gain']:g} tokens, and named slight where only the log-likelihood of the target's tokens rises, by more than "
            f"{report['least_nats']:g} nats a token. A change that early does harm, or nothing, is not measured at all positions.")
