"""How far a forward is from the time it takes to read the weights once, the least it can take.

    python -m bench.floor [--dtype auto] [--rounds 20] [--context 128]

Plain decoding, verification of 1 to 64 nodes and two readings of memory take turns. The floor is the bytes of the
weights that a forward reads, an embedding that is no head left out, over the best bandwidth at which an array of just
that size was read again and again: what is left of it in the processor's last cache counts, since it may serve the
weights of one forward after another as well. Reading an array that no cache holds, which is slower, stands beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import torch

from bastion import decode
from bastion.models.device import free_memory, synchronise
from bastion.models.pair import Pair
from bastion.trees import DraftMarginals, FixedBudget, grow_best_first
from bench.ending import in_one_sentence
from bench.measure import last_level_cache_bytes, spread, turned
from bench.tables import Table

NODES = (1, 2, 4, 8, 16, 32, 64)
COLD_BYTES, COLD_CACHES = 1 << 30, 3
"""A cold array is at least so large, and at least so many times the last-level cache, where memory allows."""
AGAIN = 4
"""Readings of the weight-sized array in one turn; the first follows other work and is not counted."""
PLAIN_TOKENS = 12
READINGS = ("read again", "read cold")


def weight_bytes(pair: Pair) -> int:
    """Bytes that one forward reads of the target: its layers and its head; of an embedding of its own only a few rows."""
    from bastion.latency import ModelShape
    from bastion.latency.peaks import DevicePeaks
    from bastion.latency.roofline import CalibratedRoofline

    shape = ModelShape.from_config(pair.target.config)
    both = CalibratedRoofline(shape, DevicePeaks(1.0, 1.0), bytes_per_value=pair.dtype.itemsize)
    return both.parameter_bytes - (0 if shape.tied else shape.head_weights * pair.dtype.itemsize)


def cold_bytes(device: torch.device) -> int:
    """Size of an array that no cache holds, within a quarter of the memory that is free."""
    wanted = max(COLD_BYTES, COLD_CACHES * (last_level_cache_bytes() or 0))
    free = free_memory(device)
    return wanted if free is None else min(wanted, free // 4)


@torch.inference_mode()
def measure(pair: Pair, rounds: int, context: int = 128, nodes: tuple[int, ...] = NODES) -> dict[str, Any]:
    """{"seconds": {"plain": of a token each, "1", "2", ...: of a forward over a tree of so many nodes each, behind `context`
    tokens, and the two READINGS: of a reading each}, "bytes": of the READINGS}; all in turn, after one untimed round."""
    device = pair.device
    arrays = {"read again": torch.ones(weight_bytes(pair) // 4, device=device), "read cold": torch.ones(cold_bytes(device) // 4, device=device)}
    works: dict[str, Callable[[], list[float]]] = {
        "read again": lambda: [_timed(arrays["read again"].sum, device) for _ in range(AGAIN)][1:],
        "read cold": lambda: [_timed(arrays["read cold"].sum, device)],
        "plain": lambda: _plain(pair, context), **_verifications(pair, context, nodes)}
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(-1, rounds):
        for name in turned(list(works), turn):
            found = works[name]()
            if turn >= 0:
                seconds[name] += found
    return {"seconds": seconds, "bytes": {name: 4 * len(array) for name, array in arrays.items()}}


def _timed(work: Callable[[], object], device: torch.device) -> float:
    synchronise(device)
    begun = perf_counter()
    work()
    synchronise(device)
    return perf_counter() - begun


def _plain(pair: Pair, context: int) -> list[float]:
    """Seconds of the steps of a plain decode behind `context` random tokens."""
    ids = np.random.default_rng(1).integers(pair.target.vocab_size, size=context).tolist()
    steps = decode(pair, ids, "ar", max_new_tokens=PLAIN_TOKENS + 1, stop_token_ids=(), trace=False)
    return [step.seconds.total for step in steps if step.kind == "decode"]


def _verifications(pair: Pair, context: int, nodes: tuple[int, ...]) -> dict[str, Callable[[], list[float]]]:
    """By number of nodes: verifies one and the same best-first tree of that size behind the same random tokens."""
    target, rng = pair.target, np.random.default_rng(0)
    cache = target.new_cache(context + max(nodes))
    target.prefill(rng.integers(target.vocab_size, size=context).tolist(), cache)
    k = min(128, target.vocab_size)
    rows = np.log(np.sort(rng.dirichlet(np.full(k, 0.3), size=7), axis=1)[:, ::-1] + 1e-12).clip(max=0.0)
    marginals = DraftMarginals(np.stack([rng.permutation(target.vocab_size)[:k] for _ in range(7)]), rows)

    def verify(size: int) -> Callable[[], list[float]]:
        laid_out = target.lay_out(grow_best_first(marginals, 1, FixedBudget(size)), context)

        def work() -> list[float]:
            cache.truncate(context)
            took = _timed(lambda: target.verify(laid_out, cache), pair.device)
            target.settle()
            return [took]

        return work

    return {str(size): verify(size) for size in nodes}


def summarise(found: dict[str, Any], weights: int) -> list[dict[str, Any]]:
    """A row for each reading (bytes per second, best and median) and one for plain decoding and each size, times in ms.
    The floor, in every row: `weights` bytes at the best bandwidth of "read again"."""
    seconds, rows = found["seconds"], []
    floor = weights * min(seconds["read again"]) / found["bytes"]["read again"]
    for name, some in seconds.items():
        row = {"what": name, "ms": spread([1e3 * one for one in some]).json(), "floor_ms": 1e3 * floor, "weight_bytes": weights}
        if name in READINGS:
            size = found["bytes"][name]
            row |= {"bytes": size, "best_bytes_per_second": size / min(some), "median_bytes_per_second": size / float(np.median(some))}
        rows.append({**row, "times_floor": row["ms"]["median"] / row["floor_ms"]} if name not in READINGS else row)
    return rows


def tabulate(rows: list[dict[str, Any]]) -> Table:
    again, cold = (next(row for row in rows if row["what"] == name) for name in READINGS)
    words = {"plain": "plain decoding, a token"}
    above = (f"{again['weight_bytes'] / 1e6:.0f} MB of weights at {again['best_bytes_per_second'] / 1e9:.1f} GB/s, the best at which an array of that "
             f"size was read again and again (median {again['median_bytes_per_second'] / 1e9:.1f}): floor {again['floor_ms']:.1f} ms. "
             f"Cold memory, {cold['bytes'] / 1e9:.1f} GB at once: best {cold['best_bytes_per_second'] / 1e9:.1f} GB/s, "
             f"median {cold['median_bytes_per_second'] / 1e9:.1f}.")
    return Table(["forward", "median ms", "quartiles", "x floor"],
                 [[words.get(row["what"], f"verify, {row['what']} nodes"), f"{row['ms']['median']:.1f}", f"{row['ms']['low']:.1f}-{row['ms']['high']:.1f}",
                   f"{row['times_floor']:.2f}"] for row in rows if row["what"] not in READINGS], above)


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
    print(tabulate(summarise(measure(pair, asked.rounds, asked.context), weight_bytes(pair))).text())


if __name__ == "__main__":
    with in_one_sentence():
        main()
