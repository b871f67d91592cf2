"""What one run says about the drafter's estimates, as arrays: read once per run, then kept.

Terms: the accepted path of a step has `walked` nodes, root included. The target's own token is
known at every depth d <= walked: the accepted token where d < walked, the bonus token at d = walked.
Deeper, the target was never asked along this path. S(n) estimates `walked`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bastion.analysis.acceptance import drafter_depth
from bastion.records.run import Run
from bastion.records.totals import decode_steps
from bastion.step import StepRecord

UNSEEN = -2
"""Rank of a depth that the accepted path did not reach: nobody asked the target there."""
OUTSIDE = -1
"""Rank of a target's token that is not among the recorded marginals of its depth."""


@dataclass(frozen=True, slots=True, eq=False)
class TreeNodes:
    """The verified nodes of all steps of a run, step by step (arrays [n]); roots are left out."""

    row: np.ndarray      # int64, which decode step of the run
    node: np.ndarray     # int64, index of the node in its tree, from 1
    parent: np.ndarray   # int64, index of its parent in the same tree, 0 for the root
    depth: np.ndarray    # int64, from 1
    rank: np.ndarray     # int64, place of its token in the recorded marginals of its depth; OUTSIDE when absent


@dataclass(frozen=True, slots=True, eq=False)
class Growth:
    """What regrowing the trees of a run takes, one row per decode step (arrays [s])."""

    kind: np.ndarray           # str: "adaptive", "fixed", or "" for a tree that best-first growth did not make
    fixed_seconds: np.ndarray  # float64, predicted T_draft + T_other; NaN without a calibration
    verify_seconds: np.ndarray # float64 [s, N], predicted T_verify of 1..N nodes at the step's context; NaN past the end
    min_nodes: int
    max_nodes: int | None      # None: as far as the predictions reach


@dataclass(frozen=True, slots=True, eq=False)
class RunEvidence:
    """The decode steps of one run (arrays [s]); D is the drafter's depth, K the recorded ranks."""

    run: str
    method: str
    prompt_set: str
    temperature: float
    prompt: str                # a short digest of the prompt's ids: runs that share it share a text
    drafter_depth: int         # D; 0 when it is not known, or when paths do not end there
    step: np.ndarray           # int64, index in the run
    position: np.ndarray       # int64, tokens of the output before the step
    nodes: np.ndarray          # int64, root included
    surrogate: np.ndarray      # float64
    walked: np.ndarray         # int64
    emitted: np.ndarray        # int64
    text: tuple[str, ...]      # what the step added to the output
    log_probs: np.ndarray      # float32 [s, D, K], recorded marginals; -inf where none was recorded
    known: np.ndarray          # int64 [s, D], rank of the target's token; OUTSIDE or UNSEEN
    tree: TreeNodes
    growth: Growth
    output: str = ""           # a digest of what was asked and of what each step gave: repeats of one decode share it

    def __len__(self) -> int:
        return len(self.step)

    @property
    def traced(self) -> bool:
        """Whether any step recorded what the drafter thought (more than plain decoding does)."""
        return bool(self.log_probs.size)


def run_evidence(run: Run) -> RunEvidence:
    """Everything this page needs of a run. A run without traces has empty marginals; plain decoding too."""
    steps = decode_steps(run.steps)
    emitted = np.array([len(step.emitted) for step in steps], np.int64)
    before = len(run.output_ids) - int(emitted.sum())  # the prefill's token
    log_probs, known = _marginals(steps)
    depth = run.info.get("drafter_depth")
    depth = depth if isinstance(depth, int) and depth > 0 else drafter_depth(steps) or 0
    tree = _tree(steps)
    if (tree.rank == OUTSIDE).any() or (any(step.trace is not None for step in steps) and not log_probs.size):
        depth = 0  # tokens come from elsewhere too, such as a lookup, whose paths the drafter's depth does not end
    sampling = run.info.get("sampling") or {}
    temperature = sampling.get("temperature")
    pieces = {step.index: "".join(texts) for step, texts in zip(run.steps, run.pieces)}
    return RunEvidence(
        run=run.id, method=run.info["method"], prompt_set=run.info.get("prompt_set") or "",
        temperature=float(temperature) if isinstance(temperature, (int, float)) else float("nan"),
        prompt=hashlib.sha256(np.array(run.prompt_ids, np.int64).tobytes()).hexdigest()[:10],
        drafter_depth=depth,
        step=np.array([step.index for step in steps], np.int64),
        position=before + np.cumsum(emitted) - emitted,
        nodes=np.array([step.nodes for step in steps], np.int64),
        surrogate=np.array([step.surrogate for step in steps], np.float64),
        walked=np.array([len(step.accepted) for step in steps], np.int64),
        emitted=emitted, text=tuple(pieces.get(step.index, "") for step in steps),
        log_probs=log_probs, known=known, tree=tree, growth=_growth(run, steps), output=_output(run))


