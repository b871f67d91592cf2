"""Decodes every prompt that comes in on a line (a JSON text) as `generate --save` does, and answers with a line of JSON:
the run's id, its tokens, the seconds of its decode steps, and the wall seconds from the first saved step to the last.

    python -m bench.line_decoder METHOD TOKENS

For bench/page_cost.py, which compares it with the app: like the app it keeps its model, warm, and keeps the garbage
collector from walking it.
"""

from __future__ import annotations

import gc
import json
import sys
from time import perf_counter
from typing import Any

from bastion import decode, load_pair
from bastion.models.quiet import quieten_libraries
from bastion.records import RunStore, run_totals


def answer(pair: Any, store: RunStore, prompt: str, method: str, tokens: int) -> dict[str, Any]:
    """Decode and save one run; what is told of it."""
    ids = pair.tokenizer.encode_prompt(prompt)
    steps = decode(pair, ids, method, max_new_tokens=tokens, trace=True)
    sampling = {"max_new_tokens": tokens, "temperature": 0.0, "stop_token_ids": sorted(pair.stop_token_ids)}
    writer = store.create({"pair": pair.name, "method": method, "prompt": prompt, "prompt_ids": ids, "sampling": sampling},
                          text_of=pair.tokenizer.token_texts, decode=pair.tokenizer.decode)
    taken, saved = [], []
    for step in steps:
        writer.append(step)
        taken.append(step)
        saved.append(perf_counter())
    totals = run_totals(taken)
    return {"run": writer.finish(), "tokens": totals["tokens"], "seconds": totals["seconds_decode"], "wall": saved[-1] - saved[0]}


def main() -> None:
    quieten_libraries()
    method, tokens = sys.argv[1], int(sys.argv[2])
    pair, store = load_pair(), RunStore()
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        print(json.dumps(answer(pair, store, json.loads(line), method, tokens)), flush=True)


if __name__ == "__main__":
    main()
