"""Milliseconds to commit an accepted path, by context: it must not grow with it.

    python -m bench.commit [--rounds 40]
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from bastion.cli.output import table
from bastion.models.cache import KVCache
from bench.measure import spread, time_in_turn

CONTEXTS = (128, 512, 2048, 8192)
NODES, PATH = 32, (0, 2, 5, 11)
"""A tree of 32 nodes, of which a path of four that do not lie in order is kept."""


def measure(config: Any, device: torch.device, dtype: torch.dtype, rounds: int, contexts: tuple[int, ...] = CONTEXTS) -> dict[str, list[float]]:
    """Seconds of each commit, by context, in caches of the shape of a target's config; contexts in turn."""
    heads = config.num_key_value_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    new = torch.randn(1, heads, NODES, size, dtype=dtype, device=device)
    rows = torch.tensor(PATH, device=device)
    caches = {context: KVCache(config.num_hidden_layers, context + NODES) for context in contexts}
    for context, cache in caches.items():
        for layer in cache.layers:
            layer.lazy_initialization(new, new)
            layer.keys.normal_()
            layer.values.normal_()
        cache.truncate(context)

    def work(context: int) -> None:
        caches[context].commit(rows)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        caches[context].truncate(context)

    return time_in_turn({str(context): lambda c=context: work(c) for context in contexts}, rounds)


def summarise(seconds: dict[str, list[float]]) -> list[dict[str, Any]]:
    """One row a context, times in ms; `times` relative to the shortest context."""
    first = spread(next(iter(seconds.values()))).median
    return [{"context": int(context), "ms": {**spread([1e3 * one for one in some]).json()}, "times": spread(some).median / first}
            for context, some in seconds.items()]


def print_rows(rows: list[dict[str, Any]]) -> str:
    return table(["context", "commit ms", "quartiles", "x shortest"],
                 [[str(row["context"]), f"{row['ms']['median']:.3f}", f"{row['ms']['low']:.3f}-{row['ms']['high']:.3f}", f"{row['times']:.2f}"] for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    from transformers import AutoConfig

    from bastion.models import PRESETS

    config = AutoConfig.from_pretrained(PRESETS["smollm2-135m"].target)
    print(print_rows(summarise(measure(config, torch.device("cpu"), torch.bfloat16, rounds))))


if __name__ == "__main__":
    main()
