"""Step payloads for the tree component, made once per step and shared by every tab that looks at the run."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from bastion.figures.tree_payload import step_payload
from bastion.step import StepRecord

KEPT_RUNS = 8

_runs: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()
_lock = threading.Lock()


def payloads(run_id: str, steps: Sequence[StepRecord], pieces: Sequence[Sequence[str]],
             vocabulary: Mapping[str, str], drafter_depth: int | None) -> list[dict[str, Any]]:
    """One payload per step, in order. Steps of a run are only ever added, so known ones are not made again."""
    def text_of(token: int) -> str:
        return vocabulary.get(str(token), f"<token {token}>")

    with _lock:
        made = _runs.setdefault(run_id, [])
        _runs.move_to_end(run_id)
        while len(_runs) > KEPT_RUNS:
            _runs.popitem(last=False)
        for index in range(len(made), len(steps)):
            made.append(step_payload(steps[index], text_of, drafter_depth, pieces[index]))
        return made[:len(steps)]
