"""BASTION's roofline: verify seconds from FLOPs and bytes, with a scale and an offset per branch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bastion.errors import UserError
from bastion.latency.peaks import DevicePeaks
from bastion.latency.shape import ModelShape

Count = int | np.ndarray
"""Nodes or context tokens: one number, or int64 arrays that broadcast."""


@dataclass(frozen=True, slots=True)
class CalibratedRoofline:
    """seconds = max(alpha_m * bytes / bandwidth + beta_m, alpha_c * flops / throughput + beta_c).

    Counts follow BASTION's published cost model (arXiv 2605.29727): a forward over s nodes after c
    cached tokens. Alphas have no unit, betas are seconds, bytes_per_value is 2 for bfloat16. For a
    tied model the shared embedding is counted once; the published formula counts it twice. Every
    method takes scalars or arrays and returns the same kind.
    """

    shape: ModelShape
    peaks: DevicePeaks
    alpha_m: float = 1.0
    beta_m: float = 0.0
    alpha_c: float = 1.0
    beta_c: float = 0.0
    bytes_per_value: int = 2

    def __post_init__(self) -> None:
        parameters = (self.alpha_m, self.beta_m, self.alpha_c, self.beta_c)
        if not all(math.isfinite(value) and value >= 0 for value in parameters):
            raise UserError("A roofline's alphas and betas are numbers of 0 or more: calibrate again.")

    def flops(self, nodes: Count, context: Count) -> Count:
        """Floating-point operations, 2 per multiply-add: matrices, head, and attention."""
        shape = self.shape
        per_pair = 4 * shape.layers * shape.heads * shape.head_dim
        return nodes * (self._flops_per_node + per_pair * (nodes + context))

    def bytes(self, nodes: Count, context: Count) -> Count:
        """Bytes moved: weights, keys and values, activations, attention scores."""
        return self.parameter_bytes + self.kv_bytes(nodes, context) + self.activation_bytes(nodes, context)

    @property
    def parameter_bytes(self) -> int:
        copies = 1 if self.shape.tied else 2
        return self.bytes_per_value * (self.shape.layer_weights + copies * self.shape.head_weights)

    def kv_bytes(self, nodes: Count, context: Count) -> Count:
        shape = self.shape
        per_token = 2 * shape.layers * shape.kv_heads * shape.head_dim
        return self.bytes_per_value * per_token * (nodes + context)

    def activation_bytes(self, nodes: Count, context: Count) -> Count:
        shape = self.shape
        per_pair = 2 * shape.layers * shape.heads
        return self.bytes_per_value * nodes * (self._values_per_node + per_pair * (nodes + context))

    def memory_seconds(self, nodes: Count, context: Count) -> float | np.ndarray:
        """The memory branch, scaled and offset."""
        ideal = _quadratic(lambda n: self.bytes(n, context) / self.peaks.bytes_per_second, nodes)
        return self.alpha_m * ideal + self.beta_m

    def compute_seconds(self, nodes: Count, context: Count) -> float | np.ndarray:
        """The compute branch, scaled and offset."""
        ideal = _quadratic(lambda n: self.flops(n, context) / self.peaks.flops_per_second, nodes)
        return self.alpha_c * ideal + self.beta_c

    def seconds(self, nodes: Count, context: Count) -> float | np.ndarray:
        """Predicted verify seconds: the slower branch."""
        memory, compute = self.memory_seconds(nodes, context), self.compute_seconds(nodes, context)
        if isinstance(memory, np.ndarray):
            return np.maximum(memory, compute)
        return max(memory, compute)

    def compute_bound(self, nodes: Count, context: Count) -> bool | np.ndarray:
        """Whether the compute branch is the slower one."""
        return self.compute_seconds(nodes, context) > self.memory_seconds(nodes, context)

    def next_delta(self, nodes: Count, context: Count) -> float | np.ndarray:
        """seconds(nodes + 1) - seconds(nodes): what one more node is predicted to cost."""
        return self.seconds(nodes + 1, context) - self.seconds(nodes, context)

    @property
    def _flops_per_node(self) -> int:
        return 2 * (self.shape.layer_weights + self.shape.head_weights)

    @property
    def _values_per_node(self) -> int:
        """Activations written and read per node outside the attention scores."""
        shape = self.shape
        attention = 4 * shape.heads * shape.head_dim + 2 * shape.kv_heads * shape.head_dim
        return shape.layers * (4 * shape.hidden + attention + 4 * shape.ffn) + shape.hidden + shape.vocab


def _quadratic(at: Callable[[int], float | np.ndarray], nodes: Count) -> float | np.ndarray:
    """The quadratic through 0, 1 and 2 nodes, at `nodes`.

    Both counts are quadratic in the nodes, so this is `at(nodes)` up to rounding (about 1e-11). The
    published estimator interpolates so, and its predictions are met to the last digits only by
    rounding as it does.
    """
    zero, one, two = at(0), at(1), at(2)
    square = (two - 2 * one + zero) / 2
    slope = one - zero - square
    return square * nodes * nodes + slope * nodes + zero


def raw_roofline(shape: ModelShape, peaks: DevicePeaks, bytes_per_value: int = 2) -> CalibratedRoofline:
    """The roofline before any fit: peaks taken at their word."""
    return CalibratedRoofline(shape, peaks, bytes_per_value=bytes_per_value)
