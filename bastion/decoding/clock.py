"""Wall time of a step's stages. A device that works on its own is brought to rest at the borders that need it."""

from __future__ import annotations

import time

import torch

from bastion.models.device import synchronise
from bastion.step import StepSeconds


class StageClock:
    """`lap(stage)` books the time since the last lap, or since the start, to that stage.

    at_rest: the stage ended by reading from the device, or gave it next to nothing to do, so that the clock need not
    wait once more. What is left of it is booked to the next stage: the copies of a layout and of a commit, microseconds.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.start()

    def start(self, at_rest: bool = False) -> None:
        self.spent = dict.fromkeys(("draft", "build", "verify", "commit"), 0.0)
        if not at_rest:
            synchronise(self.device)
        self.last = time.perf_counter()

    def lap(self, stage: str, at_rest: bool = False) -> None:
        if not at_rest:
            synchronise(self.device)
        now = time.perf_counter()
        self.spent[stage] += now - self.last
        self.last = now

    def seconds(self) -> StepSeconds:
        return StepSeconds(**self.spent)
