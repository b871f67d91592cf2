"""A linear layer in bfloat16 for processors that do not multiply bfloat16 themselves.

There torch is slow at it or goes without packed weights, and float32 reads twice the bytes. Here the weights stay in
bfloat16 in memory, are widened in registers, and are multiplied in float32 by several rows at once. A row is added up
in the order of its inputs, whatever rows stand beside it, so a token has the same bits alone and in a tree.
"""

from __future__ import annotations

import threading

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import nn

from bastion.models.row_numbers import as_array, sigmoid, stored, widened

LANES = 16
"""Outputs of one panel: two vectors of AVX2, one of AVX-512."""
PANELS = 4
"""Panels that one thread takes on together."""
TILE_ROWS = 6
"""Rows of the largest tile: with one panel's sums, weights and a number of x they fill the sixteen registers of AVX2."""
NOTHING, SILU, ADD, MULTIPLY = range(4)

_one_at_a_time = threading.Lock()
"""numba's plain thread pool ends the process when two threads use it at once."""


def _tile(rows: int, panels: int):
    """A compiled tile: sums[r, first + i] = x[row + r] @ outputs i of `panels` panels, for r < rows; kept in registers."""

    @intrinsic
    def tile(typing, x, row, weights, panel, sums, first):
        def generate(context, builder, signature, arguments):
            of_x, of_weights, of_sums = (context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 2, 4))
            index, vector = ir.IntType(64), ir.VectorType(ir.FloatType(), LANES)
            halves, wholes = ir.VectorType(ir.IntType(16), LANES), ir.VectorType(ir.IntType(32), LANES)
            width = builder.extract_value(of_x.shape, 1)
            length = builder.mul(width, index(LANES))
            x_rows = [builder.gep(of_x.data, [builder.mul(builder.add(arguments[1], index(r)), width)]) for r in range(rows)]
            starts = [builder.gep(of_weights.data, [builder.mul(builder.add(arguments[3], index(p)), length)]) for p in range(panels)]
            totals = [[cgutils.alloca_once(builder, vector) for _ in range(panels)] for _ in range(rows)]
            for total in sum(totals, []):
                builder.store(ir.Constant(vector, [0.0] * LANES), total)
            multiply_add = cgutils.get_or_insert_function(builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fmuladd.v{LANES}f32")
            nothing = ir.Constant(vector, ir.Undefined)
            with cgutils.for_range(builder, width) as loop:
                columns = []
                for start in starts:
                    place = builder.gep(start, [builder.mul(loop.index, index(LANES))])
                    bits = builder.zext(builder.load(builder.bitcast(place, halves.as_pointer()), align=2), wholes)
                    columns.append(builder.bitcast(builder.shl(bits, ir.Constant(wholes, [16] * LANES)), vector))
                for numbers, row_totals in zip(x_rows, totals, strict=True):
                    number = builder.insert_element(nothing, builder.load(builder.gep(numbers, [loop.index])), ir.IntType(32)(0))
                    number = builder.shuffle_vector(number, nothing, ir.Constant(wholes, [0] * LANES))
                    for column, total in zip(columns, row_totals, strict=True):
                        builder.store(builder.call(multiply_add, [column, number, builder.load(total)]), total)
            for r, row_totals in enumerate(totals):
                for p, total in enumerate(row_totals):
                    at = builder.add(arguments[5], index(r * LANES * PANELS + p * LANES))
                    place = builder.bitcast(builder.gep(of_sums.data, [at]), vector.as_pointer())
                    builder.store(builder.load(total), place, align=4)
            return context.get_dummy_value()

        return types.void(x, types.int64, weights, types.int64, sums, types.int64), generate

    return tile


_1x4, _2x2, _3x2, _4x1, _5x1, _6x1 = _tile(1, 4), _tile(2, 2), _tile(3, 2), _tile(4, 1), _tile(5, 1), _tile(6, 1)


@njit(cache=True, nogil=True, error_model="numpy")
def _sum_rows(x, row, rows, weights, panel, sums):
    """sums [rows * 64] of x[row : row + rows] by four panels."""
    if rows == 1:
        _1x4(x, row, weights, panel, sums, 0)
    elif rows == 2:
        for p in range(0, PANELS, 2):
            _2x2(x, row, weights, panel + p, sums, p * LANES)
    elif rows == 3:
        for p in range(0, PANELS, 2):
            _3x2(x, row, weights, panel + p, sums, p * LANES)
    elif rows == 4:
        for p in range(PANELS):
            _4x1(x, row, weights, panel + p, sums, p * LANES)
    elif rows == 5:
        for p in range(PANELS):
            _5x1(x, row, weights, panel + p, sums, p * LANES)
    else:
        for p in range(PANELS):
            _6x1(x, row, weights, panel + p, sums, p * LANES)


@njit(cache=True, nogil=True, error_model="numpy", parallel=True)
def _linear_rows(x, weights, bias, other, what, out):
    """out [n, N] = x [n, K] times weights [panels, K, LANES], plus bias [N] where there is one; what: as NOTHING and its
    neighbours say, with other [n, N] for two of them. Rounded once."""
    n, outputs = out.shape
    tiles = (n + TILE_ROWS - 1) // TILE_ROWS
    span = PANELS * LANES
    for group in prange(len(weights) // PANELS):
        sums = np.empty(TILE_ROWS * span, np.float32)
        first = group * span
        count = min(span, outputs - first)
        for tile in range(tiles):
            row = n * tile // tiles
            rows = n * (tile + 1) // tiles - row
            _sum_rows(x, row, rows, weights, group * PANELS, sums)
            for r in range(rows):
                numbers, into = sums[r * span :][:count], out[row + r][first:][:count]
                if len(bias):
                    for i in range(count):
                        numbers[i] += bias[first + i]
                if what == SILU:
                    for i in range(count):
                        numbers[i] *= sigmoid(numbers[i])
                elif what == ADD:
                    beside = other[row + r][first:][:count]
                    for i in range(count):
                        numbers[i] += widened(beside[i])
                elif what == MULTIPLY:
                    beside = other[row + r][first:][:count]
                    for i in range(count):
                        numbers[i] *= widened(beside[i])
                for i in range(count):
                    into[i] = stored(numbers[i], into)


class RowLinear(nn.Module):
    """A bfloat16 linear layer over weights in panels of LANES outputs; for inference on a CPU only."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self._bias = np.zeros(0, np.float32) if linear.bias is None else linear.bias.detach().float().numpy()
        span = LANES * PANELS
        weight = linear.weight.detach()
        if self.out_features % span:
            weight = torch.cat((weight, weight.new_zeros(-self.out_features % span, self.in_features)))
        self.panels = weight.view(-1, LANES, self.in_features).transpose(1, 2).contiguous().view(torch.uint16).numpy()

    def weights(self) -> torch.Tensor:
        """[out, in], as a plain layer has them; a copy."""
        panels = torch.from_numpy(self.panels).view(torch.bfloat16)
        return panels.transpose(1, 2).reshape(-1, self.in_features)[: self.out_features]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._rows(x, None, NOTHING)

    def with_silu(self, x: torch.Tensor) -> torch.Tensor:
        return self._rows(x, None, SILU)

    def with_other(self, x: torch.Tensor, other: torch.Tensor, what: str) -> torch.Tensor:
        """The output `add`ed to or `mul`tiplied by `other`, before it is rounded."""
        return self._rows(x, other, {"add": ADD, "mul": MULTIPLY}[what])

    def _rows(self, x: torch.Tensor, other: torch.Tensor | None, what: int) -> torch.Tensor:
        numbers = x.reshape(-1, self.in_features).float().contiguous().numpy()
        out = torch.empty(len(numbers), self.out_features, dtype=torch.bfloat16)
        into = as_array(out)
        beside = into if other is None else as_array(other.expand(*x.shape[:-1], self.out_features).reshape(out.shape))
        with _one_at_a_time:
            numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))
            _linear_rows(numbers, self.panels, self._bias, beside, what, into)
        return out.view(*x.shape[:-1], self.out_features)
