"""The compiled loops against the same in float64 by torch, and row by row against themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numba import njit

from bastion.models.cache import RowCache, keys_in_a_row
from bastion.models.lean import seen_rows
from bastion.models.row_kernels import BLOCK, attend_rows, gate_rows, norm_rows
from bastion.models.row_numbers import as_array, exponential, stored, widened

DTYPES = [torch.float32, torch.bfloat16, torch.float64]
ROUNDING = {torch.float32: 3e-6, torch.bfloat16: 2**-8, torch.float64: 1e-13}
"""Of a result of size one."""


def number_type(dtype: torch.dtype) -> type:
    return np.float64 if dtype == torch.float64 else np.float32


@njit
def _round_trip(numbers, bits):
    for i in range(len(numbers)):
        bits[i] = stored(numbers[i], bits)
        numbers[i] = widened(bits[i])


def test_numbers_are_rounded_to_bfloat16_as_torch_rounds_them():
    generator = torch.Generator().manual_seed(0)
    every = torch.cat((torch.randn(4096, generator=generator) * torch.logspace(-40, 38, 4096, base=10.0),
                       torch.tensor([0.0, -0.0, math.inf, -math.inf, 1 + 2**-9, 1 + 3 * 2**-9, 3.4e38, math.nan])))
    numbers, bits = every.clone().numpy(), np.zeros(len(every), np.uint16)
    _round_trip(numbers, bits)
    expected = every.bfloat16()
    torch.testing.assert_close(torch.from_numpy(numbers), expected.float(), rtol=0, atol=0, equal_nan=True)
    assert (bits[:-1] == as_array(expected)[:-1]).all()


@njit
def _exponentials(numbers, out):
    for i in range(len(numbers)):
        out[i] = exponential(numbers[i])


@pytest.mark.parametrize("number", [np.float32, np.float64])
def test_the_exponential_is_right_to_its_last_places(number):
    numbers = np.concatenate((np.linspace(-80, 0, 20001), -np.logspace(-9, 0, 200), [0.0])).astype(number)
    out = np.empty_like(numbers)
    _exponentials(numbers, out)
    expected = np.exp(numbers.astype(np.float64))
    assert np.abs(out / expected - 1).max() < 3 * np.finfo(number).eps
    assert out[-1] == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 15, 64, 576])
def test_a_norm_is_the_roots_of_mean_squares(dtype, width):
    generator = torch.Generator().manual_seed(width)
    x, weight = torch.randn(5, width, generator=generator).to(dtype), torch.randn(width, generator=generator).to(dtype)
    out, number = torch.empty_like(x), number_type(dtype)
    norm_rows(as_array(x), as_array(weight), number(1 / width), number(1e-5), as_array(out))
    wide = x.double()
    expected = wide / (wide.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(out.double(), expected, rtol=2 * ROUNDING[dtype], atol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gate_lets_through_what_silu_does(dtype):
    generator = torch.Generator().manual_seed(3)
    both = (torch.randn(4, 74, generator=generator) * 20).to(dtype)
    both[0, :6] = torch.tensor([0.0, 1e-20, -1e-20, 300.0, -300.0, -79.0])
    out = torch.empty(4, 37, dtype=dtype)
    gate_rows(as_array(both), as_array(out))
    gate, up = both.double().chunk(2, dim=-1)
    torch.testing.assert_close(out.double(), torch.nn.functional.silu(gate) * up, rtol=2 * ROUNDING[dtype], atol=1e-30)


class Case:
    """Random rows of a tree behind a cached context; `mask` [n, w] is additive, over the newest w keys."""

    def __init__(self, dtype, length, n, mask, dim=64, key_heads=3, group=3, normed=False, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.dtype, self.length, self.dim, self.key_heads, self.heads = dtype, length, dim, key_heads, key_heads * group
        number = number_type(dtype)
        wide = torch.promote_types(dtype, torch.float32)
        blocks = -(-(length + n) // BLOCK)
        self.keys = torch.randn(key_heads, blocks, dim, BLOCK, generator=generator).to(wide)
        self.values = torch.randn(key_heads, length + n, dim, generator=generator).to(wide)
        self.qkv = torch.randn(n, (self.heads + 2 * key_heads) * dim, generator=generator).to(dtype)
        angles = torch.rand(n, dim // 2, generator=generator, dtype=torch.float64) * 6
        self.cos, self.sin = angles.cos().to(wide), angles.sin().to(wide)
        size = dim if normed else 0
        self.norms = torch.randn(2, size, generator=generator).to(dtype)
        self.scalars = (number(1 / dim), number(1e-6))
        self.mask = mask

    def compiled(self) -> torch.Tensor:
        """[n, heads * d]; writes keys and values behind the context."""
        seen = seen_rows(self.mask, len(self.qkv), self.length + len(self.qkv))
        out = torch.empty(len(self.qkv), self.heads * self.dim, dtype=self.dtype)
        number = number_type(self.dtype)
        attend_rows(as_array(self.qkv), as_array(self.norms[0]), as_array(self.norms[1]), *self.scalars, self.cos.numpy(), self.sin.numpy(),
                    self.keys.numpy(), self.values.numpy(), self.length, seen.context, seen.rows, seen.counts, number(-80), as_array(out))
        return out

    def expected(self) -> torch.Tensor:
        n, dim, half = len(self.qkv), self.dim, self.dim // 2
        parts = self.qkv.double().view(n, -1, dim)
        query, key, value = parts[:, : self.heads], parts[:, self.heads : self.heads + self.key_heads], parts[:, self.heads + self.key_heads :]
        if self.norms.numel():
            query, key = (x / (x.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt() * weight.double()
                          for x, weight in zip((query, key), self.norms, strict=True))
        cos, sin = self.cos.double()[:, None], self.sin.double()[:, None]
        query, key = (torch.cat((x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin), -1)
                      for x in (query, key))
        keys = torch.cat((keys_in_a_row(self.keys, self.length).double().transpose(1, 2), key.transpose(0, 1)), dim=1)
        values = torch.cat((self.values[:, : self.length].double(), value.transpose(0, 1)), dim=1)
        scores = torch.einsum("nkgd,kld->kgnl", query.reshape(n, self.key_heads, -1, dim), keys) * dim**-0.5
        if self.mask is not None:
            scores[..., scores.shape[-1] - self.mask.shape[1] :] += self.mask.double()
        return torch.einsum("kgnl,kld->nkgd", scores.softmax(-1), values).reshape(n, -1)


def tree_mask(n: int, seed: int = 0) -> torch.Tensor:
    random = np.random.default_rng(seed)
    allowed = np.eye(n, dtype=bool)
    for node in range(1, n):
        allowed[node] |= allowed[int(random.integers(max(0, node - 5), node))]
    return torch.where(torch.from_numpy(allowed), 0.0, torch.finfo(torch.float32).min)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("length", "n", "dim", "key_heads", "group", "normed"), [
    (0, 1, 64, 3, 3, False), (0, 7, 64, 3, 3, False), (200, 1, 64, 3, 3, False), (251, 16, 64, 3, 3, False), (515, 40, 128, 2, 2, True),
    (33, 5, 6, 2, 1, True), (15, 2, 2, 1, 4, False), (256, 9, 20, 1, 1, True),
])
def test_attention_over_a_tree_is_the_one_of_the_formula(dtype, length, n, dim, key_heads, group, normed):
    case = Case(dtype, length, n, tree_mask(n) if n > 1 else None, dim, key_heads, group, normed)
    torch.testing.assert_close(case.compiled().double(), case.expected(), rtol=2 * ROUNDING[dtype], atol=2 * ROUNDING[dtype])


@pytest.mark.parametrize("window", [3, 17, 100])
def test_a_window_that_has_left_the_beginning_behind(window):
    length, n = 300, 12
    positions = torch.cat((torch.arange(length), length + torch.arange(n) // 3))
    sees = positions[length:, None] - positions[None] < window
    sees[:, length:] &= tree_mask(n) == 0
    case = Case(torch.float32, length, n, torch.where(sees, 0.0, torch.finfo(torch.float32).min))
    torch.testing.assert_close(case.compiled().double(), case.expected(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [3, 120, 255, 511, 700])
def test_a_row_has_the_same_bits_alone_and_in_a_tree(dtype, length):
    """The path to the last node, token by token behind a context that grows, against all nodes at once."""
    n = 24
    case = Case(dtype, length, n, tree_mask(n, seed=length), normed=True)
    whole = case.compiled()
    alone = Case(dtype, length, n, None, normed=True)
    path = torch.nonzero(case.mask[-1] == 0)[:, 0]
    for place, node in enumerate(path.tolist()):
        alone.length, alone.qkv = length + place, case.qkv[node : node + 1]
        alone.cos, alone.sin = case.cos[node : node + 1], case.sin[node : node + 1]
        assert torch.equal(alone.compiled()[0], whole[node])


def test_what_a_row_does_not_see_does_not_touch_it():
    """Not even a number that is none, which times a weight of 0 would still be none."""
    case = Case(torch.float32, 40, 6, tree_mask(6))
    before = case.compiled()
    hidden = torch.nonzero(case.mask[-1] < 0)[:, 0]
    case.qkv[hidden] = math.nan
    torch.testing.assert_close(case.compiled()[-1], before[-1], rtol=0, atol=0)


@pytest.mark.parametrize("length", [0, 40, 250, 254, 255, 256, 509])
def test_keeping_a_path_moves_its_rows_and_no_others(length):
    rows = torch.tensor([0, 2, 3, 7, 11])
    cache = RowCache(2, 3, length + 20, 6, torch.float32)
    cache.keys.normal_(generator=torch.Generator().manual_seed(length))
    cache.values.normal_(generator=torch.Generator().manual_seed(length + 1))
    cache.truncate(length)
    before = [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]
    cache.commit(rows)
    assert cache.length == length + len(rows)
    for layer, olds in zip(cache.layers, before, strict=True):
        for new, old in zip((layer.keys, layer.values), olds, strict=True):
            assert torch.equal(new[:, :, length : cache.length], old[:, :, length + rows])
            assert torch.equal(new[:, :, :length], old[:, :, :length])
            assert torch.equal(new[:, :, cache.length :], old[:, :, cache.length :])
