"""Modules of a loaded model swapped for ones that compute the same and cost less.

On a CPU most of a forward is its linear layers, and most of their cost at a few tokens is reading
the weights. oneDNN reads weights that were reordered once, ahead of time, a third faster, and then
eight tokens cost hardly more than one, which is what makes verifying a tree pay. The operators are
private to torch, so they are tried first and left alone when they are missing or wrong. In bfloat16, processors
that do not multiply it themselves have a layer of our own beside them on request (`RowLinear`); the quicker one is taken.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from bastion.models.quick_layer import QuickLayer, is_quick
from bastion.models.row_linear import RowLinear
from bastion.models.trials import tried

log = logging.getLogger(__name__)

NORMS = {"LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm"}
"""Library norms that are x / rms(x) * weight, as `torch.nn.functional.rms_norm`."""

OWN_LINEARS = "BASTION_OWN_LINEARS"
"""Environment variable: with 1 there, `RowLinear` is tried. Not yet by itself: not all that rests on float32 being what
such processors decode in has been gone through."""
BOTH_KEPT_BYTES = 2 << 30
WIDTHS, LAYERS = (576, 1536), 4
"""Of trials: weights that together are larger than a core's own cache, so that reading them is what takes the time, as in a target."""
ROWS, ROUNDS = (1, 8), 4
"""Of trials: plain decoding, and a small tree; each layer's best time of so many counts."""


class PackedLinear(nn.Module):
    """A linear layer over weights in oneDNN's own order; for inference only.

    In float32 one or two tokens are quicker over the plain weights, so both are kept.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.plain = linear.weight if linear.weight.dtype == torch.float32 else None
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.plain is not None and x.shape[-2] <= 2:
            return F.linear(x, self.plain, self.bias)
        return torch.ops.mkldnn._linear_pointwise.default(x, self.packed, self.bias, "none", [], "")

    def with_silu(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise.default(x, self.packed, self.bias, "swish", [], "")

    def with_other(self, x: torch.Tensor, other: torch.Tensor, what: str) -> torch.Tensor:
        """The output `add`ed to or `mul`tiplied by `other`, before it is rounded."""
        return torch.ops.mkldnn._linear_pointwise.binary(x, other, self.packed, self.bias, what)


FUSED = (PackedLinear, RowLinear)


def silu_of(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """silu(linear(x)); like its two neighbours one operator where the weights are packed."""
    return linear.with_silu(x) if isinstance(linear, FUSED) else F.silu(linear(x))


def times(linear: nn.Module, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """linear(x) * other"""
    return linear.with_other(x, other, "mul") if isinstance(linear, FUSED) else linear(x) * other


def added(linear: nn.Module, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """linear(x) + other"""
    return linear.with_other(x, other, "add") if isinstance(linear, FUSED) else linear(x) + other


class FusedRMSNorm(nn.Module):
    """`x / rms(x) * weight` in one operator where the library takes six."""

    def __init__(self, norm: nn.Module):
        super().__init__()
        self.weight, self.eps = norm.weight, norm.variance_epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def quicken(model: nn.Module) -> nn.Module:
    """Swap decoder layers, norms and, on a CPU, linear layers in place; returns the model.

    It is for inference from now on, under attention masks as `grouped_attention` takes them.
    Layers of a kind not known here stay as they are.
    """
    first = next(model.parameters())
    with torch.no_grad():
        _swap(model, is_quick, QuickLayer)
        _swap(model, lambda module: type(module).__name__ in NORMS, FusedRMSNorm)
        if first.device.type == "cpu" and _room_to_pack(model, first.dtype) and (kind := linear_kind(first.dtype)):
            _swap(model, lambda module: type(module) is nn.Linear, kind)
    return model


def linear_kind(dtype: torch.dtype) -> type[PackedLinear] | type[RowLinear] | None:
    """What linear layers of this number type become on this CPU; None: they stay as they are."""
    if dtype == torch.bfloat16 and os.environ.get(OWN_LINEARS) == "1" and not _multiplies_bfloat16() and _rows_are_quicker():
        return RowLinear
    return PackedLinear if packing_works(dtype) else None


def _multiplies_bfloat16() -> bool:
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


@cache
def _rows_are_quicker() -> bool:
    """Whether `RowLinear` is quicker in bfloat16 than what torch has on this CPU, tried once."""
    def ask() -> bool:
        linears = trial_linears(torch.bfloat16)
        theirs = [PackedLinear(linear) for linear in linears] if packing_works(torch.bfloat16) else linears
        try:
            took = quickest({"theirs": theirs, "ours": [RowLinear(linear) for linear in linears]}, torch.bfloat16)
        except (ValueError, RuntimeError) as error:   # NUMBA_THREADING_LAYER may name one that is not installed
            log.warning("Our own bfloat16 layers cannot run here, so they are not used: %s", error)
            return False
        return took["ours"] < took["theirs"]

    return tried("rows-are-quicker", {}, ask)


def trial_linears(dtype: torch.dtype) -> list[nn.Linear]:
    """Layers that nothing but time is asked of."""
    made = []
    for _ in range(LAYERS):
        linear = nn.Linear(*WIDTHS, bias=False, device="meta")
        linear.weight = nn.Parameter(torch.ones(*WIDTHS[::-1], dtype=dtype), requires_grad=False)
        made.append(linear)
    return made


@torch.inference_mode()
def quickest(kinds: Mapping[Any, Sequence[nn.Module]], dtype: torch.dtype | None = None) -> dict[Any, float]:
    """Seconds of each kind's layers at ROWS, in turn; a key is the kind, and its inputs' number type where `dtype` is None.

    On one thread: with more, a neighbour that takes a core away for a moment shows in every time and hides the difference.
    """
    best: dict[tuple[Any, int, int], float] = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(ROUNDS):
            for rows in ROWS:
                for kind, linears in kinds.items():
                    inputs = torch.ones(rows, WIDTHS[0], dtype=dtype or kind)
                    for place, linear in enumerate(linears):
                        begun = time.perf_counter()
                        linear(inputs)
                        took = time.perf_counter() - begun
                        best[kind, rows, place] = min(best.get((kind, rows, place), took), took)
    finally:
        torch.set_num_threads(threads)
    return {kind: sum(took for (of, _, _), took in best.items() if of == kind) for kind in kinds}


def _room_to_pack(model: nn.Module, dtype: torch.dtype) -> bool:
    """Half precision is packed in place of its weights; float32 beside them, so only for small models."""
    linears = (module for module in model.modules() if type(module) is nn.Linear)
    return dtype == torch.bfloat16 or sum(linear.weight.nbytes for linear in linears) <= BOTH_KEPT_BYTES


def _swap(model: nn.Module, chosen: Callable[[nn.Module], bool], make: Callable[[nn.Module], nn.Module]) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if chosen(child):
                setattr(parent, name, make(child))


def packing_works(dtype: torch.dtype) -> bool:
    """Whether this torch has the packed operators and they agree with a plain linear layer."""
    if dtype not in (torch.bfloat16, torch.float32) or not torch.backends.mkldnn.is_available():
        return False
    plain = nn.Linear(64, 32, bias=False).to(dtype)
    x = torch.randn(1, 3, 64).to(dtype)
    try:
        with torch.inference_mode():
            packed, expected, other = PackedLinear(plain), plain(x), torch.ones(1, 3, 32, dtype=dtype)
            pairs = ((packed(x), expected), (silu_of(packed, x), F.silu(expected)), (times(packed, x, other), expected),
                     (added(packed, x, other), expected + 1))
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return all(torch.allclose(found.float(), wanted.float(), atol=4e-2) for found, wanted in pairs)
