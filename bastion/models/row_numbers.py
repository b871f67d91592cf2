"""Numbers of a row as compiled kernels see them: bfloat16 by its bits, and an exponential that fills vectors.

numpy has no bfloat16, so its numbers come as uint16; they are widened to float32 and rounded back here.
All functions are scalar and made to be inlined into the loops of `row_kernels`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

_I16, _I32, _F32 = ir.IntType(16), ir.IntType(32), ir.FloatType()


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's own memory as compiled loops take it; bfloat16 by its bits."""
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


@intrinsic
def _float32_of_bits(typing, bits):
    """float32 whose upper half are the 16 bits: a bfloat16."""

    def generate(context, builder, signature, arguments):
        wide = builder.shl(builder.zext(arguments[0], _I32), _I32(16))
        return builder.bitcast(wide, _F32)

    return types.float32(types.uint16), generate


@intrinsic
def _bits_of_float32(typing, number):
    """The nearest bfloat16's 16 bits, of two equally near ones the even; not a number stays none."""

    def generate(context, builder, signature, arguments):
        bits = builder.bitcast(arguments[0], _I32)
        odd = builder.and_(builder.lshr(bits, _I32(16)), _I32(1))
        rounded = builder.add(bits, builder.add(odd, _I32(0x7FFF)))
        none = builder.fcmp_unordered("uno", arguments[0], arguments[0])
        return builder.trunc(builder.lshr(builder.select(none, _I32(0x7FC00000), rounded), _I32(16)), _I16)

    return types.uint16(types.float32), generate


@intrinsic
def _power_of_two(typing, exponent):
    """2 to a whole float32 of -126 to 127."""

    def generate(context, builder, signature, arguments):
        biased = builder.add(builder.fptosi(arguments[0], _I32), _I32(127))
        return builder.bitcast(builder.shl(biased, _I32(23)), _F32)

    return types.float32(types.float32), generate


@intrinsic
def _whole(typing, number):
    """float32 without its fraction."""

    def generate(context, builder, signature, arguments):
        return builder.sitofp(builder.fptosi(arguments[0], _I32), _F32)

    return types.float32(types.float32), generate


def widened(number):
    """A stored number as it is reckoned with."""
    raise NotImplementedError("for compiled code")


def stored(number, row):
    """The number as `row` stores it."""
    raise NotImplementedError("for compiled code")


def exponential(number):
    """e to a number of -80 to 0: to one unit in the last place in float32."""
    raise NotImplementedError("for compiled code")


@overload(widened, inline="always")
def _widened(number):
    if number == types.uint16:
        return lambda number: _float32_of_bits(number)
    return lambda number: number


@overload(stored, inline="always")
def _stored(number, row):
    if row.dtype == types.uint16:
        return lambda number, row: _bits_of_float32(number)
    return lambda number, row: number


@njit(inline="always")
def _exponential_float32(number):
    # as in Cephes' expf: the fraction by a polynomial, the whole powers of two by the exponent's bits
    whole = _whole(number * np.float32(1.44269504088896341) - np.float32(0.5))
    rest = number - whole * np.float32(0.693359375) + whole * np.float32(2.12194440e-4)
    power = np.float32(1.9875691500e-4)
    power = power * rest + np.float32(1.3981999507e-3)
    power = power * rest + np.float32(8.3334519073e-3)
    power = power * rest + np.float32(4.1665795894e-2)
    power = power * rest + np.float32(1.6666665459e-1)
    power = power * rest + np.float32(5.0000001201e-1)
    return (power * rest * rest + rest + np.float32(1.0)) * _power_of_two(whole)


@overload(exponential, inline="always")
def _exponential(number):
    if number == types.float32:
        return lambda number: _exponential_float32(number)
    return lambda number: math.exp(number)


@njit(inline="always")
def sigmoid(number):
    """1 / (1 + e^-number), by the exponent of the sign that cannot overflow."""
    power = exponential(max(-abs(number), np.float32(-80.0)))
    share = np.reciprocal(np.float32(1.0) + power)
    return share if number >= 0 else power * share
