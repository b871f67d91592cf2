"""How many nodes a tree may have: a fixed number, or what the device's latency pays for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np

from bastion.errors import UserError

Count = int | np.ndarray
Value = float | np.ndarray
StopRule = Callable[[Count, Value, Value], tuple[Value, Value]]
"""(nodes so far, path probability of the next, surrogate so far) -> (gain, price); scalars, or arrays that broadcast."""


class Budget(Protocol):
    """What best-first growth asks of a budget. All counts include the root."""

    @property
    def min_nodes(self) -> int: ...

    @property
    def max_nodes(self) -> int: ...

    @property
    def full_reason(self) -> str:
        """stop_reason of a tree that reached max_nodes."""

    @property
    def look_past(self) -> int:
        """How many nodes behind one that does not pay are looked at; 0 for the plain rule, and where a budget has none."""

    def stop_rule(self) -> StopRule | None:
        """A rule that keeps the next node while gain > price; None when nodes are free."""

    def rounded(self, nodes: int) -> int:
        """The size returned when growth stopped at `nodes`."""


@dataclass(frozen=True, slots=True)
class FixedBudget:
    """`nodes` nodes, root included (DDTree counts without the root)."""

    nodes: int
    look_past: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise UserError(f"A tree holds at least its root: give 1 node or more, not {self.nodes}.")

    @property
    def min_nodes(self) -> int:
        return self.nodes

    @property
    def max_nodes(self) -> int:
        return self.nodes

    @property
    def full_reason(self) -> str:
        return "fixed budget"

    def stop_rule(self) -> None:
        return None

    def rounded(self, nodes: int) -> int:
        return nodes


@dataclass(frozen=True, slots=True)
class AdaptiveBudget:
    """Grow while the next node raises the predicted tokens per second (BASTION's stop rule).

    At n nodes the next, with path probability p, is kept while
    p * (T_draft + T_other + T_verify(n)) > S(n) * (T_verify(n + 1) - T_verify(n)), or n < min_nodes.

    seconds: nodes -> predicted verify seconds at this step's context; called once on an int64 array
    when it accepts arrays, else node by node. draft_seconds, other_seconds: seconds a step costs
    whatever the tree. bucket: sizes returned are min_nodes + i * bucket, or min_nodes * 2**i with
    "doubling", rounded down; the published defaults are min_nodes = bucket = 32.
    look_past: the rule is right where T_verify is convex in the nodes. Where it has steps, nodes that do
    not pay one by one may pay together: with look_past = k, growth goes on past a node that does not pay
    when some size up to k nodes behind it has a greater predicted speed. 0 is the published rule.
    """

    seconds: Callable[..., float | np.ndarray]
    draft_seconds: float
    other_seconds: float
    min_nodes: int = 1
    max_nodes: int = 8192
    bucket: int | Literal["doubling"] = 1
    look_past: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise UserError(
                "Give budget bounds with 1 <= min_nodes <= max_nodes, not "
                f"{self.min_nodes} and {self.max_nodes}."
            )
        if self.bucket != "doubling" and not (isinstance(self.bucket, int) and self.bucket >= 1):
            raise UserError(f'Give bucket as 1 or more nodes, or "doubling", not {self.bucket!r}.')
        if not (isinstance(self.look_past, int) and self.look_past >= 0):
            raise UserError(f"Give look_past as a whole number of nodes, 0 or more, not {self.look_past!r}.")
        fixed = self.draft_seconds + self.other_seconds
        if not (math.isfinite(fixed) and self.draft_seconds >= 0 and self.other_seconds >= 0):
            raise UserError("Give draft_seconds and other_seconds as numbers of 0 or more.")

    @property
    def full_reason(self) -> str:
        return "max nodes"

    def stop_rule(self) -> StopRule:
        fixed = self.draft_seconds + self.other_seconds
        table = np.full(1, math.nan)  # table[n]: verify seconds of n nodes

        def rule(nodes: Count, probability: Value, surrogate: Value) -> tuple[Value, Value]:
            nonlocal table
            while np.max(nodes, initial=0) + 1 >= len(table):
                # Doubling keeps small trees cheap without a call per node for large ones; a stop that looks far ahead
                # asks for that much at once.
                table = np.concatenate((table, tabulate(self.seconds, len(table), max(64, 4 * self.look_past, len(table)))))
            now = table[nodes]
            return probability * (fixed + now), surrogate * (table[nodes + 1] - now)

        return rule

    def rounded(self, nodes: int) -> int:
        if nodes <= self.min_nodes:
            return nodes
        if self.bucket == "doubling":
            return self.min_nodes << (nodes // self.min_nodes).bit_length() - 1
        return nodes - (nodes - self.min_nodes) % self.bucket


def tabulate(seconds: Callable[..., float | np.ndarray], first: int, count: int) -> np.ndarray:
    """float64 [count]: verify seconds for `count` sizes from `first` on. Raises UserError when one is no number."""
    sizes = np.arange(first, first + count)
    try:
        values = np.asarray(seconds(sizes), dtype=np.float64)
    except (TypeError, ValueError):
        values = np.zeros(())  # takes one size at a time; a real fault shows again below
    if values.shape != sizes.shape:
        values = np.array([float(seconds(int(size))) for size in sizes])
    if not np.isfinite(values).all():
        raise UserError("The latency model predicts a time that is not a number: calibrate again.")
    return values
