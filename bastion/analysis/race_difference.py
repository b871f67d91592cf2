"""Where two decodes of one prompt part, and how close the target's choice was there."""

from __future__ import annotations

from dataclasses import dataclass

from bastion.analysis import parting
from bastion.records.run import Run


@dataclass(frozen=True, slots=True)
class Difference:
    """The first position at which the emitted ids of a run differ from the yardstick's."""

    position: int               # emitted tokens before it, from 0
    repeat: int                 # the repeat in which it was seen
    top2_gap: float | None      # the target's two largest logits apart, there, as the yardstick saw them; None past its end
    yardstick_token: str | None # text of the token that plain decoding emitted; None past its end
    token: str | None           # text of the token emitted instead; None past its end


def first_difference(yardstick: Run, run: Run, repeat: int = 1) -> Difference | None:
    """Where `run` parts from `yardstick`; None when the ids are equal.

    A run that was cut short counts as equal as far as it went: its end is no choice of the target.
    Both had read the same tokens up to the position, so the gap is the same for both up to rounding.
    """
    left, right = yardstick.output_ids, run.output_ids
    position = parting.first_difference(left, right)
    if position is None or position == min(len(left), len(right)) and (_cut(run, yardstick) or _cut(yardstick, run)):
        return None
    gaps = [float(gap) for step in yardstick.steps for gap in step.top2_gaps]
    return Difference(position, repeat, gaps[position] if position < len(gaps) else None,
                      yardstick.text_of(left[position]) if position < len(left) else None,
                      run.text_of(right[position]) if position < len(right) else None)


def _cut(short: Run, long: Run) -> bool:
    """`short` ends early because it was stopped, killed, or allowed fewer tokens."""
    if len(short.output_ids) >= len(long.output_ids):
        return False
    return not short.complete or short.info.get("finish_reason") != "stop"
