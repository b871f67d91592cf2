"""How many nodes a step should have bought: by the drafter's estimate, and with hindsight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bastion.step import StepRecord


@dataclass(frozen=True, slots=True)
class SpeedByNodes:
    """Tokens per second predicted for every tree size n = 1..N along the growth log (arrays [N]).

    N goes past the tree that was bought as far as the log and the predictions reach.
    """

    nodes: np.ndarray           # int64, 1..N, root included
    surrogate: np.ndarray       # float64, S(n) = 1 + sum of the first n - 1 path probabilities
    step_seconds: np.ndarray    # float64, T_draft + T_other + T_verify(n), as predicted
    tokens_per_second: np.ndarray  # float64, S(n) / step_seconds
    chosen: int                 # nodes that were verified
    best: int                   # the n with the greatest predicted speed, the smallest of several


@dataclass(frozen=True, slots=True)
class Hindsight:
    """The tree size that would have been right, the accepted path being known.

    `nodes` maximises `emitted(n) / predicted step time(n)` where `emitted(n)` counts the nodes of
    the known path (root included, for the bonus token) that are among the first n in pop order.
    """

    nodes: int
    emitted: int                # tokens that tree would have emitted
    tokens_per_second: float | None  # predicted; None without predicted seconds
    smallest_with_path: int     # the fewest nodes that emit what the step emitted
    reaches_past_the_tree: bool  # the target agreed with nodes that were logged but not bought


def surrogate_by_nodes(step: StepRecord) -> np.ndarray:
    """S(n) for n = 1..N, float64 [N]: 1 plus the path probabilities in pop order.

    Along the growth log where there is one (past the stop too), else along the tree's own order.
    """
    growth = step.trace.growth if step.trace is not None else None
    path = step.path_log_probs[1:] if growth is None else growth.path_log_probs
    return 1 + np.concatenate([[0.0], np.cumsum(np.exp(path))])


def speed_by_nodes(step: StepRecord) -> SpeedByNodes | None:
    """Predicted speed of every tree size (BASTION's objective S(n) / step time).

    None when the step has no tree, no trace or no predictions. Draft and other time that were not
    predicted count as what the step measured (draft; build + commit).
    """
    if step.trace is None or not step.nodes or not len(step.trace.predicted_seconds):
        return None
    surrogate = surrogate_by_nodes(step)
    count = min(len(surrogate), len(step.trace.predicted_seconds))
    surrogate = surrogate[:count]
    seconds = step.trace.predicted_seconds[:count] + fixed_seconds(step)
    with np.errstate(divide="ignore", invalid="ignore"):
        speed = surrogate / seconds
    return SpeedByNodes(np.arange(1, count + 1), surrogate, seconds, speed, step.nodes,
                        _first_best(speed))


def hindsight_nodes(step: StepRecord) -> Hindsight | None:
    """The tree size that hindsight would have chosen; None for a step without a tree.

    The known path is the accepted one as far as its tokens were emitted, followed past the bought
    tree where the log holds a node that carries the bonus token (it is what the target wants
    next); past that the target was never asked, so the path ends there. Without predicted seconds
    the answer is the smallest tree that holds the path: more nodes can only cost more.
    """
    if not step.nodes:
        return None
    order = _known_path(step)
    bought = _emitted_path(step)
    smallest = int(order[:bought].max()) + 1
    trace = step.trace
    if trace is None or not len(trace.predicted_seconds):
        return Hindsight(int(order.max()) + 1, len(order), None, smallest, len(order) > bought)
    count = min(len(trace.predicted_seconds), len(surrogate_by_nodes(step)))
    # Only sizes at which the path gets longer can be best where time grows with n, but time
    # need not grow (kernels change with n), so every size is tried.
    sizes = np.arange(1, count + 1)
    emitted = (order[None, :] < sizes[:, None]).sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        speed = emitted / (trace.predicted_seconds[:count] + fixed_seconds(step))
    best = _first_best(speed)
    return Hindsight(best, int(emitted[best - 1]), float(speed[best - 1]), smallest,
                     len(order) > bought)


def fixed_seconds(step: StepRecord) -> float:
    """T_draft + T_other of a step: as predicted, else as measured (build and commit are other)."""
    trace = step.trace
    draft = trace.predicted_draft_seconds if trace is not None else None
    other = trace.predicted_other_seconds if trace is not None else None
    return (step.seconds.draft if draft is None else draft) + (
        step.seconds.build + step.seconds.commit if other is None else other)


def _emitted_path(step: StepRecord) -> int:
    """Nodes of the accepted path that emitted a token (the root stands for the bonus token). Fewer
    than were accepted where a stop token or the length limit cut the output."""
    return max(1, min(len(step.accepted), len(step.emitted)))


def _known_path(step: StepRecord) -> np.ndarray:
    """Pop numbers (0 for the root) of the nodes the target is known to follow, int64 [a or a + 1].

    Tree nodes stand in pop order, so a node's index is its pop number unless rounding dropped
    nodes, which are always the last popped.
    """
    path = [int(node) for node in step.accepted[:_emitted_path(step)]]
    growth = step.trace.growth if step.trace is not None else None
    if growth is not None and len(step.emitted) == len(step.accepted):
        last = path[-1]
        unbought = ~growth.bought & (growth.parents == last) & (growth.token_ids == step.bonus)
        path.extend(int(row) + 1 for row in np.flatnonzero(unbought)[:1])
    return np.array(path, np.int64)


def _first_best(speed: np.ndarray) -> int:
    """n of the greatest finite speed, 1 when none is finite."""
    return int(np.argmax(np.where(np.isfinite(speed), speed, -np.inf))) + 1
