"""Decodes every prompt that comes in on a line (a JSON text) as `generate --save` does, and answers with the seconds
of its decode steps: python -m bench.line_decoder METHOD TOKENS. For bench/page.py.
"""

from __future__ import annotations

import json
import sys

from bastion import decode, load_pair
from bastion.models.quiet import quieten_libraries
from bastion.records import RunStore, run_totals


def main() -> None:
    quieten_libraries()
    method, tokens = sys.argv[1], int(sys.argv[2])
    pair, store = load_pair(), RunStore()
    for line in sys.stdin:
        ids = pair.tokenizer.encode_prompt(json.loads(line))
        writer = store.create({"pair": pair.name, "method": method, "prompt_ids": ids, "sampling": {"max_new_tokens": tokens}},
                              text_of=pair.tokenizer.token_texts, decode=pair.tokenizer.decode)
        steps = []
        for step in decode(pair, ids, method, max_new_tokens=tokens, trace=True):
            writer.append(step)
            steps.append(step)
        writer.finish()
        print(run_totals(steps)["seconds_decode"], flush=True)


if __name__ == "__main__":
    main()
