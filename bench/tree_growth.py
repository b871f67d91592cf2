"""Milliseconds to build a tree from full logits, by size: top-k, growth, priced growth, and the tensors of it.

    python -m bench.tree_growth [--depth 7] [--rounds 60]

Logits are drawn to fall off like a drafter's, flatter with every depth; no model is needed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from bastion.trees import AdaptiveBudget, DraftMarginals, FixedBudget, grow_best_first
from bench.ending import in_one_sentence
from bench.measure import spread, time_in_turn
from bench.tables import Table

SIZES = (16, 64, 256, 1024)
STAGES = ("top-k", "growth", "priced growth", "traced growth", "mask")
MARGINALS = 128
"""Tokens a depth at most, as the published defaults have it."""


def measure(sizes: tuple[int, ...] = SIZES, depth: int = 7, vocabulary: int = 49152, rounds: int = 30) -> dict[str, list[float]]:
    """Seconds of every stage of building a tree of `sizes` nodes from full logits, by "stage/nodes", in turn.

    top-k: from float32 logits [depth, vocabulary] to marginals; growth: best-first under a fixed budget; priced growth:
    under a latency that never stops it, the dearest case for the stop; traced growth: with its log, read to 64 nodes
    past the stop, which a step does outside its clock; mask: tensors of tokens, positions and ancestors.
    """
    import torch

    from bastion.models.top_k import top_k_log_probs

    falls = -3.0 * torch.arange(1, vocabulary + 1).log() * torch.linspace(1.0, 0.4, depth)[:, None]
    generator = torch.Generator().manual_seed(0)
    logits = torch.stack([row[torch.randperm(vocabulary, generator=generator)] for row in falls])
    works: dict[str, Callable[[], object]] = {}
    for nodes in sizes:
        wanted = min(nodes - 1, MARGINALS, vocabulary)

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
                  f"traced growth/{nodes}": lambda m=found, b=price: grow_best_first(m, 1, b, trace=True).growth,
                  f"mask/{nodes}": tensors}
    return time_in_turn(works, rounds)


def summarise(seconds: dict[str, list[float]]) -> list[dict[str, Any]]:
    """One row a size, a spread in ms a stage."""
    sizes = dict.fromkeys(name.partition("/")[2] for name in seconds)
    return [{"nodes": int(size), **{stage: spread([1e3 * one for one in seconds[f"{stage}/{size}"]]).json() for stage in STAGES}} for size in sizes]


def tabulate(rows: list[dict[str, Any]]) -> Table:
    return Table(["nodes", *(f"{stage} ms" for stage in STAGES)],
                 [[str(row["nodes"]), *(f"{row[stage]['median']:.3f} ({row[stage]['low']:.3f}-{row[stage]['high']:.3f})" for stage in STAGES)] for row in rows],
                 "Medians and quartiles. A step grows one tree; its log, read behind the step's clock, is drawn up to 64 nodes past the stop.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--depth", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=60)
    asked = parser.parse_args()
    print(tabulate(summarise(measure(depth=asked.depth, rounds=asked.rounds))).text())


if __name__ == "__main__":
    with in_one_sentence():
        main()
