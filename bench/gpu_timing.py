"""What the stages of the GPU check time and compare with."""

from __future__ import annotations

import contextlib
import statistics
import time
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch

from bastion import decode
from bastion.decoding.calibrate import _random_tree
from bastion.models.device import synchronise
from bastion.models.pair import Pair


def text(pair: Pair, prompt: list[int], method: str, tokens: int, **options) -> list[int]:
    steps = decode(pair, prompt, method, max_new_tokens=tokens, stop_token_ids=(), trace=False, **options)
    return [token for step in steps for token in step.emitted]


def close(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.shape == right.shape and bool((left - right).abs().max() <= 1e-4 * left.abs().max())


def seconds_of(work: Callable[[], object], device: torch.device, times: int) -> float:
    """Median seconds of `work`, the device at rest before and after."""
    work()
    found = []
    for _ in range(times):
        synchronise(device)
        begun = time.perf_counter()
        work()
        synchronise(device)
        found.append(time.perf_counter() - begun)
    return statistics.median(found)


@torch.inference_mode()
def verify_seconds(pair: Pair, cache, nodes: int, context: int, times: int) -> float:
    tree = _random_tree(np.random.default_rng(nodes), pair.target.vocab_size, nodes)
    cache.truncate(context)
    pair.target.verify(pair.target.lay_out(tree, context), cache)
    pair.target.settle()
    laid_out = pair.target.lay_out(tree, context)
    return seconds_of(lambda: pair.target.verify(laid_out, cache), pair.device, times)


@contextlib.contextmanager
def waits_counted(device: torch.device) -> Iterator[list]:
    """A list that gets an entry for every operation of torch that makes the host wait, but for `synchronize` itself."""
    with warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter("always")
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield waits
        finally:
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")
