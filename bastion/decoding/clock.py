"""Wall time of a step's stages, with the device brought to rest at every border."""

from __future__ import annotations

import time

import torch

from bastion.models.device import synchronise
from bastion.step import StepSeconds


class StageClock:
    """`lap(stage)` books the time since the last lap, or since the start, to that stage."""

    def __init__(self, device: torch.device):
        self.device = device
        self.start()

    def start(self) -> None:
        self.spent = dict.fromkeys(("draft", "build", "verify", "commit"), 0.0)
        synchronise(self.device)
        self.last = time.perf_counter()

    def lap(self, stage: str) -> None:
        synchronise(self.device)
        now = time.perf_counter()
        self.spent[stage] += now - self.last
        self.last = now

    def seconds(self) -> StepSeconds:
        return StepSeconds(**self.spent)
