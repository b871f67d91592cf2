"""Milliseconds to commit an accepted path, by context: it must not grow with it.

    python -m bench.commit [--dtype auto] [--rounds 60]

In the cache that the target at hand decodes in (`RowCache` of the lean forward, `StaticCache` of fixed shapes), and in
`KVCache`, which the targets of every other family use.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch

from bastion.models.cache import KVCache
from bastion.models.device import synchronise
from bastion.models.target import Target
from bench.ending import in_one_sentence
from bench.measure import spread, time_in_turn
from bench.tables import Table

CONTEXTS = (128, 512, 2048, 8192)
NODES, PATH = 32, (0, 2, 5, 11)
"""A tree of 32 nodes, of which a path of four that do not lie in order is kept."""


def caches_of(target: Target, capacity: int) -> dict[str, Callable[[], Any]]:
    """By name, how to make each kind of cache with so many positions, filled."""
    def key_value() -> KVCache:
        config, dtype = target.config, target.dtype
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        new = torch.zeros(1, config.num_key_value_heads, 1, size, dtype=dtype, device=target.device)
        cache = KVCache(config.num_hidden_layers, capacity)
        for layer in cache.layers:
            layer.lazy_initialization(new, new)
            layer.keys.normal_()
            layer.values.normal_()
        return cache

    own = type(target.new_cache(1)).__name__
    return {KVCache.__name__: key_value} if own == KVCache.__name__ else {own: lambda: target.new_cache(capacity), KVCache.__name__: key_value}


def measure(target: Target, rounds: int, contexts: tuple[int, ...] = CONTEXTS) -> dict[str, list[float]]:
    """Seconds of each commit, by "cache/context", all in turn: every commit finds what the others left of the
    processor's caches, as it does behind a forward."""
    rows = torch.tensor(PATH, device=target.device)
    works = {}
    for context in contexts:
        for name, make in caches_of(target, context + NODES).items():
            def work(cache: Any, context: int = context) -> None:
                cache.commit(rows)
                synchronise(target.device)
                cache.truncate(context)

            cache = make()
            cache.truncate(context)
            works[f"{name}/{context}"] = lambda cache=cache, work=work: work(cache)
    return time_in_turn(works, rounds)


def summarise(seconds: dict[str, list[float]]) -> list[dict[str, Any]]:
    """One row a cache and context, times in ms; `times`: the median relative to the same cache's shortest context."""
    rows, first = [], {}
    for key, some in seconds.items():
        cache, _, context = key.partition("/")
        found = spread([1e3 * one for one in some])
        first.setdefault(cache, found.median)
        rows.append({"cache": cache, "context": int(context), "ms": found.json(), "times": found.median / first[cache]})
    return sorted(rows, key=lambda row: list(first).index(row["cache"]))


def tabulate(rows: list[dict[str, Any]]) -> Table:
    return Table(["cache", "context", "commit ms", "quartiles", "x shortest"],
                 [[row["cache"], str(row["context"]), f"{row['ms']['median']:.3f}", f"{row['ms']['low']:.3f}-{row['ms']['high']:.3f}",
                   f"{row['times']:.2f}"] for row in rows],
                 f"{len(PATH)} accepted of {NODES} nodes, not in order. The first cache is the one that this target decodes in.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rounds", type=int, default=60)
    asked = parser.parse_args()
    from bastion import load_pair

    print(tabulate(summarise(measure(load_pair(dtype=asked.dtype).target, asked.rounds))).text())


if __name__ == "__main__":
    with in_one_sentence():
        main()
