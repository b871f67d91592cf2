"""The JSON object that `python -m bastion generate --json` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bastion.records.run import Run
from bastion.records.run_json import plain
from bastion.records.totals import (acceptance_lengths, output_ids, seconds_decode,
                                    seconds_prefill, tau, tokens_per_second)
from bastion.step import StepRecord


def run_to_json(run: Run | None = None, *, steps: Sequence[StepRecord] | None = None,
                info: Mapping[str, Any] | None = None, text: str | None = None) -> dict[str, Any]:
    """One JSON-able object for a saved run, or for a decode that was not saved.

    Give `run`, or `steps` with the `info` that `RunStore.create` takes (plus `finish_reason`) and
    the output `text`. Seconds in seconds, log-probs natural, token ids as numbers; what is
    undefined (tau without a decode step, a NaN) is None. `acceptance_lengths` and `tau` leave the
    prefill out. Without the trace: that is in the run on disk.
    """
    if run is not None:
        steps, info, text = run.steps, run.info, run.text
    elif steps is None or info is None or text is None:
        raise TypeError("give a run, or steps, info and text")
    sampling = info.get("sampling") or {}
    return plain({
        "id": info.get("id"),
        "text": text,
        "output_ids": output_ids(steps),
        "prompt_ids": info.get("prompt_ids", []),
        "method": info.get("method"),
        "pair": info.get("pair"),
        "device": info.get("device"),
        "dtype": info.get("dtype"),
        "dtype_why": info.get("dtype_why", ""),
        "temperature": sampling.get("temperature"),
        "sampling": sampling,
        "tau": tau(steps),
        "acceptance_lengths": acceptance_lengths(steps),
        "seconds_prefill": seconds_prefill(steps),
        "seconds_decode": seconds_decode(steps),
        "tokens_per_second": tokens_per_second(steps),
        "finish_reason": info.get("finish_reason"),
        "versions": info.get("versions", {}),
        **({"simulated": True} if info.get("simulated") else {}),
        "steps": [step_to_json(step) for step in steps],
    })


def step_to_json(step: StepRecord) -> dict[str, Any]:
    """One entry of `steps`: the record without its trace, arrays as lists."""
    return plain({
        "index": step.index,
        "kind": step.kind,
        "emitted": step.emitted,
        "context": step.context,
        "root": step.root,
        "nodes": step.nodes,
        "token_ids": step.token_ids,
        "parents": step.parents,
        "depths": step.depths,
        "path_log_probs": step.path_log_probs,
        "accepted": step.accepted,
        "bonus": step.bonus,
        "surrogate": step.surrogate,
        "stop_reason": step.stop_reason,
        "seconds": {"draft": step.seconds.draft, "build": step.seconds.build,
                    "verify": step.seconds.verify, "commit": step.seconds.commit},
        "predicted_verify_seconds": step.predicted_verify_seconds,
        "top2_gaps": step.top2_gaps,
    })
