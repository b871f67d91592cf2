"""The layers that stand for plain linear ones on a CPU, and which of them is taken for a number type.

In bfloat16, processors that do not multiply it themselves have a layer of our own (`RowLinear`) beside oneDNN's
(`PackedLinear`), where there is one; the quicker of the two is taken.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from bastion.models.packed_linear import PackedLinear, packing_works
from bastion.models.row_linear import RowLinear
from bastion.models.trials import tried

log = logging.getLogger(__name__)

QuickLinear = PackedLinear | RowLinear
QUICKER = "rows-are-quicker"
WIDTHS, LAYERS = (576, 1536), 4
"""Of trials: weights that together are larger than a core's own cache, so that reading them is what takes the time, as in a target."""
ROWS, ROUNDS = (1, 8), 4
"""Of trials: plain decoding, and a small tree; each layer's best time of so many counts."""


def silu_of(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """silu(linear(x)); like its two neighbours one operator where the layer is a quick one."""
    return linear.with_silu(x) if isinstance(linear, QuickLinear) else F.silu(linear(x))


def times(linear: nn.Module, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """linear(x) * other"""
    return linear.with_other(x, other, "mul") if isinstance(linear, QuickLinear) else linear(x) * other


def added(linear: nn.Module, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """linear(x) + other"""
    return linear.with_other(x, other, "add") if isinstance(linear, QuickLinear) else linear(x) + other


def linear_kind(dtype: torch.dtype) -> type[PackedLinear] | type[RowLinear] | None:
    """What linear layers of this number type become on this CPU; None: they stay as they are."""
    if dtype == torch.bfloat16 and not _multiplies_bfloat16() and _rows_are_quicker():
        return RowLinear
    return PackedLinear if packing_works(dtype) else None


def _multiplies_bfloat16() -> bool:
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


@cache
def _rows_are_quicker() -> bool:
    """Whether `RowLinear` is quicker than what torch has for bfloat16 on this CPU, tried once."""
    def ask() -> bool:
        theirs = PackedLinear if packing_works(torch.bfloat16) else None
        try:
            took = trial_seconds({kind: (torch.bfloat16, trial_linears(torch.bfloat16, kind)) for kind in (theirs, RowLinear)})
        except (ValueError, RuntimeError) as error:   # NUMBA_THREADING_LAYER may name one that is not installed
            log.warning("Our own bfloat16 layers cannot run here, so they are not used: %s", error)
            return False
        return took[RowLinear] < took[theirs]

    return tried(QUICKER, {}, ask)


def trial_linears(dtype: torch.dtype, kind: type[nn.Module] | None) -> list[nn.Module]:
    """Layers of this kind (None: plain ones) that nothing but time is asked of."""
    made = []
    for _ in range(LAYERS):
        linear = nn.Linear(*WIDTHS, bias=False, device="meta")
        linear.weight = nn.Parameter(torch.ones(*WIDTHS[::-1], dtype=dtype), requires_grad=False)
        made.append(kind(linear) if kind else linear)
    return made


@torch.inference_mode()
def trial_seconds(contestants: Mapping[Any, tuple[torch.dtype, Sequence[nn.Module]]]) -> dict[Any, float]:
    """Seconds that each contestant's layers take for inputs of its number type at ROWS, all of them in turn.

    On one thread: with more, a neighbour that takes a core away for a moment shows in every time and hides the difference.
    """
    best: dict[tuple[Any, int, int], float] = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(ROUNDS):
            for rows in ROWS:
                for name, (dtype, linears) in contestants.items():
                    inputs = torch.ones(rows, WIDTHS[0], dtype=dtype)
                    for place, linear in enumerate(linears):
                        begun = time.perf_counter()
                        linear(inputs)
                        took = time.perf_counter() - begun
                        best[name, rows, place] = min(best.get((name, rows, place), took), took)
    finally:
        torch.set_num_threads(threads)
    return {name: sum(took for (of, _, _), took in best.items() if of == name) for name in contestants}
