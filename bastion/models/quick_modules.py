"""Modules of a loaded model swapped for ones that compute the same and cost less.

On a CPU most of a forward is its linear layers, and most of their cost at a few tokens is reading
the weights. oneDNN reads weights that were reordered once, ahead of time, a third faster, and then
eight tokens cost hardly more than one, which is what makes verifying a tree pay. The operators are
private to torch, so they are tried first and left alone when they are missing or wrong.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from bastion.models.quick_layer import QuickLayer, is_quick

NORMS = {"LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm"}
"""Library norms that are x / rms(x) * weight, as `torch.nn.functional.rms_norm`."""

BOTH_KEPT_BYTES = 2 << 30


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


def silu_of(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """silu(linear(x)); like its two neighbours one operator where the weights are packed."""
    return linear.with_silu(x) if isinstance(linear, PackedLinear) else F.silu(linear(x))


def times(linear: nn.Module, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """linear(x) * other"""
    return linear.with_other(x, other, "mul") if isinstance(linear, PackedLinear) else linear(x) * other


def added(linear: nn.Module, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """linear(x) + other"""
    return linear.with_other(x, other, "add") if isinstance(linear, PackedLinear) else linear(x) + other


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
        if first.device.type == "cpu" and packing_works(first.dtype) and _room_to_pack(model, first.dtype):
            _swap(model, lambda module: type(module) is nn.Linear, PackedLinear)
    return model


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
