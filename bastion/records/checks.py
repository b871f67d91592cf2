"""What every step record must satisfy, checked before writing and again after reading."""

from __future__ import annotations

import numpy as np

from bastion.step import GrowthLog, StepRecord, StepTrace

KINDS = ("prefill", "decode")
MAX_TOKEN_ID = 2**31 - 1


class InconsistentStep(ValueError):
    """A record that contradicts itself; says which step and what."""


def check_step(step: StepRecord) -> None:
    """Raise `InconsistentStep` unless shapes, indices and the tree of `step` hold together.

    Values (probabilities, seconds) are not judged; NaN is allowed wherever a float stands.
    """
    def must(condition: bool, what: str) -> None:
        if not condition:
            raise InconsistentStep(f"step {step.index}: {what}")

    n = len(step.token_ids)
    must(step.kind in KINDS, f"kind {step.kind!r} is neither 'prefill' nor 'decode'")
    for name in ("parents", "depths", "path_log_probs"):
        must(np.shape(getattr(step, name)) == (n,), f"{name} does not have one value per node")
    _check_tree(step, must)
    must(len(step.top2_gaps) == len(step.emitted), "top2_gaps and emitted differ in length")
    must(all(0 <= token <= MAX_TOKEN_ID for token in step.emitted), "an emitted id is out of range")
    if step.kind == "decode":
        path = [int(token) for token in np.asarray(step.token_ids)[step.accepted[1:]]]
        must((path + [step.bonus])[:len(step.emitted)] == list(step.emitted),
             "emitted is not the accepted path followed by the bonus token")
    if step.trace is not None:
        _check_trace(step.trace, n, must)


def _check_tree(step: StepRecord, must) -> None:
    n = len(step.token_ids)
    accepted = np.asarray(step.accepted)
    if n == 0:
        must(len(accepted) == 0, "accepted nodes in an empty tree")
        must(step.kind == "prefill", "a decode step without a tree")
        return
    parents, depths = np.asarray(step.parents), np.asarray(step.depths)
    must(parents[0] == -1 and depths[0] == 0, "node 0 is not a root")
    must(bool((parents[1:] >= 0).all() and (parents[1:] < np.arange(1, n)).all()),
         "a parent does not precede its child")
    must(bool((depths[1:] == depths[parents[1:]] + 1).all()), "a depth is not its parent's plus 1")
    must(_ids_in_range(step.token_ids), "a node's token id is out of range")
    must(len(accepted) >= 1 and accepted[0] == 0, "the accepted path does not start at the root")
    must(bool((accepted >= 0).all() and (accepted < n).all()), "an accepted node does not exist")
    must(bool((parents[accepted[1:]] == accepted[:-1]).all()), "the accepted nodes are no path")


def _check_trace(trace: StepTrace, n: int, must) -> None:
    must(np.ndim(trace.marginal_token_ids) == 2
         and np.shape(trace.marginal_token_ids) == np.shape(trace.marginal_log_probs),
         "marginal ids and log-probs differ in shape")
    must(np.shape(trace.target_log_probs) == (n,), "target_log_probs is not one value per node")
    must(np.ndim(trace.target_top_ids) == 2 and len(trace.target_top_ids) == n
         and np.shape(trace.target_top_ids) == np.shape(trace.target_top_log_probs),
         "the target's choices are not one row per node")
    must(np.ndim(trace.predicted_seconds) == 1, "predicted_seconds is not one row")
    must(_ids_in_range(trace.marginal_token_ids) and _ids_in_range(trace.target_top_ids),
         "a traced token id is out of range")
    if trace.growth is not None:
        _check_growth(trace.growth, must)


def _check_growth(growth: GrowthLog, must) -> None:
    pops = len(growth)
    for name in GrowthLog.__slots__:
        must(np.shape(getattr(growth, name)) == (pops,), f"growth {name} is not one value per pop")
    parents = np.asarray(growth.parents)
    must(bool((parents >= 0).all() and (parents <= np.arange(pops)).all()),
         "a popped node's parent was popped after it")
    must(_ids_in_range(growth.token_ids), "a popped token id is out of range")


def _ids_in_range(ids: np.ndarray) -> bool:
    ids = np.asarray(ids)
    return ids.size == 0 or bool(ids.min() >= 0 and ids.max() <= MAX_TOKEN_ID)
