"""What a device can do at best: measured where possible, published otherwise."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bastion.errors import UserError


@dataclass(frozen=True, slots=True)
class DevicePeaks:
    """Peak matmul throughput (FLOP/s, 2 per multiply-add) and memory bandwidth (bytes/s)."""

    flops_per_second: float
    bytes_per_second: float
    name: str = ""

    def __post_init__(self) -> None:
        for value in (self.flops_per_second, self.bytes_per_second):
            if not (math.isfinite(value) and value > 0):
                raise UserError("A device's peaks must be numbers greater than 0: measure it again.")


PUBLISHED_PEAKS: dict[str, DevicePeaks] = {
    key: DevicePeaks(flops, bandwidth, name)
    for key, flops, bandwidth, name in (
        ("a5000", 111e12, 768e9, "RTX A5000"),
        ("a6000", 155e12, 768e9, "RTX A6000"),
        ("a100", 312e12, 1935e9, "A100"),
        ("h100", 989e12, 3350e9, "H100"),
        ("h200", 989e12, 4800e9, "H200"),
        ("b6000", 504e12, 1792e9, "RTX PRO 6000 Blackwell"),
    )
}
"""Dense bfloat16 peaks as BASTION's cost model lists them. A fallback for a device that cannot be
measured, always shown as such; no name decides anything where peaks are measured."""

_SPELLINGS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("b6000", ("RTX", "PRO", "6000")),
    ("h200", ("H200",)),
    ("h100", ("H100",)),
    ("a100", ("A100",)),
    ("a6000", ("RTX", "A6000")),
    ("a5000", ("RTX", "A5000")),
)


def published_peaks(device_name: str) -> DevicePeaks | None:
    """The published peaks of a device as its driver spells it; None for one not in the table.

    Form factors ("PCIe", "SXM4-80GB", "NVL") count as the family: only the calibrated roofline is
    used for decisions, and its fitted scale absorbs the difference.
    """
    words = device_name.upper().replace("-", " ").split()
    if device_name.lower() in PUBLISHED_PEAKS:
        return PUBLISHED_PEAKS[device_name.lower()]
    for key, needed in _SPELLINGS:
        if all(word in words for word in needed):
            return PUBLISHED_PEAKS[key]
    return None
