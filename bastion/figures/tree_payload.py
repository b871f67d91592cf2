"""One step as compact JSON for the tree component: columns, rounded, texts in a table.

The nodes come in one list: the verified tree (indices as in the record), then the rows of the
growth log past the stop, then the bonus token where no drafted node carries it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from bastion.analysis import hindsight_nodes, speed_by_nodes
from bastion.figures.palette import method_colour
from bastion.figures.tidy import tidy_layout
from bastion.step import StepRecord
from bastion.token_text import escape_undecodable, show_token

NOT_BOUGHT_EXTENT = 0.5
"""Rows that a node past the stop claims: it is drawn small, without a label."""


class _Texts:
    """Distinct tokens as they are shown, in order of first use, so that a payload holds each of them once."""

    def __init__(self, text_of: Callable[[int], str]) -> None:
        self._text_of = text_of
        self._places: dict[int, int] = {}
        self.texts: list[str] = []

    def place(self, token: int) -> int:
        token = int(token)
        if token not in self._places:
            self._places[token] = len(self.texts)
            self.texts.append(show_token(self._text_of(token)))
        return self._places[token]

    def places(self, tokens: Iterable[int]) -> list[int]:
        return [self.place(token) for token in tokens]


def rounded(value: float | None, digits: int = 4) -> float | None:
    """`value` at `digits` significant digits, JSON-safe: None where it is no finite number."""
    if value is None:
        return None
    value = float(value)
    if not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def _column(values: Iterable[float], digits: int = 4) -> list[float | None]:
    return [rounded(value, digits) for value in values]


def _drawn_nodes(step: StepRecord) -> tuple[list[int], list[int], list[int], list[float], int]:
    """Token ids, parents, depths and path log-probs of all nodes drawn, and the bonus node's index."""
    ids = [int(i) for i in step.token_ids]
    parents = [int(i) for i in step.parents]
    depths = [int(i) for i in step.depths]
    logs = [float(v) for v in step.path_log_probs]
    growth = step.trace.growth if step.trace else None
    if growth is not None:
        for row in range(step.nodes - 1, len(growth)):
            ids.append(int(growth.token_ids[row]))
            parents.append(int(growth.parents[row]))
            depths.append(int(growth.depths[row]))
            logs.append(float(growth.path_log_probs[row]))
    last = int(step.accepted[-1]) if len(step.accepted) else 0
    for node in range(step.nodes, len(ids)):
        if parents[node] == last and ids[node] == step.bonus:
            return ids, parents, depths, logs, node
    ids.append(int(step.bonus))
    parents.append(last)
    depths.append(depths[last] + 1)
    logs.append(_bonus_path_log_prob(step, last, depths[-1]))
    return ids, parents, depths, logs, len(ids) - 1


def _bonus_path_log_prob(step: StepRecord, last: int, depth: int) -> float:
    rank = _rank(step, depth, step.bonus)
    if rank is None:
        return math.nan
    return float(step.path_log_probs[last]) + float(step.trace.marginal_log_probs[depth - 1, rank])


def _rank(step: StepRecord, depth: int, token: int) -> int | None:
    """Rank of a token among the marginals of a depth, 0 for the most probable; None when not listed."""
    trace = step.trace
    if trace is None or not 1 <= depth <= len(trace.marginal_token_ids):
        return None
    places = np.flatnonzero(trace.marginal_token_ids[depth - 1] == token)
    return int(places[0]) if len(places) else None


def _target_columns(step: StepRecord, texts: _Texts, bonus_parent: int, bonus: int, drawn: int) -> dict[str, Any]:
    """Target's probability of each node, and its own most probable next tokens after each verified one."""
    trace = step.trace
    probability: list[float | None] = [None] * drawn
    if trace is None:
        return {"target": probability, "choices": [], "choice_p": []}
    for node in range(1, step.nodes):
        probability[node] = rounded(math.exp(float(trace.target_log_probs[node])))
    after = np.flatnonzero(trace.target_top_ids[bonus_parent] == step.bonus)
    if len(after):
        probability[bonus] = rounded(math.exp(float(trace.target_top_log_probs[bonus_parent, after[0]])))
    return {
        "target": probability,
        "choices": [texts.places(row) for row in trace.target_top_ids],
        "choice_p": [_column(np.exp(np.asarray(row, dtype=np.float64))) for row in trace.target_top_log_probs],
    }


