"""Best-first against beam growth at equal budgets, on prompt sets: tau by replay, then speed by decoding.

    python -m bench.best_first_vs_beam FILE.jsonl ... [--limit 40] [--tokens 64] [--json FILE] [--no-replay] [--no-decode]

Both grow over the same marginals with N nodes beside the root, N = 8, 16, 32, 64. A beam has a width, and so a
depth: N nodes as L levels of N / L. Three beams are shown: `beam:N`, which spreads its nodes over all of the
drafter's depths; the one L that is best on the mean of the sets; and the L that is best on each set in hindsight,
which no rule could choose better. The paper (arXiv 2605.29727) reports +6 to 7 % for best-first over beam; how wide its beam was could not
be read, so ours is compared at its best.
Speed: best-first and the beam with the L that was best on the mean of the sets, decoded in shuffled order.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bench.grafting import SIZES, Outcome, outcome, ratio_interval
from bench.ending import in_one_sentence, write_results
from bench.greedy_answers import known_answers
from bench.side_by_side import measured, print_speeds

from bastion.decoding.methods import Beam, BestFirst
from bastion.decoding.replay import KnownAnswer
from bastion.trees import DraftMarginals, DraftTree, FixedBudget, grow_beam


@dataclass(frozen=True)
class BeamOfLevels(Beam):
    """A beam of so many levels, all of the same width but for the remainder, which goes to the upper ones."""

    levels: int = 1

    def grow(self, marginals: DraftMarginals, root: int, context: int, trace: bool) -> DraftTree:
        upper = DraftMarginals(marginals.token_ids[: self.levels], marginals.log_probs[: self.levels])
        return grow_beam(upper, root, FixedBudget(self.nodes + 1))


def compared(answers: list[KnownAnswer], size: int) -> dict[str, Outcome | dict[int, Outcome]]:
    """Best-first, and beams of every number of levels."""
    depth = answers[0].ids.shape[1]
    return {"best-first": outcome(BestFirst(FixedBudget(size + 1)), answers),
            "beams": {levels: outcome(BeamOfLevels(size, levels=levels), answers) for levels in range(1, min(depth, size) + 1)}}


def rows_of(found: dict) -> dict:
    best, beams = found["best-first"], found["beams"]
    levels = max(beams, key=lambda one: beams[one].tau)
    even = beams[max(beams)]
    return {
        "best-first": {"tau": best.tau, "nodes": best.nodes},
        "beam:N": {"tau": even.tau, "nodes": even.nodes, "ratio": best.tau / even.tau, "interval": ratio_interval(best, even)},
        "best beam": {"tau": beams[levels].tau, "nodes": beams[levels].nodes, "levels": levels, "ratio": best.tau / beams[levels].tau,
                      "interval": ratio_interval(best, beams[levels])},
        "tau by levels": {str(number): one.tau for number, one in beams.items()},
    }


def best_levels(replayed: dict[str, dict[int, dict]], size: int) -> int:
    """The number of levels with the greatest mean tau over the sets."""
    by_levels = [rows[size]["tau by levels"] for rows in replayed.values()]
    return int(max(by_levels[0], key=lambda number: np.mean([one[number] for one in by_levels])))


def print_tau(replayed: dict[str, dict[int, dict]]) -> None:
    print("tau at N nodes beside the root (replayed): best-first | beam:N, best-first over it | the best beam (its levels), best-first over it")
    for size in SIZES:
        print(f"\nN = {size}")
        for name, rows in replayed.items():
            row = rows[size]
            even, best = row["beam:N"], row["best beam"]
            print(f"{name:<10}{row['best-first']['tau']:>7.3f} |{even['tau']:>7.3f}{even['ratio']:>7.3f}x ({even['interval'][0]:.3f} to "
                  f"{even['interval'][1]:.3f}) |{best['tau']:>7.3f} ({best['levels']}){best['ratio']:>7.3f}x ({best['interval'][0]:.3f} to {best['interval'][1]:.3f})")
        means = {which: np.mean([rows[size][which]["tau"] for rows in replayed.values()]) for which in ("best-first", "beam:N", "best beam")}
        print(f"{'mean':<10}{means['best-first']:>7.3f} |{means['beam:N']:>7.3f}{means['best-first'] / means['beam:N']:>7.3f}x"
              f"{'':>17} |{means['best beam']:>7.3f}    {means['best-first'] / means['best beam']:>7.3f}x")
        levels = best_levels(replayed, size)
        fixed = np.mean([rows[size]["tau by levels"][str(levels)] for rows in replayed.values()])
        print(f"a beam of {levels} levels on all sets: mean tau {fixed:.3f}, best-first over it {means['best-first'] / fixed:.3f}x")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("files", nargs="+", type=Path)
    options.add_argument("--limit", type=int, default=40, help="prompts of each set to replay")
    options.add_argument("--tokens", type=int, default=64, help="tokens of each replayed answer")
    options.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="budgets to decode with")
    options.add_argument("--levels", type=int, help="levels of the decoded beam, in place of the best of the replay")
    options.add_argument("--speed-prompts", type=int, default=1, help="prompts of each set to decode")
    options.add_argument("--speed-tokens", type=int, default=40, help="tokens of each decode")
    options.add_argument("--no-replay", action="store_true")
    options.add_argument("--no-decode", action="store_true")
    options.add_argument("--json", type=Path)
    asked = options.parse_args()
    if asked.no_replay and not asked.no_decode and asked.levels is None:
        options.error("give --levels for the decoded beam when there is no replay to take them from")
    result: dict = {}
    with in_one_sentence():
        if not asked.no_replay:
            sets = known_answers(asked.files, asked.limit, asked.tokens)
            result["replayed"] = {}
            for name, answers in sets.items():
                result["replayed"][name] = {size: rows_of(compared(answers, size)) for size in SIZES}
                print(f"{name} replayed", file=sys.stderr, flush=True)
            print_tau(result["replayed"])
        if not asked.no_decode:
            result["measured"] = {}
            for size in asked.sizes:
                levels = asked.levels or best_levels(result["replayed"], size)
                built = {"ar": "ar", f"beam of {levels}": BeamOfLevels(size, levels=levels), "best-first": BestFirst(FixedBudget(size + 1))}
                print(f"\nN = {size}, beam of {levels} levels")
                rows = measured(tuple(built), asked.files, asked.speed_prompts, asked.speed_tokens, build=built.get)
                result["measured"][size] = rows
                print_speeds(rows, tuple(built)[1:])
    write_results(asked.json, result)


if __name__ == "__main__":
    main()
