"""The numbers that sum up a run, computed from its steps and stored in `run.json`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bastion.step import StepRecord


def decode_steps(steps: Sequence[StepRecord]) -> list[StepRecord]:
    """The steps without the prefill, whose one token no tree bought."""
    return [step for step in steps if step.kind == "decode"]


def acceptance_lengths(steps: Sequence[StepRecord]) -> list[int]:
    """Tokens each decode step added to the output, bonus included, cut where the output was cut.

    Tokens accepted past a stop token or past the length limit do not count, unlike in the
    published reference code.
    """
    return [len(step.emitted) for step in decode_steps(steps)]


def tau(steps: Sequence[StepRecord]) -> float | None:
    """Mean acceptance length over decode steps (BASTION's tau); None without one."""
    lengths = acceptance_lengths(steps)
    return sum(lengths) / len(lengths) if lengths else None


def seconds_decode(steps: Sequence[StepRecord]) -> float:
    """Wall seconds of all decode steps, every stage counted."""
    return sum((step.seconds.total for step in decode_steps(steps)), 0.0)


def seconds_prefill(steps: Sequence[StepRecord]) -> float:
    """Wall seconds until the first token stood."""
    return sum((step.seconds.total for step in steps if step.kind == "prefill"), 0.0)


def tokens_per_second(steps: Sequence[StepRecord]) -> float | None:
    """Tokens that decode steps emitted per second of decode steps; the prefill is left out of both."""
    seconds = seconds_decode(steps)
    return sum(acceptance_lengths(steps)) / seconds if seconds > 0 else None


def output_ids(steps: Sequence[StepRecord]) -> list[int]:
    """Every emitted id in order, the prefill's first."""
    return [int(token) for step in steps for token in step.emitted]


def run_totals(steps: Sequence[StepRecord]) -> dict[str, object]:
    """The object `totals` of `run.json`: plain values, seconds in seconds, None where undefined."""
    rounds = decode_steps(steps)
    return {
        "tokens": len(output_ids(steps)),
        "steps": len(rounds),
        "tau": tau(steps),
        "nodes_mean": sum(step.nodes for step in rounds) / len(rounds) if rounds else None,
        "seconds_prefill": seconds_prefill(steps),
        "seconds_decode": seconds_decode(steps),
        "tokens_per_second": tokens_per_second(steps),
    }


def why_finished(emitted: Sequence[int], stop_token_ids: Collection[int] | None,
                 max_new_tokens: int | None) -> str:
    """Why a decode that ran to its end did so: "stop", "length", or "context" (no room was left)."""
    if emitted and stop_token_ids and emitted[-1] in stop_token_ids:
        return "stop"
    if max_new_tokens is None or len(emitted) >= max_new_tokens:
        return "length"
    return "context"