def _output(run: Run) -> str:
    """Same prompt, method, pair and temperature, and above temperature 0 the same seed, and step by step the same ids."""
    sampling = run.info.get("sampling") or {}
    temperature = sampling.get("temperature")
    asked = [run.prompt_ids, run.info["method"], run.info.get("pair"), temperature, sampling.get("seed") if temperature else None]
    given = [[int(token) for token in step.emitted] for step in run.steps]
    return hashlib.sha256(json.dumps([asked, given], default=str).encode()).hexdigest()


def without_repeats(evidence: Sequence[RunEvidence]) -> tuple[list[RunEvidence], int]:
    """Each decode once, and how many repeats of one were left out.

    The repeats of a race are the same steps again, and counting them would feign certainty. Of those that are
    alike the first stays, or the first that recorded what the drafter thought.
    """
    kept: dict[str, RunEvidence] = {}
    for one in evidence:
        known = kept.setdefault(one.output or one.run, one)
        if one.traced and not known.traced:
            kept[one.output or one.run] = one
    return list(kept.values()), len(evidence) - len(kept)


def rank_in(ids: np.ndarray, token: int) -> int:
    """Place of `token` in one row of marginals, from 0; OUTSIDE when it is not there."""
    places = np.flatnonzero(ids == token)
    return int(places[0]) if len(places) else OUTSIDE


def _marginals(steps: Sequence[StepRecord]) -> tuple[np.ndarray, np.ndarray]:
    shapes = [step.trace.marginal_log_probs.shape for step in steps if step.trace is not None]
    depth, width = (max((shape[axis] for shape in shapes), default=0) for axis in (0, 1))
    if not depth or not width:
        depth = width = 0
    log_probs = np.full((len(steps), depth, width), -np.inf, np.float32)
    known = np.full((len(steps), depth), UNSEEN, np.int64)
    for row, step in enumerate(steps):
        if step.trace is None or not step.trace.marginal_log_probs.size:
            continue
        recorded = step.trace.marginal_log_probs
        log_probs[row, :recorded.shape[0], :recorded.shape[1]] = recorded
        path = [int(token) for token in step.token_ids[step.accepted[1:]]] + [int(step.bonus)]
        for d, token in enumerate(path[:recorded.shape[0]]):
            known[row, d] = rank_in(step.trace.marginal_token_ids[d], token)
    return log_probs, known


def _tree(steps: Sequence[StepRecord]) -> TreeNodes:
    columns: list[tuple[np.ndarray, ...]] = []
    for row, step in enumerate(steps):
        if step.trace is None or not step.trace.marginal_token_ids.size or step.nodes < 2:
            continue
        ids, depths = step.trace.marginal_token_ids, step.depths[1:]
        within = np.minimum(depths, len(ids)) - 1
        same = ids[within] == step.token_ids[1:, None]
        rank = np.where(same.any(1) & (depths <= len(ids)), same.argmax(1), OUTSIDE)
        columns.append((np.full(len(depths), row), np.arange(1, step.nodes), step.parents[1:], depths, rank))
    if not columns:
        return TreeNodes(*(np.zeros(0, np.int64) for _ in range(5)))
    return TreeNodes(*(np.concatenate(parts).astype(np.int64) for parts in zip(*columns)))


def _growth(run: Run, steps: Sequence[StepRecord]) -> Growth:
    kinds, fixed, tables = [], [], []
    for step in steps:
        trace = step.trace
        log = trace.growth if trace is not None else None
        adaptive = log is not None and len(log) > 0 and bool(np.isfinite(log.gains).all())
        known = trace is not None and trace.predicted_draft_seconds is not None and trace.predicted_other_seconds is not None
        kinds.append("" if log is None else "fixed" if not adaptive else "adaptive" if known else "")
        fixed.append(trace.predicted_draft_seconds + trace.predicted_other_seconds if known else np.nan)
        tables.append(trace.predicted_seconds if known else np.zeros(0))
    verify = np.full((len(steps), max(map(len, tables), default=0)), np.nan)
    for row, table in enumerate(tables):
        verify[row, :len(table)] = table
    bounds = run.info.get("tree") if isinstance(run.info.get("tree"), dict) else {}
    calibration = run.info.get("calibration") or {}
    largest = next((most for most in (bounds.get("max_nodes"), calibration.get("max_probed_nodes"))
                    if isinstance(most, int) and most >= 1), None)
    smallest = bounds.get("min_nodes")
    smallest = smallest if isinstance(smallest, int) and smallest >= 1 else 1
    return Growth(np.array(kinds, dtype="U8"), np.array(fixed, np.float64), verify, smallest,
                  None if largest is None else max(largest, smallest))
