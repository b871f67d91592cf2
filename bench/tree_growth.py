"""Median milliseconds to grow a best-first tree, by size, drafted depth and tokens per depth.

    python -m bench.tree_growth [--repeats 30]

Marginals are drawn to fall off like a drafter's; nothing but numpy is needed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from bastion.trees import AdaptiveBudget, DraftMarginals, FixedBudget, grow_best_first


def drafter_like(depth: int, k: int, seed: int) -> DraftMarginals:
    """Zipf-like rows whose peak falls with depth."""
    rng = np.random.default_rng(seed)
    peaks = np.linspace(3.0, 1.2, depth)[:, None] * rng.uniform(0.7, 1.3, (depth, 1))
    scores = -peaks * np.log1p(np.arange(k)) - np.sort(rng.uniform(0, 1, (depth, k)), axis=1)
    log_probs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    token_ids = np.stack([rng.permutation(49152)[:k] for _ in range(depth)])
    return DraftMarginals(token_ids, log_probs.astype(np.float32))


def milliseconds(work: Callable[[Any], object], repeats: int, ready: Callable[[], Any] = lambda: None) -> float:
    """Median time of `work(ready())`, `ready` outside the clock."""
    times = []
    for _ in range(repeats):
        given = ready()
        start = perf_counter()
        work(given)
        times.append(perf_counter() - start)
    return 1e3 * median(times)


SIZES = (16, 64, 256, 1024)
STAGES = ("top-k", "growth", "priced growth", "mask")


def measure(sizes: tuple[int, ...] = SIZES, depth: int = 7, vocabulary: int = 49152, rounds: int = 30) -> dict[str, list[float]]:
    """Seconds of every stage of building a tree of `sizes` nodes from full logits, by "stage/nodes", in turn.

    top-k: from float32 logits [depth, vocabulary] to marginals; growth: best-first under a fixed budget; priced
    growth: under a latency that never stops it, the dearest case; mask: tensors of tokens, positions and ancestors.
    """
    import torch

    from bastion.models.top_k import top_k_log_probs
    from bench.measure import time_in_turn

    falls = -3.0 * torch.arange(1, vocabulary + 1).log() * torch.linspace(1.0, 0.4, depth)[:, None]
    generator = torch.Generator().manual_seed(0)
    logits = torch.stack([row[torch.randperm(vocabulary, generator=generator)] for row in falls])
    works: dict[str, Callable[[], object]] = {}
    for nodes in sizes:
        wanted = min(nodes - 1, 128)

        def marginals(wanted: int = wanted) -> DraftMarginals:
            log_probs, ids = top_k_log_probs(logits, wanted)
            return DraftMarginals(ids.numpy(), log_probs.numpy())

        found, price = marginals(), AdaptiveBudget(lambda n: 0.02 + 1e-12 * n, 0.01, 0.002, max_nodes=nodes)
        tree = grow_best_first(found, 1, FixedBudget(nodes))

        def tensors(tree=tree) -> tuple:
            return torch.from_numpy(tree.token_ids), torch.from_numpy(tree.depths + 512), torch.from_numpy(tree.ancestor_mask())

        works |= {f"top-k/{nodes}": marginals,
                  f"growth/{nodes}": lambda m=found, n=nodes: grow_best_first(m, 1, FixedBudget(n)),
                  f"priced growth/{nodes}": lambda m=found, b=price: grow_best_first(m, 1, b),
                  f"mask/{nodes}": tensors}
    return time_in_turn(works, rounds)


def summarise(seconds: dict[str, list[float]]) -> list[dict[str, Any]]:
    """One row a size, a spread in ms a stage."""
    from bench.measure import spread

    sizes = dict.fromkeys(name.partition("/")[2] for name in seconds)
    return [{"nodes": int(size), **{stage: spread([1e3 * one for one in seconds[f"{stage}/{size}"]]).json() for stage in STAGES}} for size in sizes]


def print_rows(rows: list[dict[str, Any]]) -> str:
    from bastion.cli.output import table

    return table(["nodes", *(f"{stage} ms" for stage in STAGES)],
                 [[str(row["nodes"]), *(f"{row[stage]['median']:.3f} ({row[stage]['low']:.3f}-{row[stage]['high']:.3f})" for stage in STAGES)] for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=30)
    repeats = parser.parse_args().repeats
    print(f"{'nodes':>6} {'depth':>6} {'k':>4} {'fixed':>8} {'adaptive':>9} {'log':>8} {'mask':>8}   (median ms)")
    for nodes in (16, 64, 256, 1024):
        for depth in (7, 15):
            for k in (16, 128):
                marginals = drafter_like(depth, k, seed=nodes + depth + k)
                # A flat latency never stops growth early: what is timed is the rule itself.
                budget = AdaptiveBudget(lambda n: 0.02 + 1e-12 * n, 0.01, 0.002, max_nodes=nodes)
                tree = grow_best_first(marginals, 1, FixedBudget(nodes))
                cells = (
                    milliseconds(lambda _, m=marginals, n=nodes: grow_best_first(m, 1, FixedBudget(n)), repeats),
                    milliseconds(lambda _, m=marginals, b=budget: grow_best_first(m, 1, b), repeats),
                    # Reading the log makes it, 64 pops past the stop included.
                    milliseconds(
                        lambda traced: traced.growth,
                        repeats,
                        lambda m=marginals, b=budget: grow_best_first(m, 1, b, trace=True),
                    ),
                    milliseconds(lambda _, t=tree: t.ancestor_mask(), repeats),
                )
                fixed, adaptive, log, mask = cells
                print(f"{tree.nodes:6d} {depth:6d} {k:4d} {fixed:8.3f} {adaptive:9.3f} {log:8.3f} {mask:8.3f}")


if __name__ == "__main__":
    main()
