"""Runs of a race made by hand: steps whose tokens and seconds are chosen, and synthetic ones with trees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bastion.records import Run
from bastion.step import StepRecord, StepSeconds

from tests.synthetic_runs import make_info, make_run, text_of


def chain_step(index: int, emitted: Sequence[int], root: int, seconds: StepSeconds, gaps: Sequence[float] | None = None) -> StepRecord:
    """A step that verified a chain and emitted all of it; the prefill when `index` is 0."""
    chain = [] if index == 0 else [root, *emitted[:-1]]
    n = len(chain)
    return StepRecord(
        index=index, kind="decode" if index else "prefill", emitted=list(emitted), context=10 + index, root=root,
        token_ids=np.array(chain, np.int64), parents=np.arange(n, dtype=np.int64) - 1, depths=np.arange(n, dtype=np.int64),
        path_log_probs=-0.5 * np.arange(n), accepted=np.arange(n, dtype=np.int64), bonus=emitted[-1], surrogate=1.0, stop_reason="chain",
        seconds=seconds, top2_gaps=np.array(gaps if gaps is not None else np.ones(len(emitted)), np.float32))


def chain_run(method: str, emitted: Sequence[Sequence[int]], seconds: Sequence[StepSeconds], gaps=None, repeat: int | None = None,
              **info) -> Run:
    """A run whose step k emits emitted[k] in seconds[k]."""
    steps, root = [], 1
    for index, (tokens, taken) in enumerate(zip(emitted, seconds, strict=True)):
        steps.append(chain_step(index, tokens, root, taken, None if gaps is None else gaps[index]))
        root = tokens[-1]
    return _run(method, steps, repeat, **info)


def tree_run(method: str, seed: int = 0, steps: int = 8, repeat: int | None = None, nodes: int = 16, **info) -> Run:
    """A run of synthetic steps with real trees."""
    return _run(method, make_run(steps, seed=seed, nodes=nodes), repeat, **info)


def _run(method: str, steps: list[StepRecord], repeat: int | None, **changes) -> Run:
    tokens = sorted({int(t) for step in steps for t in [*step.emitted, *step.token_ids.tolist(), step.bonus]})
    info = make_info(method=method, id=changes.pop("id", f"{method.replace(':', '-')}-{repeat or 1}"), created="2026-01-30T12:00:00+00:00",
                     complete=True, finish_reason="length", totals={}, text="", yardstick=None,
                     vocabulary=dict(zip(map(str, tokens), text_of(tokens), strict=True)),
                     group={"kind": "race", "id": "r", "repeat": repeat, "order": 1} if repeat else None)
    sampling = {**info["sampling"], **changes.pop("sampling", {})}
    return Run({**info, **changes, "sampling": sampling}, steps, [text_of(step.emitted) for step in steps])
