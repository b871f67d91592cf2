"""Grafting against the drafter's own tree at equal nodes, on prompt sets: tau by replay, then speed by decoding.

    python -m bench.grafting FILE.jsonl ... [--limit 40] [--tokens 64] [--json FILE] [--no-replay] [--no-decode]

Replayed on the target's greedy answers (`bastion.decoding.replay`), a row for each set:
- N nodes beside the root, best-first (`ddtree:N`) and grafted, N = 8, 16, 32, 64;
- the adaptive methods made equal in mean nodes: `bastion` with the price of a node lowered until it buys as
  many as `bastion+ngram` does, and `bastion+ngram` with the price raised until it buys as few as `bastion`.
Verify times for the adaptive rows are the stored calibration's (or --calibration FILE's).
Measured: some prompts of each set decoded with ar, bastion and bastion+ngram in shuffled order.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bench.ending import in_one_sentence, write_results
from bench.greedy_answers import known_answers
from bench.side_by_side import measured, print_speeds, read_calibration

from bastion.decoding.adaptive import Bastion, GraftedBastion
from bastion.decoding.methods import BestFirst
from bastion.decoding.protocols import Method
from bastion.decoding.replay import KnownAnswer, replay
from bastion.latency import Calibration
from bastion.trees import AdaptiveBudget, DraftMarginals, DraftTree, FixedBudget, Graft, grow_grafted

SIZES = (8, 16, 32, 64)


@dataclass(frozen=True)
class GraftedFixed(BestFirst):
    """Grafted growth of a fixed number of nodes."""

    lookup_tokens: int = GraftedBastion.lookup_tokens

    def grow_with(self, graft: Graft, marginals: DraftMarginals, root: int, context: int, deepest: int, trace: bool) -> DraftTree:
        return grow_grafted(marginals, graft, root, self.budget, deepest, trace)


@dataclass(frozen=True, slots=True)
class Priced(AdaptiveBudget):
    """The adaptive budget with every price multiplied, which makes its trees larger (below 1) or smaller."""

    factor: float = 1.0

    def stop_rule(self):
        rule, factor = AdaptiveBudget.stop_rule(self), self.factor

        def priced(nodes: int, probability: float, surrogate: float) -> tuple[float, float]:
            gain, price = rule(nodes, probability, surrogate)
            return gain, price * factor

        return priced


class _Priced:
    """What `bastion` and `bastion+ngram` share here: their own budget at another price."""

    factor: float = 1.0

    def budget(self, context: int) -> Priced:
        own = super().budget(context)
        return Priced(**{name: getattr(own, name) for name in AdaptiveBudget.__dataclass_fields__}, factor=self.factor)


@dataclass(frozen=True)
class PricedBastion(_Priced, Bastion):
    factor: float = 1.0


@dataclass(frozen=True)
class PricedGrafted(_Priced, GraftedBastion):
    factor: float = 1.0


@dataclass(frozen=True)
class Outcome:
    """One method on one set: tau and mean nodes over all decode steps; emitted tokens and steps of each prompt [prompts]."""

    tau: float
    nodes: float
    emitted: np.ndarray
    steps: np.ndarray


def outcome(method: Method, answers: list[KnownAnswer]) -> Outcome:
    done = [replay(method, known) for known in answers if len(known.answer) > 1]
    emitted, steps = np.array([one.emitted.sum() for one in done]), np.array([len(one.emitted) for one in done])
    return Outcome(float(emitted.sum() / steps.sum()), float(np.concatenate([one.nodes for one in done]).mean()), emitted, steps)


def equal_nodes(make: Callable[[float], Method], answers: list[KnownAnswer], nodes: float, halvings: int = 12) -> tuple[float, Outcome]:
    """The price factor at which the method buys at least `nodes` a step on the mean, as near as it gets; its outcome."""
    low, high = -5.0, 5.0   # of log2 of the factor: more nodes at the low end
    best = -5.0, outcome(make(2.0**low), answers)
    for _ in range(halvings):
        middle = (low + high) / 2
        found = outcome(make(2.0**middle), answers)
        if found.nodes >= nodes:
            low, best = middle, (middle, found)
        else:
            high = middle
        if abs(found.nodes - nodes) < 0.01:
            best = middle, found
            break
    return 2.0 ** best[0], best[1]


def ratio_interval(above: Outcome, below: Outcome, draws: int = 2000) -> tuple[float, float]:
    """95 % of tau above / tau below under resampling of the prompts."""
    random = np.random.default_rng(0)
    chosen = random.integers(0, len(above.steps), (draws, len(above.steps)))
    taus = [one.emitted[chosen].sum(1) / one.steps[chosen].sum(1) for one in (above, below)]
    low, high = np.percentile(taus[0] / taus[1], (2.5, 97.5))
    return float(low), float(high)


def compared(answers: list[KnownAnswer], calibration: Calibration, sizes: tuple[int, ...] = SIZES) -> dict:
    """All replayed numbers of one set."""
    rows: dict = {"prompts": len(answers), "fixed": {}, "adaptive": {}}
    for size in sizes:
        budget = FixedBudget(size + 1)
        plain, grafted = outcome(BestFirst(budget), answers), outcome(GraftedFixed(budget), answers)
        rows["fixed"][size] = _pair(plain, grafted)
    own = {"bastion": PricedBastion(), "bastion+ngram": PricedGrafted()}
    plain, grafted = (outcome(method.calibrated(calibration), answers) for method in own.values())
    rows["adaptive"]["own"] = _pair(plain, grafted)
    factor, more = equal_nodes(lambda f: PricedBastion(factor=f).calibrated(calibration), answers, grafted.nodes)
    rows["adaptive"]["nodes of bastion+ngram"] = _pair(more, grafted) | {"price_factor": factor}
    factor, fewer = equal_nodes(lambda f: PricedGrafted(factor=f).calibrated(calibration), answers, plain.nodes)
    rows["adaptive"]["nodes of bastion"] = _pair(plain, fewer) | {"price_factor": factor}
    return rows


def _pair(plain: Outcome, grafted: Outcome) -> dict:
    return {"plain": {"tau": plain.tau, "nodes": plain.nodes}, "grafted": {"tau": grafted.tau, "nodes": grafted.nodes},
            "ratio": grafted.tau / plain.tau, "interval": ratio_interval(grafted, plain)}


def print_tau(found: dict[str, dict]) -> None:
    print("\ntau at N nodes beside the root: best-first, grafted (replayed)")
    print(f"{'set':<10}" + "".join(f"{size:>16}" for size in SIZES))
    for name, rows in found.items():
        print(f"{name:<10}" + "".join(f"{row['plain']['tau']:>9.2f}{row['grafted']['tau']:>7.2f}" for row in rows["fixed"].values()))
    means = [[np.mean([rows["fixed"][size][which]["tau"] for rows in found.values()]) for which in ("plain", "grafted")] for size in SIZES]
    print(f"{'mean':<10}" + "".join(f"{plain:>9.2f}{grafted:>7.2f}" for plain, grafted in means))
    for kind, words in (("own", "each as it is"), ("nodes of bastion+ngram", "bastion at the nodes of bastion+ngram"),
                        ("nodes of bastion", "bastion+ngram at the nodes of bastion")):
        print(f"\nadaptive, {words}: nodes and tau of bastion, of bastion+ngram, ratio of tau (95 % over prompts)")
        for name, rows in found.items():
            row = rows["adaptive"][kind]
            low, high = row["interval"]
            print(f"{name:<10}{row['plain']['nodes']:>8.2f}{row['plain']['tau']:>7.2f}{row['grafted']['nodes']:>9.2f}{row['grafted']['tau']:>7.2f}"
                  f"{row['ratio']:>8.2f}x  ({low:.2f} to {high:.2f})")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("files", nargs="+", type=Path)
    options.add_argument("--limit", type=int, default=40, help="prompts of each set to replay")
    options.add_argument("--skip", type=int, default=0, help="leave out the first so many prompts of each set")
    options.add_argument("--tokens", type=int, default=64, help="tokens of each replayed answer")
    options.add_argument("--calibration", type=Path, help="a calibration file, in place of this device's stored one")
    options.add_argument("--speed-prompts", type=int, default=2, help="prompts of each set to decode")
    options.add_argument("--speed-tokens", type=int, default=48, help="tokens of each decode")
    options.add_argument("--no-replay", action="store_true")
    options.add_argument("--no-decode", action="store_true")
    options.add_argument("--json", type=Path)
    asked = options.parse_args()
    result: dict = {}
    with in_one_sentence():
        if not asked.no_replay:
            calibration = read_calibration(asked.calibration)
            sets = known_answers(asked.files, asked.limit, asked.tokens, skip=asked.skip)
            result["calibration"] = {"made_at": calibration.made_at, "id": calibration.id}
            result["replayed"] = {}
            for name, answers in sets.items():
                result["replayed"][name] = compared(answers, calibration)
                print(f"{name} replayed", file=sys.stderr, flush=True)
            print_tau(result["replayed"])
        if not asked.no_decode:
            result["measured"] = measured(("ar", "bastion", "bastion+ngram"), asked.files, asked.speed_prompts, asked.speed_tokens)
            print_speeds(result["measured"], ("bastion", "bastion+ngram"))
    write_results(asked.json, result)


if __name__ == "__main__":
    main()
