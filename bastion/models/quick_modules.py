"""Modules of a loaded model swapped for ones that compute the same and cost less."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from bastion.models.linear_kinds import linear_kind
from bastion.models.quick_layer import QuickLayer, is_quick

NORMS = {"LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm"}
"""Library norms that are x / rms(x) * weight, as `torch.nn.functional.rms_norm`."""

BOTH_KEPT_BYTES = 2 << 30
"""Half precision is packed in place of its weights, float32 beside them; so only for models whose float32 is no more."""


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
    with torch.no_grad():
        _swap(model, is_quick, QuickLayer)
        _swap(model, lambda module: type(module).__name__ in NORMS, FusedRMSNorm)
        _swap_linears(model)
    return model


def _swap_linears(model: nn.Module) -> None:
    """Each by its own number type: a model may hold an embedding or a head in another one, lent by its target."""
    linears = [module for module in model.modules() if _is_swappable(module)]
    kinds = {dtype: linear_kind(dtype) for dtype in {linear.weight.dtype for linear in linears}}
    if sum(linear.weight.nbytes for linear in linears if linear.weight.dtype == torch.float32) > BOTH_KEPT_BYTES:
        kinds[torch.float32] = None
    _swap(model, lambda module: _is_swappable(module) and kinds[module.weight.dtype] is not None,
          lambda linear: kinds[linear.weight.dtype](linear))


def _is_swappable(module: nn.Module) -> bool:
    return type(module) is nn.Linear and module.weight.device.type == "cpu"


def _swap(model: nn.Module, chosen: Callable[[nn.Module], bool], make: Callable[[nn.Module], nn.Module]) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if chosen(child):
                setattr(parent, name, make(child))
