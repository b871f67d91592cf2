"""Pairs that have a name: where target and drafter come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bastion.home import models_dir
from bastion.latency.shape import ModelShape

ASSETS = Path(__file__).resolve().parents[2] / "assets" / "drafters"


@dataclass(frozen=True)
class Preset:
    """`target` and `drafter` are folders, or names on the Hugging Face hub.

    The shapes say before any download what a pair will take; None where the folders are here to be read.
    `drafter_features`: how many target layers the drafter reads.
    """

    name: str
    target: str
    drafter: str
    summary: str
    shape: ModelShape | None = None
    drafter_shape: ModelShape | None = None
    drafter_features: int = 0
    beside: tuple[str, ...] = ()
    """Folders of drafters of other kinds, for the methods that want them."""

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
            beside=(str(ASSETS / "smollm2-135m-eagle3"), str(ASSETS / "smollm2-135m-small-lm")),
        ),
        # layers, hidden, heads, key-value heads, head size, feed-forward, vocabulary: the published config.json of each
        Preset(
            "qwen3-4b", "Qwen/Qwen3-4B", "z-lab/Qwen3-4B-DFlash-b16", "Qwen3 4B, block of 16",
            ModelShape(36, 2560, 32, 8, 128, 9728, 151936, tied=True), ModelShape(5, 2560, 32, 8, 128, 9728, 151936), 5,
        ),
        Preset(
            "qwen3-8b", "Qwen/Qwen3-8B", "z-lab/Qwen3-8B-DFlash-b16", "Qwen3 8B, block of 16",
            ModelShape(36, 4096, 32, 8, 128, 12288, 151936), ModelShape(5, 4096, 32, 8, 128, 12288, 151936), 5,
        ),
        Preset(
            "llama-3.1-8b",
            "meta-llama/Llama-3.1-8B-Instruct",
            "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat",
            "Llama 3.1 8B Instruct, block of 10; the target needs a licence accepted on the hub",
            ModelShape(32, 4096, 32, 8, 128, 14336, 128256), ModelShape(5, 4096, 32, 8, 128, 14336, 128256), 5,
        ),
    )
}
