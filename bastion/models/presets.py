"""Pairs that have a name: where target and drafter come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bastion.home import models_dir

ASSETS = Path(__file__).resolve().parents[2] / "assets" / "drafters"


@dataclass(frozen=True)
class Preset:
    """`target` and `drafter` are folders, or names on the Hugging Face hub."""

    name: str
    target: str
    drafter: str
    summary: str

    @property
    def is_default(self) -> bool:
        return self.name == DEFAULT


DEFAULT = "smollm2-135m"

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            DEFAULT,
            str(models_dir() / "SmolLM2-135M-Instruct"),
            str(ASSETS / "smollm2-135m-dflash"),
            "SmolLM2 135M Instruct with the drafter shipped here; runs on a laptop without a GPU",
        ),
        Preset("qwen3-4b", "Qwen/Qwen3-4B", "z-lab/Qwen3-4B-DFlash-b16", "Qwen3 4B, block of 16"),
        Preset("qwen3-8b", "Qwen/Qwen3-8B", "z-lab/Qwen3-8B-DFlash-b16", "Qwen3 8B, block of 16"),
        Preset(
            "llama-3.1-8b",
            "meta-llama/Llama-3.1-8B-Instruct",
            "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat",
            "Llama 3.1 8B Instruct, block of 10; the target needs a licence accepted on the hub",
        ),
    )
}
