"""Answers on disk: token ids and target features, in safetensors files of a few hundred dialogues.

Features are what costs: a target pass per token. They are written once, in the target's own
pass, and read back row by row without loading a file whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file


@dataclass(slots=True)
class Dialogue:
    """A prompt, the target's greedy answer, and features of every position but the last.

    ids: int64 [t], prompt then answer. prompt_length: p <= t. features: [t - 1, f], row i belongs
    to ids[i] (the last id was never fed to the target).
    """

    ids: torch.Tensor
    prompt_length: int
    features: torch.Tensor
    source: str = ""

    @property
    def answer_length(self) -> int:
        return len(self.ids) - self.prompt_length


def write_shard(path: Path, dialogues: list[Dialogue]) -> None:
    """Write dialogues to `path` under a temporary name first, so that a kill leaves no half file."""
    tensors = {
        "ids": torch.cat([d.ids for d in dialogues]).to(torch.int32),
        "lengths": torch.tensor([len(d.ids) for d in dialogues]),
        "prompt_lengths": torch.tensor([d.prompt_length for d in dialogues]),
        "features": torch.cat([d.features for d in dialogues]).to(torch.bfloat16),
    }
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, metadata={"sources": "\n".join(d.source for d in dialogues)})
    partial.rename(path)


class ShardReader:
    """Random access to the dialogues of all shards in a folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.index: list[tuple[Path, int, int, int, int, int, str]] = []
        self.known: set[Path] = set()
        self.open: dict[Path, object] = {}
        self.ids: dict[Path, torch.Tensor] = {}
        self.refresh()

    def refresh(self) -> int:
        """Take in shards written since the last call; returns the number of new dialogues."""
        before = len(self.index)
        for path in sorted(self.folder.glob("*.safetensors")):
            if path in self.known:
                continue
            try:
                handle = safe_open(path, "pt")
                ids, lengths, prompts = (handle.get_tensor(k) for k in ("ids", "lengths", "prompt_lengths"))
            except SafetensorError:
                continue
            sources = (handle.metadata() or {}).get("sources", "").split("\n")
            self.known.add(path)
            self.open[path], self.ids[path] = handle, ids
            start = row = 0
            for i, (length, prompt) in enumerate(zip(lengths.tolist(), prompts.tolist(), strict=True)):
                self.index.append((path, start, length, prompt, row, i, sources[i] if i < len(sources) else ""))
                start, row = start + length, row + length - 1
        return len(self.index) - before

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, i: int) -> Dialogue:
        path, _, length, prompt, row, _, source = self.index[i]
        features = self.open[path].get_slice("features")[row : row + length - 1]
        return Dialogue(self.ids_of(i), prompt, features, source)

    def ids_of(self, i: int) -> torch.Tensor:
        """The ids of one dialogue, int64 [t], without reading its features."""
        path, start, length, *_ = self.index[i]
        return self.ids[path][start : start + length].long()

    def __iter__(self) -> Iterator[Dialogue]:
        return (self[i] for i in range(len(self)))

    @property
    def answer_tokens(self) -> int:
        return sum(length - prompt for _, _, length, prompt, *_ in self.index)
