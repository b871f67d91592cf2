"""A race as JSON for the replay component: per lane the text, the trees and the measured times of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bastion.analysis.race_lanes import Lane
from bastion.analysis.race_replayed import nearest_repeat
from bastion.figures.palette import method_colour
from bastion.figures.tree_payload import step_payload
from bastion.records.races import is_whole
from bastion.records.run import Run

KEPT = ("i", "kind", "context", "n", "words", "ms", "tokens", "parents", "depths", "y", "p", "accepted", "bonus", "texts")


def lane_payload(label: str, run: Run, repeat: int) -> dict[str, Any]:
    """One lane. `ends[k]` is when step k is over, in ms of decode steps since the prefill ended (0 for the
    prefill itself); `prefill` is the prefill's ms. Trees are the verified nodes and the bonus token."""
    steps, ends, clock, prefill = [], [], 0.0, 0.0
    for step, pieces in zip(run.steps, run.pieces, strict=True):
        whole = step_payload(replace(step, trace=None), run.text_of, pieces=pieces)
        steps.append({name: whole[name] for name in KEPT if name in whole})
        milliseconds = 1e3 * step.seconds.total
        if step.kind == "prefill":
            prefill += milliseconds
        else:
            clock += milliseconds
        ends.append(round(clock, 3))
    return {"label": label, "method": run.info["method"], "colour": method_colour(run.info["method"]), "run": run.id,
            "repeat": repeat, "whole": is_whole(run),
            "prefill": round(prefill, 3), "ends": ends, "steps": steps}


def race_payload(race: str, lanes: Sequence[Lane], repeat: int | None = None) -> dict[str, Any]:
    """The component's `data`. repeat: the one to replay; a lane without it is left out. None takes the repeat
    nearest to the medians, and for a lane without that one its median run, whose label then says which repeat it is.
    `race` names what is replayed: the component starts anew when it changes."""
    shown, nearest = [], repeat or nearest_repeat(lanes)
    for lane in lanes:
        run, label, number = lane.run(nearest) if nearest is not None else None, lane.label, nearest
        if repeat is None and lane.runs and (run is None or not run.steps):
            run, number = lane.runs[lane.median], lane.repeats[lane.median]
            label += f", repeat {number}" if number != nearest else ""
        if run is not None and run.steps:
            shown.append(lane_payload(label, run, number))
    return {"race": f"{race}/{repeat or 'nearest'}", "lanes": shown}
