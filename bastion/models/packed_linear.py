"""A linear layer over weights that oneDNN reordered once, ahead of time.

On a CPU most of a forward is its linear layers, and most of their cost at a few tokens is reading the weights. oneDNN
reads reordered ones a third faster, and then eight tokens cost hardly more than one, which is what makes verifying a
tree pay. The operators are private to torch, so they are tried first and left alone when they are missing or wrong.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import nn
from torch.nn import functional as F


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

    def weights(self) -> torch.Tensor:
        """[out, in], as a plain layer has them; where only the packed ones are kept, what they make of the unit vectors."""
        if self.plain is not None:
            return self.plain
        unit = torch.eye(self.in_features, dtype=self.packed.dtype)
        return torch.ops.mkldnn._linear_pointwise.default(unit, self.packed, None, "none", [], "").t().contiguous()


@cache
def packing_works(dtype: torch.dtype) -> bool:
    """Whether this torch has the packed operators and they agree with a plain linear layer."""
    if dtype not in (torch.bfloat16, torch.float32) or not torch.backends.mkldnn.is_available():
        return False
    with torch.random.fork_rng(devices=[]):   # a caller's random numbers stay what they are
        torch.manual_seed(0)
        plain = nn.Linear(64, 32, bias=False).to(dtype)
        x = torch.randn(1, 3, 64).to(dtype)
    try:
        with torch.inference_mode():
            packed, expected, other = PackedLinear(plain), plain(x), torch.ones(1, 3, 32, dtype=dtype)
            pairs = ((packed(x), expected), (packed.with_silu(x), F.silu(expected)), (packed.with_other(x, other, "mul"), expected),
                     (packed.with_other(x, other, "add"), expected + 1))
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return all(torch.allclose(found.float(), wanted.float(), atol=4e-2) for found, wanted in pairs)
