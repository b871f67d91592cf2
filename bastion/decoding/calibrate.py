"""Measure this device and this pair: peaks, verify seconds over (nodes, context), draft and other time.

Everything is timed through the code that decoding runs. Points are visited in shuffled rounds and
each keeps the median of its rounds, so that a slow minute of the machine does not fall on one size.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from bastion.decoding.methods import BestFirst
from bastion.decoding.peaks import measure_peaks
from bastion.decoding.small_lm_methods import SmallLm
from bastion.decoding.tree_methods import Eagle3
from bastion.errors import UserError
from bastion.latency import Calibration, ModelShape, ProbeGrid, find_calibration, find_profile, make_calibration, standard_grid
from bastion.latency.buckets import bucket_of
from bastion.models.device import synchronise
from bastion.models.pair import Pair
from bastion.models.target import Target
from bastion.trees import DraftMarginals, FixedBudget, grow_best_first

Progress = Callable[[str, float], None]
"""Hears what is being done, and the share done, 0 to 1."""
PROFILED = {"marginals": BestFirst(FixedBudget(16)), "trees": Eagle3(15), "levels": SmallLm(15)}
"""The method whose steps are timed, by what the drafter gives."""

log = logging.getLogger(__name__)

PROBE_DEPTH = 7
PROFILED_STEPS = 12


def stored_calibration(pair: Pair) -> Calibration | None:
    """The calibration made earlier for this device, target, drafter, dtype and attention, or None."""
    return find_calibration(pair.device_name, pair.target.name, pair.dtype_name, pair.attention, pair.drafter_name)


def usable_calibration(pair: Pair) -> Calibration | None:
    """The stored calibration, else a shipped profile for this device and a target of these sizes. A damaged file
    counts as none, since it is made again where one is needed."""
    try:
        found = stored_calibration(pair)
    except UserError as damaged:
        log.warning("%s", damaged)
        return None
    return shipped_profile(pair) if found is None else found


def shipped_profile(pair: Pair) -> Calibration | None:
    """The profile that stands in for a calibration of this pair, or None."""
    try:
        shape = ModelShape.from_config(pair.target.config)
    except UserError:  # sizes named otherwise: calibrating will say
        return None
    return find_profile(pair.device_name, shape, pair.dtype_name, pair.attention, pair.target.name, pair.drafter_name)


def calibrate(
    pair: Pair, quick: bool = False, progress: Progress | None = None, grid: ProbeGrid | None = None
) -> Calibration:
    """Measure, fit and store. quick: a smaller grid, under a minute on a laptop for the default pair.

    grid: another grid in place of the two standard ones. `progress` is heard at every probe and may
    raise to give up; what was stored before then stays, since nothing is written until all is measured.
    """
    say = progress or (lambda words, share: None)
    begun = time.perf_counter()
    say("Measuring the device's peaks", 0.0)
    peaks = measure_peaks(pair.device, pair.dtype)
    grid = probe_grid(pair, quick, grid)
    probes = probe_verify(pair.target, grid, lambda share: say("Timing verification", 0.1 + 0.8 * share))
    say("Timing the drafter", 0.92)
    draft_seconds, other_seconds = profile_steps(pair)
    calibration = make_calibration(
        shape=ModelShape.from_config(pair.target.config),
        peaks=peaks,
        peaks_source="measured",
        probes=probes,
        bytes_per_value=pair.dtype.itemsize,
        robust=True,
        device_key=pair.device_name,
        device_name=pair.device_name,
        target=pair.target.name,
        drafter=pair.drafter_name,
        dtype=pair.dtype_name,
        attention=pair.attention,
        draft_seconds=draft_seconds,
        other_seconds=other_seconds,
        buckets=grid.nodes if pair.target.padded else (),
    )
    say("Calibrated", 1.0)  # the last moment to give up
    path = calibration.save()
    log.info(
        "calibrated %s on %s in %.0f s: held-out error %.2f ms raw, %.2f ms fitted; kept in %s",
        pair.target.name, pair.device_name, time.perf_counter() - begun,
        1e3 * calibration.raw_rmse, 1e3 * calibration.calibrated_rmse, path,
    )
    return calibration


def probe_grid(pair: Pair, quick: bool, grid: ProbeGrid | None = None) -> ProbeGrid:
    """`grid`, or the standard one of the pair's device, cut to the model's positions."""
    wanted = (grid or standard_grid(pair.device.type, quick)).check()
    if pair.target.padded:
        wanted = replace(wanted, nodes=tuple(sorted({bucket_of(size) for size in wanted.nodes})))
    return wanted.within(pair.target.position_limit - PROBE_DEPTH - 1)


@torch.inference_mode()
def probe_verify(
    target: Target, grid: ProbeGrid, progress: Callable[[float], None]
) -> list[tuple[int, int, float]]:
    """(nodes, context, median seconds) of real tree forwards behind a context of random tokens.

    At most `grid.rounds` visits to every point, none begun when `grid.seconds` have passed (one is always made).
    """
    nodes, contexts, rounds = grid.nodes, grid.contexts, grid.rounds
    random = np.random.default_rng(0)
    cache = target.new_cache(max(contexts) + max(nodes))
    target.prefill(random.integers(target.vocab_size, size=max(contexts)).tolist(), cache)
    trees = {size: _random_tree(random, target.vocab_size, size) for size in nodes}
    points = [(size, context) for size in nodes for context in contexts]
    seconds: dict[tuple[int, int], list[float]] = {point: [] for point in points}
    # untimed: both ends, or every point where the first use of a shape is not as quick as the next
    for size, context in points if target.padded else ((max(nodes), contexts[0]), (1, contexts[0])):
        _time_forward(target, trees[size], cache, context)
    begun = time.perf_counter()
    for done in range(rounds):
        if done and time.perf_counter() - begun >= grid.seconds:
            break
        for visited, place in enumerate(random.permutation(len(points))):
            spent = (time.perf_counter() - begun) / grid.seconds
            progress(min(1.0, max((done + visited / len(points)) / rounds, spent)))
            size, context = points[place]
            seconds[size, context].append(_time_forward(target, trees[size], cache, context))
    return [(size, context, statistics.median(seconds[size, context])) for size, context in points]


def _time_forward(target: Target, tree, cache, context: int) -> float:
    cache.truncate(context)  # rows of the longer context stay written, so going back up is free
    laid_out = target.lay_out(tree, context)
    synchronise(target.device)
    begun = time.perf_counter()
    target.verify(laid_out, cache)
    synchronise(target.device)
    took = time.perf_counter() - begun
    target.settle()
    return took


def _random_tree(random: np.random.Generator, vocab: int, nodes: int):
    """A best-first tree over made-up marginals that fall off as a drafter's do."""
    k = min(128, vocab)
    scores = -np.sort(random.exponential(2.0, size=(PROBE_DEPTH, k)), axis=1)
    log_probs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    ids = np.stack([random.choice(vocab, size=k, replace=False) for _ in range(PROBE_DEPTH)])
    return grow_best_first(DraftMarginals(ids, log_probs), int(ids[0, 0]), FixedBudget(nodes))


def profile_steps(pair: Pair) -> tuple[float, float]:
    """Median (draft, build + commit) seconds of a real decode with small trees; no draft time without a drafter."""
    from bastion.decoding.loop import decode

    method = "ar" if pair.drafter is None else PROFILED[pair.drafter.gives]
    prompt = np.random.default_rng(1).integers(pair.target.vocab_size, size=min(48, pair.target.position_limit // 4)).tolist()
    steps = decode(pair, prompt, method, max_new_tokens=8 * PROFILED_STEPS, stop_token_ids=(), trace=False)
    seconds = []
    for record in steps:
        if record.kind == "decode":
            seconds.append(record.seconds)
        if len(seconds) > PROFILED_STEPS:
            break
    steps.close()
    measured = seconds[1:] or seconds  # the first draft reads the whole prompt
    if not measured:
        return 0.0, 0.0
    return (
        statistics.median(spent.draft for spent in measured),
        statistics.median(spent.build + spent.commit for spent in measured),
    )