def step_payload(step: StepRecord, text_of: Callable[[int], str], drafter_depth: int | None = None,
                 pieces: Sequence[str] | None = None) -> dict[str, Any]:
    """What the component needs of one step. Times in ms, gains and prices in token ms.

    text_of: the text of a token id by itself, as decoded, unescaped. drafter_depth: deepest position
    the drafter proposes; a step that accepts that many drafted tokens hit the limit. pieces: what
    each emitted token added to the text (`Run.pieces`), which differs from the token by itself
    where a character is cut across tokens.
    """
    texts = _Texts(text_of)
    s = step.seconds
    payload: dict[str, Any] = {
        "i": step.index, "kind": step.kind, "context": int(step.context), "n": step.nodes,
        "words": [escape_undecodable(text) for text in
                  (pieces if pieces is not None else map(text_of, step.emitted))],
        "gaps": _column(step.top2_gaps, 3),
        "ms": _column((1e3 * s.draft, 1e3 * s.build, 1e3 * s.verify, 1e3 * s.commit)),
        "stop": step.stop_reason, "S": rounded(step.surrogate),
    }
    if step.nodes:
        payload |= _tree_columns(step, texts)
        accepted = len(step.accepted) - 1
        payload["limit"] = drafter_depth is not None and accepted >= drafter_depth
    payload["texts"] = texts.texts
    return payload


def _tree_columns(step: StepRecord, texts: _Texts) -> dict[str, Any]:
    ids, parents, depths, logs, bonus = _drawn_nodes(step)
    drawn, trace = len(ids), step.trace
    extents = [1.0 if node < step.nodes else NOT_BOUGHT_EXTENT for node in range(drawn)]
    for node in (*step.accepted, bonus):  # air around the path, most where rows are thin
        extents[node] = min(1 + step.nodes / 64, 5.0)
    marginals = [math.nan] + [math.exp(logs[v] - logs[parents[v]]) for v in range(1, drawn)]
    columns = {
        "ids": ids, "tokens": texts.places(ids), "parents": parents, "depths": depths,
        "y": [round(float(v), 2) for v in tidy_layout(parents, extents)],
        "p": _column(np.exp(logs)), "m": _column(marginals),
        "rank": [None] + [_rank(step, depths[v], ids[v]) for v in range(1, drawn)],
        "accepted": [int(node) for node in step.accepted], "bonus": bonus,
        **_target_columns(step, texts, parents[bonus], bonus, drawn),
        "predicted_ms": rounded(None if step.predicted_verify_seconds is None
                                else 1e3 * step.predicted_verify_seconds),
    }
    if trace is not None:
        columns["predicted_parts"] = [rounded(None if v is None else 1e3 * v) for v in
                                      (trace.predicted_draft_seconds, trace.predicted_other_seconds)]
        speed = speed_by_nodes(step)
        if speed is not None:
            hindsight = hindsight_nodes(step)
            columns["speeds"] = _column(speed.tokens_per_second)
            columns["best_n"] = speed.best
            columns["hindsight_n"] = hindsight.nodes if hindsight else None
        if trace.growth is not None:
            columns["gains"] = _column(1e3 * trace.growth.gains)
            columns["prices"] = _column(1e3 * trace.growth.prices)
    return columns


def run_payload(
    run: str,
    steps: list[dict[str, Any]],
    *,
    start: int = 0,
    live: bool = False,
    select: int | None = None,
    method: str = "",
    drafter_depth: int | None = None,
    yardstick: dict[str, Any] | None = None,
    note: str = "",
) -> dict[str, Any]:
    """The component's `data`: steps `start`.. of a run, each made by `step_payload`.

    steps: the payloads from index `start` of the run on. live: more will come. select: the step to
    show first (the URL's), by its index. yardstick: {"tokens_per_second": float, "measured": bool}
    for plain decoding of the same prompt. note: one line for an empty tree, such as what is awaited.
    """
    return {
        "run": run, "start": start, "steps": steps, "live": live, "select": select, "method": method,
        "colour": method_colour(method),
        "drafter_depth": drafter_depth, "yardstick": yardstick, "note": note,
    }
