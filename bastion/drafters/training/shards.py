"""Answers on disk: token ids and target features, in safetensors files of a few hundred dialogues.

Features are what costs: a target pass per token. They are written once, in the target's own
pass, and read back row by row without loading a file whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from bastion.errors import UserError


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


def write_shard(path: Path, dialogues: list[Dialogue], layer_ids: Sequence[int] = ()) -> None:
    """Write dialogues to `path` under a temporary name first, so that a kill leaves no half file.

    layer_ids: the target's layers whose outputs are the features, side by side.
    """
    tensors = {
        "ids": torch.cat([d.ids for d in dialogues]).to(torch.int32),
        "lengths": torch.tensor([len(d.ids) for d in dialogues]),
        "prompt_lengths": torch.tensor([d.prompt_length for d in dialogues]),
        "features": torch.cat([d.features for d in dialogues]).to(torch.bfloat16),
    }
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, metadata={
        "sources": "\n".join(d.source for d in dialogues), "layers": ",".join(map(str, layer_ids))})
    partial.rename(path)


class ShardReader:
    """Random access to the dialogues of all shards in a folder.

    layer_ids: features of these layers are wanted, of more that a shard may hold; None for all as they lie. unnamed:
    the layers of shards that do not say theirs. UserError when a wanted one is not there.
    """

    def __init__(self, folder: Path, layer_ids: Sequence[int] | None = None, unnamed: Sequence[int] = ()):
        self.folder, self.layer_ids, self.unnamed = folder, layer_ids, tuple(unnamed)
        self.columns: dict[Path, tuple[int, list[int]] | None] = {}
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
            about = handle.metadata() or {}
            sources = about.get("sources", "").split("\n")
            self.columns[path] = self._columns(path, about.get("layers", ""))
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
        if (columns := self.columns[path]) is not None:
            held, chosen = columns
            features = features.unflatten(1, (held, -1))[:, chosen].flatten(1)
        return Dialogue(self.ids_of(i), prompt, features, source)

    def _columns(self, path: Path, layers: str) -> tuple[int, list[int]] | None:
        """How many layers a shard holds, and the places of those wanted; None where it is all of them in order."""
        held = tuple(int(i) for i in layers.split(",") if i) or self.unnamed
        if self.layer_ids is None or not held or held == tuple(self.layer_ids):
            return None
        missing = [i for i in self.layer_ids if i not in held]
        if missing:
            raise UserError(f"The answers in {path} hold features of the layers {list(held)} and not of {missing}; "
                            "name other --feature-layers, or gather into a new folder.")
        return len(held), [held.index(i) for i in self.layer_ids]

    def ids_of(self, i: int) -> torch.Tensor:
        """The ids of one dialogue, int64 [t], without reading its features."""
        path, start, length, *_ = self.index[i]
        return self.ids[path][start : start + length].long()

    def __iter__(self) -> Iterator[Dialogue]:
        return (self[i] for i in range(len(self)))

    @property
    def answer_tokens(self) -> int:
        return sum(length - prompt for _, _, length, prompt, *_ in self.index)
