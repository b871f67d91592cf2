"""Plain decoding (`ar`) against Hugging Face's own `generate`, same model, prompt and tokens, in turn.

    python bench/plain_decoding.py [--tokens 48] [--rounds 3] [--dtype float32]

Prints milliseconds per token, the median over rounds: of the wall, and of processor time, which a
machine that others use too disturbs less.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from bastion import decode, load_pair  # noqa: E402
from bastion.models import PRESETS  # noqa: E402
from bastion.models.quiet import quieten_libraries  # noqa: E402

PROMPT = "Explain in simple words how a bicycle stays upright."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="auto")
    arguments = parser.parse_args()
    quieten_libraries()
    pair = load_pair(dtype=arguments.dtype)
    library = AutoModelForCausalLM.from_pretrained(PRESETS["smollm2-135m"].target, dtype=pair.dtype).to(pair.device).eval()
    ids = pair.tokenizer.encode_prompt(PROMPT)
    inputs = torch.tensor([ids], device=pair.device)

    def ours(count: int) -> list[int]:
        steps = decode(pair, ids, "ar", max_new_tokens=count, stop_token_ids=(), trace=False)
        return [token for step in steps for token in step.emitted]

    def theirs(count: int) -> list[int]:
        found = library.generate(inputs, max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0)
        return found[0, len(ids):].tolist()

    times: dict[str, list[tuple[float, float]]] = {"ar": [], "generate": []}
    texts = {name: run(4) for name, run in (("ar", ours), ("generate", theirs))}
    for _ in range(arguments.rounds):
        for name, run in (("ar", ours), ("generate", theirs)):
            wall, processor = perf_counter(), process_time()
            texts[name] = run(arguments.tokens)
            times[name].append((perf_counter() - wall, process_time() - processor))
    print(f"{pair.target.name}, {pair.dtype_name}, {pair.device_name}; {arguments.tokens} tokens, ms per token")
    for name, rows in times.items():
        wall, processor = (1e3 * median(column) / arguments.tokens for column in zip(*rows))
        print(f"{name:<10} wall {wall:7.1f}   processor {processor:7.1f}")
    print("same ids:", texts["ar"] == texts["generate"])


if __name__ == "__main__":
    main()
