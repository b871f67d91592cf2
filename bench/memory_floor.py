"""How far a forward is from the time it takes to read the weights once, the least it can take.

    python -m bench.memory_floor [--dtype bfloat16] [--rounds 20] [--context 128]

The floor is the bytes of the weights that a forward reads, an embedding that is no head left out, over the
bandwidth of this machine: the best of reading and of copying arrays that no cache holds, between the forwards.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch

from bastion.cli.output import table
from bastion.models.device import synchronise
from bastion.models.pair import Pair
from bastion.trees import DraftMarginals, FixedBudget, grow_best_first
from bench.measure import spread, time_in_turn

NODES = (1, 2, 4, 8, 16, 32, 64)
ARRAY_BYTES = 256 << 20


def weight_bytes(pair: Pair) -> int:
    """Bytes that one forward reads of the target: its layers and its head; of an embedding of its own only a few rows."""
    from bastion.latency import ModelShape
    from bastion.latency.roofline import CalibratedRoofline
    from bastion.latency.peaks import DevicePeaks

    shape = ModelShape.from_config(pair.target.config)
    both = CalibratedRoofline(shape, DevicePeaks(1.0, 1.0), bytes_per_value=pair.dtype.itemsize)
    return both.parameter_bytes - (0 if shape.tied else shape.head_weights * pair.dtype.itemsize)


@torch.inference_mode()
def measure(pair: Pair, rounds: int, context: int = 128, nodes: tuple[int, ...] = NODES) -> dict[str, list[float]]:
    """Seconds of forwards over trees of `nodes` behind `context` tokens, of reading `ARRAY_BYTES` ("read"),
    and of reading half of them and writing them elsewhere ("copy"), in turn."""
    target, rng = pair.target, np.random.default_rng(0)
    cache = target.new_cache(context + max(nodes))
    target.prefill(rng.integers(target.vocab_size, size=context).tolist(), cache)
    k = min(128, target.vocab_size)
    rows = np.log(np.sort(rng.dirichlet(np.full(k, 0.3), size=7), axis=1)[:, ::-1] + 1e-12).clip(max=0.0)
    marginals = DraftMarginals(np.stack([rng.permutation(target.vocab_size)[:k] for _ in range(7)]), rows)
    trees = {n: grow_best_first(marginals, 1, FixedBudget(n)) for n in nodes}
    inputs = {n: target.tree_inputs(tree.token_ids, tree.depths, tree.ancestor_mask(), context) for n, tree in trees.items()}
    array = torch.ones(ARRAY_BYTES // 4, dtype=torch.float32, device=pair.device)

    half = array[: len(array) // 2]
    other = torch.empty_like(half)

    def forward(n: int) -> None:
        cache.truncate(context)
        target.forward(*inputs[n], cache)
        synchronise(pair.device)

    def read() -> None:
        array.sum()
        synchronise(pair.device)

    def copy() -> None:
        other.copy_(half)
        synchronise(pair.device)

    return time_in_turn({"read": read, "copy": copy, **{str(n): lambda n=n: forward(n) for n in nodes}}, rounds)


def summarise(seconds: dict[str, list[float]], weights: int) -> list[dict[str, Any]]:
    """First the floor, then a row a size, times in ms. The bandwidth is the best that was seen."""
    bandwidth = ARRAY_BYTES / min(seconds["read"] + seconds["copy"])
    floor = weights / bandwidth
    rows: list[dict[str, Any]] = [{"nodes": 0, "ms": {"median": 1e3 * floor}, "times_floor": 1.0, "bytes_per_second": bandwidth, "weight_bytes": weights}]
    for n, some in seconds.items():
        if n not in ("read", "copy"):
            found = spread(some)
            rows.append({"nodes": int(n), "ms": spread([1e3 * one for one in some]).json(), "times_floor": found.median / floor})
    return rows


def print_rows(rows: list[dict[str, Any]]) -> str:
    floor = rows[0]
    head = f"{floor['weight_bytes'] / 1e6:.0f} MB of weights at {floor['bytes_per_second'] / 1e9:.1f} GB/s: floor {floor['ms']['median']:.1f} ms\n"
    return head + table(["nodes", "verify ms", "quartiles", "x floor"],
                        [[str(row["nodes"]), f"{row['ms']['median']:.1f}", f"{row['ms']['low']:.1f}-{row['ms']['high']:.1f}", f"{row['times_floor']:.2f}"]
                         for row in rows[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--context", type=int, default=128)
    asked = parser.parse_args()
    from bastion import load_pair
    from bastion.models.quiet import quieten_libraries

    quieten_libraries()
    pair = load_pair(dtype=asked.dtype)
    print(print_rows(summarise(measure(pair, asked.rounds, asked.context), weight_bytes(pair))))


if __name__ == "__main__":
    main()
