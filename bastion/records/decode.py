"""The four tables as step records, every index checked on the way."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from bastion.records.checks import InconsistentStep, check_step
from bastion.records.schema import LATER_COLUMNS, TABLES
from bastion.step import Faithfulness, GrowthLog, StepRecord, StepSeconds, StepTrace


def steps_from_tables(tables: Mapping[str, pa.Table]) -> tuple[list[StepRecord], list[list[str]]]:
    """Step records, exactly as they were appended, and the text pieces of each.

    Raises `InconsistentStep` when a column is missing or of another type, when rows are missing,
    doubled or out of order, or when a step contradicts itself. Columns that this version does not
    know are ignored.
    """
    columns = {name: _Columns(tables[name], name) for name in TABLES}
    rows = columns["steps"]
    count = rows.length
    if not np.array_equal(rows.numbers("step"), np.arange(count)):
        raise InconsistentStep("the steps are not numbered 0, 1, 2, ... in order")
    bounds = {name: _bounds(columns[name], count) for name in ("nodes", "growth", "marginals")}
    steps = [_step(columns, bounds, index) for index in range(count)]
    for step in steps:
        check_step(step)
    pieces = rows.lists("pieces")
    for step, texts in zip(steps, pieces):
        if len(texts) != len(step.emitted) or any(text is None for text in texts):
            raise InconsistentStep(f"step {step.index}: not one piece of text per emitted token")
    return steps, pieces


class _Columns:
    """The columns of one table, cast to the schema once and cut by row range many times."""

    def __init__(self, table: pa.Table, name: str) -> None:
        self.name, self.length = name, table.num_rows
        self._arrays: dict[str, pa.Array] = {}
        self._numbers: dict[str, np.ndarray] = {}
        self._lists: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for field in TABLES[name]:
            if field.name not in table.column_names and field.name in LATER_COLUMNS:
                self._arrays[field.name] = pa.nulls(table.num_rows, field.type)
                continue
            if field.name not in table.column_names:
                raise InconsistentStep(f"table {name} lacks the column {field.name!r}")
            column = table.column(field.name)
            if column.type != field.type:
                raise InconsistentStep(f"column {field.name!r} of table {name} holds "
                                       f"{column.type} where {field.type} belongs")
            if not field.nullable and column.null_count:
                raise InconsistentStep(f"column {field.name!r} of table {name} has gaps")
            self._arrays[field.name] = _one_array(column)

    def numbers(self, column: str) -> np.ndarray:
        """One value per row."""
        if column not in self._numbers:
            self._numbers[column] = self._arrays[column].to_numpy(zero_copy_only=False)
        return self._numbers[column]

    def value(self, column: str, row: int):
        """One Python value; None for null."""
        return self._arrays[column][row].as_py()

    def lists(self, column: str) -> list[list]:
        return self._arrays[column].to_pylist()

    def row_list(self, column: str, row: int) -> np.ndarray:
        """The values of one list, as an array; empty for a null."""
        values, offsets = self._list_parts(column)
        return values[offsets[row]:offsets[row + 1]]

    def _list_parts(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        if column not in self._lists:
            array = self._arrays[column]
            if array.values.null_count:
                raise InconsistentStep(f"column {column!r} of table {self.name} has gaps")
            self._lists[column] = (array.values.to_numpy(zero_copy_only=False),
                                   array.offsets.to_numpy())
        return self._lists[column]

    def nulls(self, column: str, first: int, last: int) -> int:
        """Rows without a value among first..last-1."""
        return self._arrays[column].slice(first, last - first).null_count

    def stacked(self, column: str, first: int, last: int, width: int) -> np.ndarray:
        """Lists of equal length in rows first..last-1 as an array [rows, width]."""
        if self.nulls(column, first, last):
            raise InconsistentStep(f"column {column!r} of table {self.name} has gaps")
        values, offsets = self._list_parts(column)
        window = offsets[first:last + 1]
        if (np.diff(window) != width).any():
            raise InconsistentStep(f"column {column!r} of table {self.name} has lists of other "
                                   f"lengths than {width}")
        return values[window[0]:window[-1]].reshape(last - first, width)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        return combined.chunk(0) if combined.num_chunks else pa.array([], column.type)
    return combined


def _bounds(columns: _Columns, count: int) -> np.ndarray:
    """Row r[i]..r[i+1]-1 belong to step i."""
    step = columns.numbers("step")
    if len(step) and (step[0] < 0 or step[-1] >= count or (np.diff(step) < 0).any()):
        raise InconsistentStep(f"table {columns.name} has rows out of step order")
    return np.searchsorted(step, np.arange(count + 1))


def _step(columns: Mapping[str, _Columns], bounds: Mapping[str, np.ndarray],
          index: int) -> StepRecord:
    steps, nodes = columns["steps"], columns["nodes"]
    first, last = bounds["nodes"][index:index + 2]
    if last - first != steps.value("nodes", index) \
            or not np.array_equal(nodes.numbers("node")[first:last], np.arange(last - first)):
        raise InconsistentStep(f"step {index}: its nodes are not all there")

    def node(column: str) -> np.ndarray:
        return nodes.numbers(column)[first:last]

    return StepRecord(
        index=index, kind=steps.value("kind", index), emitted=steps.row_list("emitted", index).tolist(),
        context=steps.value("context", index), root=steps.value("root", index),
        token_ids=node("token_id"), parents=node("parent"), depths=node("depth"),
        path_log_probs=node("path_log_prob"), accepted=steps.row_list("accepted", index),
        bonus=steps.value("bonus", index), surrogate=steps.value("surrogate", index),
        stop_reason=steps.value("stop_reason", index),
        seconds=StepSeconds(*(steps.value(f"{part}_seconds", index)
                              for part in ("draft", "build", "verify", "commit"))),
        top2_gaps=steps.row_list("top2_gaps", index),
        predicted_verify_seconds=steps.value("predicted_verify_seconds", index),
        trace=_trace(columns, bounds, index) if steps.value("traced", index) else None)


def _trace(columns: Mapping[str, _Columns], bounds: Mapping[str, np.ndarray],
           index: int) -> StepTrace:
    steps, nodes, marginals = columns["steps"], columns["nodes"], columns["marginals"]
    first, last = bounds["nodes"][index:index + 2]
    choices = steps.value("target_choices", index)
    if nodes.nulls("target_log_prob", first, last):
        raise InconsistentStep(f"step {index}: a node without the target's log-prob")
    shape = (steps.value("marginal_depth", index), steps.value("marginal_choices", index))
    low, high = bounds["marginals"][index:index + 2]
    if min(*shape, choices) < 0 or high - low != shape[0] * shape[1] \
            or not np.array_equal(marginals.numbers("rank")[low:high],
                                  np.tile(np.arange(shape[1]), shape[0])) \
            or not np.array_equal(marginals.numbers("depth")[low:high],
                                  np.repeat(np.arange(1, shape[0] + 1), shape[1])):
        raise InconsistentStep(f"step {index}: its marginals are not all there")
    return StepTrace(
        marginal_token_ids=marginals.numbers("token_id")[low:high].reshape(shape),
        marginal_log_probs=marginals.numbers("log_prob")[low:high].reshape(shape),
        target_log_probs=nodes.numbers("target_log_prob")[first:last],
        target_top_ids=nodes.stacked("target_top_ids", first, last, choices),
        target_top_log_probs=nodes.stacked("target_top_log_probs", first, last, choices),
        growth=_growth(columns, bounds, index),
        predicted_seconds=steps.row_list("predicted_seconds", index),
        predicted_draft_seconds=steps.value("predicted_draft_seconds", index),
        predicted_other_seconds=steps.value("predicted_other_seconds", index),
        faithfulness=_faithfulness(steps, index))


def _faithfulness(steps: _Columns, index: int) -> Faithfulness | None:
    names = ("variation", "rule_entropy", "target_entropy", "surprise")
    values = [steps.value(name, index) for name in names]
    if None in values:
        return None
    found = [np.array(value, np.float64) for value in values]   # a gap within reads as NaN
    if any(len(value) != len(steps.row_list("emitted", index)) for value in found):
        raise InconsistentStep(f"step {index}: faithfulness is not one value per emitted token")
    return Faithfulness(*found)


def _growth(columns: Mapping[str, _Columns], bounds: Mapping[str, np.ndarray],
            index: int) -> GrowthLog | None:
    growth = columns["growth"]
    pops = columns["steps"].value("growth_rows", index)
    low, high = bounds["growth"][index:index + 2]
    if high - low != (pops or 0) \
            or not np.array_equal(growth.numbers("pop")[low:high], np.arange(1, high - low + 1)):
        raise InconsistentStep(f"step {index}: its growth log is not all there")
    if pops is None:
        return None
    return GrowthLog(*(growth.numbers(column)[low:high] for column in (
        "token_id", "parent", "depth", "rank", "path_log_prob", "gain", "price", "bought",
        "dropped")))
