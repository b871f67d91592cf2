"""What the device can do at best: matmul throughput and memory bandwidth, measured."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from bastion.latency import DevicePeaks
from bastion.models.device import device_name, synchronise

CPU_SIDE, GPU_SIDE = 1024, 8192
CPU_BYTES, GPU_BYTES = 128 << 20, 1 << 30
SECONDS = 0.4


@torch.inference_mode()
def measure_peaks(device: torch.device, dtype: torch.dtype) -> DevicePeaks:
    """The best of many square matmuls in `dtype`, and of many copies (each byte read and written)."""
    on_cpu = device.type == "cpu"
    side = CPU_SIDE if on_cpu else GPU_SIDE
    # random numbers: a GPU multiplies equal ones faster than anything that is ever verified
    left = torch.randn(side, side, device=device).to(dtype)
    right, product = left.t().contiguous(), torch.empty_like(left)
    matmul = _best_seconds(lambda: torch.mm(left, right, out=product), device)
    size = CPU_BYTES if on_cpu else GPU_BYTES
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    copy = torch.empty_like(source)
    stream = _best_seconds(lambda: copy.copy_(source), device)
    return DevicePeaks(
        flops_per_second=2.0 * side**3 / matmul, bytes_per_second=2.0 * size / stream, name=device_name(device)
    )


def _best_seconds(work: Callable[[], object], device: torch.device) -> float:
    work()  # untimed: first calls allocate and choose kernels
    best, deadline = float("inf"), time.perf_counter() + SECONDS
    while True:
        synchronise(device)
        begun = time.perf_counter()
        work()
        synchronise(device)
        ended = time.perf_counter()
        best = min(best, ended - begun)
        if ended > deadline:
            return best
