"""Which device to run on, its name and its free memory."""

from __future__ import annotations

import torch

from bastion.errors import UserError


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


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all it was given, so that a clock read after it means something."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def free_memory(device: torch.device) -> int | None:
    """Bytes that can still be taken on `device`; None where nothing says so."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    found = [free for free in (_available_here(), _left_of_container()) if free is not None]
    return min(found) if found else None


def _available_here() -> int | None:
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _left_of_container() -> int | None:
    """What a memory limit on this container (cgroup 2) leaves; None without one."""
    limit, used = (_read(f"/sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current"))
    return max(int(limit) - int(used), 0) if limit.isdecimal() and used.isdecimal() else None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


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
