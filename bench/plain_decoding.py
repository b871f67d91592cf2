"""Plain decoding and verification against the floor that memory sets, and against Hugging Face's `generate`.

    python -m bench.plain_decoding [--tokens 48] [--rounds 5] [--context 128] [--json FILE]

Plain decoding in both number types and `generate` (sdpa, bfloat16) take turns on one prompt, as do verifications of
1 to 64 nodes, a prompt read at once, and a reading of as many bytes as the model's weights, which is the floor.
Lower quartile and median over the rounds; on a machine that others use too, trust the ratios and the quartile.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from bastion import decode, load_pair
from bastion.models import PRESETS
from bastion.models.device import synchronise
from bastion.models.quiet import quieten_libraries

PROMPT = "Explain in simple words how a bicycle stays upright."
DTYPES = ("bfloat16", "float32")
NODES = (1, 2, 4, 8, 16, 32, 64)
PREFILL = 512


def measure(tokens: int = 48, rounds: int = 5, context: int = 128, preset: str = "smollm2-135m") -> dict:
    """{"device", "tokens", "context", "weight_bytes" by dtype, "rows"}; a row is {"what", "dtype", "n" (nodes, or tokens),
    "quartile_ms", "median_ms"}, of plain decoding per token and of anything else per pass."""
    pairs = {dtype: load_pair(preset, dtype=dtype) for dtype in DTYPES}
    first = pairs[DTYPES[0]]
    library = AutoModelForCausalLM.from_pretrained(PRESETS[preset].target, dtype=torch.bfloat16, attn_implementation="sdpa")
    library = library.to(first.device).eval()
    values = sum(weight.numel() for weight in library.parameters())  # a tied head counts once
    ids = first.tokenizer.encode_prompt(PROMPT)

    works: dict[tuple[str, str, int], tuple[Callable[[], object], int]] = {
        ("generate", "bfloat16", tokens): (_generate(library, ids, tokens, first.device), tokens),
    }
    for dtype, pair in pairs.items():
        works["plain", dtype, tokens] = (_plain(pair, ids, tokens), tokens)
        works["floor", dtype, 1] = (_reading(values * pair.dtype.itemsize, pair.device), 1)
        works["prefill", dtype, PREFILL] = (_prefill(pair.target), 1)
        for n, verify in _verifications(pair.target, context):
            works["verify", dtype, n] = (verify, 1)
    seconds: dict[tuple[str, str, int], list[float]] = {key: [] for key in works}
    for round_ in range(rounds + 1):
        for key, (work, passes) in works.items():
            synchronise(first.device)
            begun = perf_counter()
            work()
            synchronise(first.device)
            if round_:  # the first warms up
                seconds[key].append((perf_counter() - begun) / passes)
    rows = [
        {"what": what, "dtype": dtype, "n": n, "quartile_ms": 1e3 * float(np.quantile(times, 0.25)), "median_ms": 1e3 * float(np.median(times))}
        for (what, dtype, n), times in seconds.items()
    ]
    return {"device": first.device_name, "target": first.target.name, "tokens": tokens, "context": context, "rounds": rounds,
            "weight_bytes": {dtype: values * pair.dtype.itemsize for dtype, pair in pairs.items()}, "rows": rows}


def _plain(pair, ids: list[int], tokens: int) -> Callable[[], object]:
    return lambda: list(decode(pair, ids, "ar", max_new_tokens=tokens, stop_token_ids=(), trace=False))


def _generate(library, ids: list[int], tokens: int, device: torch.device) -> Callable[[], object]:
    inputs = torch.tensor([ids], device=device)
    return lambda: library.generate(inputs, max_new_tokens=tokens, do_sample=False, eos_token_id=None, pad_token_id=0)


def _reading(size: int, device: torch.device) -> Callable[[], object]:
    """One pass over as many bytes as the weights have."""
    block = torch.ones(size // 4, device=device)
    return block.sum


def _prefill(target) -> Callable[[], object]:
    ids = np.random.default_rng(0).integers(target.vocab_size, size=PREFILL).tolist()
    return lambda: target.prefill(ids, target.new_cache(PREFILL))


def _verifications(target, context: int) -> list[tuple[int, Callable[[], object]]]:
    """A forward of each number of nodes, three to a level, behind `context` random tokens."""
    random = np.random.default_rng(0)
    cache = target.new_cache(context + max(NODES))
    target.prefill(random.integers(target.vocab_size, size=context).tolist(), cache)
    found = []
    for n in NODES:
        allowed = np.tril(np.ones((n, n), dtype=bool))
        inputs = target.tree_inputs(random.integers(target.vocab_size, size=n), np.arange(n) // 3, allowed, context)
        found.append((n, lambda inputs=inputs: target.forward(*inputs, cache)))
    return found


def table(measured: dict) -> str:
    """Rows with their ratio to the floor of their number type, and of plain decoding to `generate`."""
    rows = {(row["what"], row["dtype"], row["n"]): row for row in measured["rows"]}
    generate = rows["generate", "bfloat16", measured["tokens"]]["quartile_ms"]
    lines = [f"{measured['target']}, {measured['device']}, context {measured['context']}, {measured['rounds']} rounds",
             f"{'what':<10} {'dtype':<9} {'n':>4} {'quartile ms':>12} {'median ms':>10} {'x floor':>8} {'x generate':>11}"]
    for (what, dtype, n), row in rows.items():
        floor = rows["floor", dtype, 1]["quartile_ms"]
        beside = f"{row['quartile_ms'] / floor:8.2f}" if what != "prefill" else " " * 8
        speed = f"{generate / row['quartile_ms']:11.2f}" if what in ("plain", "generate") else ""
        lines.append(f"{what:<10} {dtype:<9} {n:4d} {row['quartile_ms']:12.2f} {row['median_ms']:10.2f} {beside} {speed}".rstrip())
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--json", type=Path, help="file for the numbers")
    asked = parser.parse_args()
    quieten_libraries()
    measured = measure(asked.tokens, asked.rounds, asked.context)
    print(table(measured))
    if asked.json:
        asked.json.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
