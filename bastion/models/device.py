"""Which device and which number type to run on."""

from __future__ import annotations

import time

import torch
from torch.nn import functional as F

from bastion.errors import UserError

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def pick_device(name: str = "auto") -> torch.device:
    """`auto` takes a CUDA device, else Apple's MPS, else the CPU. UserError on a device not here."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):
        raise UserError(f"There is no device {name!r} here; use auto, cpu, cuda or mps.") from None
    return device


def pick_dtype(name: str, device: torch.device, hidden: int, vocab: int) -> torch.dtype:
    """`auto` is bfloat16 on CUDA and MPS; on a CPU, bfloat16 only where it measures faster."""
    if name != "auto":
        if name not in DTYPES:
            raise UserError(f"There is no number type {name!r}; use auto, {', '.join(DTYPES)}.")
        return DTYPES[name]
    if device.type != "cpu":
        return torch.bfloat16
    return torch.bfloat16 if _cpu_prefers_bfloat16(hidden, vocab) else torch.float32


@torch.inference_mode()
def _cpu_prefers_bfloat16(hidden: int, vocab: int) -> bool:
    """Time one head-sized matmul of 8 rows in both types: too large for a cache, as in real decoding."""
    best = {}
    for dtype in (torch.float32, torch.bfloat16):
        weight = torch.ones(min(vocab, 32768), hidden, dtype=dtype)
        rows = torch.ones(8, hidden, dtype=dtype)
        times = []
        for _ in range(4):
            begun = time.perf_counter()
            F.linear(rows, weight)
            times.append(time.perf_counter() - begun)
        best[dtype] = min(times[1:])
    return best[torch.bfloat16] < best[torch.float32]


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all it was given, so that a clock read after it means something."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def device_name(device: torch.device) -> str:
    """The device as people know it, for showing and for keying calibrations."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return "Apple MPS"
    return f"{_cpu_name()} ({torch.get_num_threads()} threads)"


def _cpu_name() -> str:
    import platform

    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
