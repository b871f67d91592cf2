"""Decoding, end to end: our methods, and what a user would take instead, on every prompt in turn.

Every prompt is decoded by everyone before the next begins, and who begins turns with the prompt, so that a
machine that slows down does so for all. Prompts come from the sets in turn too: a run that is ended early has
seen all sets alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bastion.errors import UserError
from bastion.jobs.prompt_files import read_prompt_set
from bench.decoders import Decoder, assistant_of, library_decoder, load_library, our_decoder
from bench.measure import spread, turned
from bench.ratios import decode_speed
from bench.results import Results
from bench.tables import Table

LIBRARY = ("generate", "generate+lookup", "generate+assistant")
FIXED = ("ddtree:4", "ddtree:8", "ddtree:16", "ddtree:32", "ddtree:64")
OURS = ("ar", "dflash", *FIXED, "bastion", "bastion+ngram")
WARM_UP = 12
"""Tokens of one untimed decode of each, so that kernels are chosen before anything counts."""

Say = Callable[[str], None]


def read_prompts(folder: Path, limit: int) -> list[tuple[str, str, str]]:
    """(set, prompt id, first turn) of the first `limit` prompts of every *.jsonl in `folder`, one of each set in turn."""
    sets = [read_prompt_set(file, limit) for file in sorted(folder.glob("*.jsonl"))]
    if not sets:
        raise UserError(f"{folder} has no prompt sets: name a folder with .jsonl files.")
    return [(one.name, one.conversations[place].id, one.conversations[place].turns[0])
            for place in range(limit) for one in sets if place < len(one.conversations)]


def build_decoders(pair: Any, methods: Sequence[str]) -> dict[str, Decoder]:
    """By name; the library's model is loaded only when it is asked for."""
    model = load_library(pair) if set(methods) & set(LIBRARY) else None
    stops = sorted(pair.stop_token_ids)
    options: dict[str, Callable[[], dict[str, Any]]] = {
        "generate": dict,
        "generate+lookup": lambda: {"prompt_lookup_num_tokens": 8},
        "generate+assistant": lambda: {"assistant_model": assistant_of(model, pair)},
    }
    return {name: library_decoder(model, stops, **options[name]()) if name in options else our_decoder(pair, name) for name in methods}


def measure(pair: Any, results: Results, stage: str, prompts: Sequence[tuple[str, str, str]], methods: Sequence[str], tokens: int,
            say: Say) -> dict[str, Any]:
    """Units "set/id", each {method: `Decoded` as plain values, and whether its ids are those of `ar`}."""
    decoders: dict[str, Decoder] = {}
    for place, (name, number, text) in enumerate(prompts):
        def work(place: int = place, text: str = text) -> dict[str, Any]:
            ids = pair.tokenizer.encode_prompt(text)
            if not decoders:
                decoders.update(build_decoders(pair, methods))
                for decoder in decoders.values():
                    decoder(ids, WARM_UP)
            told, emitted = {}, {}
            for method in turned(list(methods), place):
                decoded, emitted[method] = decoders[method](ids, tokens)
                told[method] = {**decoded.json(), "prompt_tokens": len(ids)}
            for method, ids_of in emitted.items():
                told[method]["as_ar"] = ids_of == emitted["ar"] if "ar" in emitted else None
            return told

        say(f"{stage}: {name}/{number}, {place + 1} of {len(prompts)}")
        results.unit(stage, f"{name}/{number}", work)
    return results.units(stage)


def summarise(units: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a method. speed: mean over the sets of tokens per second, each set's own in `sets`; against:
    spread over prompts of its speed relative to `ar` and to `generate` on the same prompt."""
    methods = list(next(iter(units.values())))
    rows = []
    for method in methods:
        sets: dict[str, list[dict[str, Any]]] = {}
        for key, told in units.items():
            sets.setdefault(key.partition("/")[0], []).append(told[method])
        speeds = {name: sum(one["tokens"] for one in some) / max(sum(one["seconds"] for one in some), 1e-9) for name, some in sorted(sets.items())}
        every = [one for some in sets.values() for one in some]
        steps = sum(one["steps"] for one in every)
        row: dict[str, Any] = {"method": method, "speed": sum(speeds.values()) / len(speeds), "sets": speeds, "prompts": len(every),
                               "tau": sum(one["tokens"] for one in every) / steps if steps else None,
                               "nodes": sum(one["nodes"] for one in every) / steps if steps else None,
                               "dtype": every[0].get("dtype", ""),
                               "as_ar": sum(bool(one["as_ar"]) for one in every), "against": {}}
        for other in ("ar", "generate"):
            ratios = [fast / slow for told in units.values()
                      if other in told and (fast := decode_speed(told[method])) and (slow := decode_speed(told[other]))]
            if ratios:
                row["against"][other] = spread(ratios).json()
        rows.append(row)
    for row in rows:
        for other in ("ar", "generate"):
            yardstick = next((one["speed"] for one in rows if one["method"] == other), None)
            row[f"times_{other}"] = row["speed"] / yardstick if yardstick else None
    return rows


def tabulate(rows: list[dict[str, Any]]) -> Table:
    """Speeds as means over the sets; behind them the quartiles over prompts of the ratio to `ar`."""
    sets = list(rows[0]["sets"])
    header = ["method", "dtype", "tokens/s", "x ar", "quartiles", "x generate", "tau", "nodes", "as ar", *sets]
    cells = [[row["method"], row["dtype"], f"{row['speed']:.1f}", _times(row["times_ar"]), _quartiles(row["against"].get("ar")),
              _times(row["times_generate"]), _number(row["tau"]), _number(row["nodes"], 1), f"{row['as_ar']}/{row['prompts']}",
              *(f"{row['sets'][name]:.1f}" for name in sets)] for row in rows]
    return Table(header, cells, "Tokens per second from the first token to the last, greedy; loading, warming up and the reading of the prompt "
                 "left out for all alike. Mean over the sets, then set by set.", _identical(rows))


def _identical(rows: list[dict[str, Any]]) -> list[str]:
    """How many outputs have the ids of `ar`: ours, then the library's."""
    if "ar" not in {row["method"] for row in rows}:
        return []
    counts = []
    for who, some in (("our methods", [row for row in rows if row["method"] not in (*LIBRARY, "ar")]),
                      ("Hugging Face", [row for row in rows if row["method"] in LIBRARY])):
        if some:
            counts.append(f"{who} {sum(row['as_ar'] for row in some)} of {sum(row['prompts'] for row in some)}")
    return ["Outputs with the very ids of ar: " + "; ".join(counts) + "."] if counts else []


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def _number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _quartiles(found: dict[str, float] | None) -> str:
    return f"{found['low']:.2f}-{found['high']:.2f}" if found else ""
