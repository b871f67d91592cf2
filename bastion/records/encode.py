"""A step record as rows of the four tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from bastion.records.schema import GROWTH, LATER_COLUMNS, MARGINALS, NODES, STEPS
from bastion.step import GrowthLog, StepRecord, StepTrace


def step_batches(step: StepRecord, pieces: Sequence[str]) -> dict[str, pa.RecordBatch]:
    """The rows of one step, one batch per table that has any; `steps` comes last.

    `pieces` is the text each emitted token added to the output. Arrays are cast to the types of
    the schema, which are those `StepRecord` documents.
    """
    batches: dict[str, pa.RecordBatch] = {}
    if step.nodes:
        batches["nodes"] = _node_rows(step)
    if step.trace is not None:
        if step.trace.growth is not None and len(step.trace.growth):
            batches["growth"] = _growth_rows(step.index, step.trace.growth)
        if np.size(step.trace.marginal_token_ids):
            batches["marginals"] = _marginal_rows(step.index, step.trace)
    batches["steps"] = _step_row(step, pieces)
    return batches


def _step_row(step: StepRecord, pieces: Sequence[str]) -> pa.RecordBatch:
    trace = step.trace
    depth, choices = np.shape(trace.marginal_token_ids) if trace else (0, 0)
    values = {
        "step": step.index, "kind": step.kind, "emitted": [int(i) for i in step.emitted],
        "pieces": list(pieces), "context": step.context, "root": step.root, "nodes": step.nodes,
        "accepted": [int(i) for i in step.accepted], "bonus": step.bonus,
        "surrogate": step.surrogate, "stop_reason": step.stop_reason,
        "draft_seconds": step.seconds.draft, "build_seconds": step.seconds.build,
        "verify_seconds": step.seconds.verify, "commit_seconds": step.seconds.commit,
        "top2_gaps": step.top2_gaps,
        "predicted_verify_seconds": step.predicted_verify_seconds,
        "traced": trace is not None, "marginal_depth": depth, "marginal_choices": choices,
        "target_choices": np.shape(trace.target_top_ids)[1] if trace else 0,
        "growth_rows": len(trace.growth) if trace and trace.growth is not None else None,
        "predicted_seconds": trace.predicted_seconds if trace else [],
        "predicted_draft_seconds": trace.predicted_draft_seconds if trace else None,
        "predicted_other_seconds": trace.predicted_other_seconds if trace else None,
        **{name: getattr(trace.faithfulness, name) if trace and trace.faithfulness is not None else None for name in LATER_COLUMNS},
    }
    arrays = []
    for column in STEPS:
        value = values[column.name]
        if isinstance(value, np.ndarray):
            arrays.append(_lists(value[None, :], column.type))
        else:
            arrays.append(pa.array([value], column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=STEPS)


def _node_rows(step: StepRecord) -> pa.RecordBatch:
    n, trace = step.nodes, step.trace
    if trace is None:
        traced = [pa.nulls(n, NODES.field(name).type) for name in
                  ("target_log_prob", "target_top_ids", "target_top_log_probs")]
    else:
        traced = [_column(trace.target_log_probs, pa.float32()),
                  _lists(trace.target_top_ids, NODES.field("target_top_ids").type),
                  _lists(trace.target_top_log_probs, NODES.field("target_top_log_probs").type)]
    return pa.RecordBatch.from_arrays([
        _same(step.index, n), pa.array(np.arange(n)),
        _column(step.token_ids, pa.int64()), _column(step.parents, pa.int64()),
        _column(step.depths, pa.int64()), _column(step.path_log_probs, pa.float64()), *traced,
    ], schema=NODES)


def _growth_rows(index: int, growth: GrowthLog) -> pa.RecordBatch:
    pops = len(growth)
    logged = (growth.token_ids, growth.parents, growth.depths, growth.ranks,
              growth.path_log_probs, growth.gains, growth.prices, growth.bought, growth.dropped)
    columns = [_column(values, GROWTH.field(position).type)
               for position, values in enumerate(logged, start=2)]
    return pa.RecordBatch.from_arrays(
        [_same(index, pops), pa.array(np.arange(1, pops + 1)), *columns], schema=GROWTH)


def _marginal_rows(index: int, trace: StepTrace) -> pa.RecordBatch:
    depth, choices = np.shape(trace.marginal_token_ids)
    return pa.RecordBatch.from_arrays([
        _same(index, depth * choices),
        pa.array(np.repeat(np.arange(1, depth + 1), choices)),
        pa.array(np.tile(np.arange(choices), depth)),
        _column(np.ravel(trace.marginal_token_ids), pa.int64()),
        _column(np.ravel(trace.marginal_log_probs), pa.float32()),
    ], schema=MARGINALS)


def _same(value: int, count: int) -> pa.Array:
    return pa.array(np.full(count, value, np.int64))


def _column(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    """NaN stays NaN: null is kept for what was never measured."""
    return pa.array(np.ascontiguousarray(values, kind.to_pandas_dtype()), kind, from_pandas=False)


def _lists(rows: np.ndarray, kind: pa.ListType) -> pa.Array:
    """Rows of equal length [n, k] as a list column."""
    n, k = rows.shape
    offsets = pa.array(np.arange(0, n * k + 1, k, dtype=np.int32) if k
                       else np.zeros(n + 1, np.int32))
    return pa.ListArray.from_arrays(offsets, _column(np.ravel(rows), kind.value_type), type=kind)
