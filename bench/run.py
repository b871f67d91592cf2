"""The bench: every stage and decoding end to end, in one table each.

    python -m bench.run --quick --prompts FOLDER [--json FILE] [--only decoding,trees]
    python -m bench.run --prompts FOLDER --dtype bfloat16 --json FILE

Stages: decoding (our methods beside Hugging Face `generate`), trees, commit, floor, page. With --json a run that
was ended goes on where it was; --quick takes under ten minutes on two cores.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bastion.errors import UserError
from bench import commit, end_to_end, memory_floor, page, tree_growth
from bench.ending import in_one_sentence
from bench.options import add_pair_options, calibrated_pair, note
from bench.results import Results

Stage = Callable[[argparse.Namespace, Any, Results], tuple[list[dict[str, Any]], str]]
"""(options, pair, results) -> rows, and the table to print."""


def _decoding(asked: argparse.Namespace, pair: Any, results: Results) -> tuple[list[dict[str, Any]], str]:
    methods = tuple(asked.methods.split(",")) if asked.methods else (*end_to_end.LIBRARY, *end_to_end.OURS)
    prompts = end_to_end.read_prompts(asked.prompts, asked.limit)
    rows = end_to_end.summarise(end_to_end.measure(pair, results, "decoding", prompts, methods, asked.tokens, note))
    return rows, end_to_end.print_rows(rows)


def _trees(asked: argparse.Namespace, pair: Any, results: Results) -> tuple[list[dict[str, Any]], str]:
    depth = pair.drafter.depth if pair.drafter is not None else 7
    rows = tree_growth.summarise(results.unit("trees", "all", lambda: tree_growth.measure(
        depth=depth, vocabulary=pair.target.vocab_size, rounds=asked.rounds)))
    return rows, tree_growth.print_rows(rows)


def _commit(asked: argparse.Namespace, pair: Any, results: Results) -> tuple[list[dict[str, Any]], str]:
    rows = commit.summarise(results.unit("commit", "all", lambda: commit.measure(pair.target.config, pair.device, pair.dtype, asked.rounds)))
    return rows, commit.print_rows(rows)


def _floor(asked: argparse.Namespace, pair: Any, results: Results) -> tuple[list[dict[str, Any]], str]:
    rows = memory_floor.summarise(results.unit("floor", "all", lambda: memory_floor.measure(pair, asked.rounds)), memory_floor.weight_bytes(pair))
    return rows, memory_floor.print_rows(rows)


def _page(asked: argparse.Namespace, pair: Any, results: Results) -> tuple[list[dict[str, Any]], str]:
    rows = page.summarise(results.unit("page", "all", lambda: page.measure(asked.page_rounds, asked.tokens, "bastion")))
    return rows, page.print_rows(rows)


STAGES: dict[str, Stage] = {"decoding": _decoding, "trees": _trees, "commit": _commit, "floor": _floor, "page": _page}


def main(argv: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_pair_options(parser, limit=0)
    parser.add_argument("--quick", action="store_true", help="one prompt of each set and fewer rounds")
    parser.add_argument("--only", help="stages by commas: " + ", ".join(STAGES))
    parser.add_argument("--methods", help="methods of the stage decoding, by commas, such as generate,ar,ddtree:16")
    parser.add_argument("--json", type=Path, help="file that the results go to and that is gone on with")
    asked = parser.parse_args(argv)
    asked.limit = asked.limit or (1 if asked.quick else 4)
    asked.rounds, asked.page_rounds = (15, 3) if asked.quick else (60, 6)
    stages = asked.only.split(",") if asked.only else list(STAGES)
    for stage in stages:
        if stage not in STAGES:
            raise UserError(f"There is no stage {stage!r}; choose of {', '.join(STAGES)}.")
    about = {"benchmark": "run", "pair": asked.pair, "dtype": asked.dtype, "limit": asked.limit, "tokens": asked.tokens, "rounds": asked.rounds,
             "methods": asked.methods}
    results = Results(asked.json, about, {})
    pair = calibrated_pair(asked, results)
    facts = results.content["facts"]
    print(f"{facts['processor']}, {facts['cores']} cores; {facts['target']}, {facts['dtype']} on {facts['device']}; "
          + ", ".join(f"{name} {version}" for name, version in facts["versions"].items()))
    for stage in stages:
        note(f"Stage {stage}")
        rows, words = STAGES[stage](asked, pair, results)
        results.table(stage, rows)
        print(f"\n{stage}\n{words}", flush=True)
    return results.content


if __name__ == "__main__":
    with in_one_sentence():
        main()
