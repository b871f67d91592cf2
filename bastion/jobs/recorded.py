"""From steps as they are decoded to a saved run, however the decode ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from bastion.jobs.job import Cancelled
from bastion.jobs.work import sentence
from bastion.step import StepRecord

Heard = Callable[[StepRecord, list[str]], None]
"""Hears each step once it is saved, with the text that each of its tokens added."""


def record(steps: Iterator[StepRecord], writer: Any, heard: Heard) -> None:
    """Save every step, then finish the run. `heard` may raise, as may decoding: what was decoded until
    then is kept as a run that was cancelled or failed (nothing of one without a step), and the error goes on."""
    emitted = 0
    try:
        for step in steps:
            pieces = writer.append(step)
            emitted += len(step.emitted)
            heard(step, pieces)
    except BaseException as error:
        if not emitted:
            writer.abandon()
        elif isinstance(error, Cancelled):
            writer.finish(finish_reason="cancelled")
        else:
            writer.finish(finish_reason="failed", note=sentence(error))
        raise
    finally:
        steps.close()
    writer.finish()
