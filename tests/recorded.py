"""Runs of a pair, decoded in this process and saved as the app saves them."""

from __future__ import annotations

from bastion import decode
from bastion.cli.pairs import run_info
from bastion.models.pair import Pair
from bastion.records import RunStore


def record(store: RunStore, pair: Pair, prompt: str, method: str, tokens: int, **info) -> str:
    """Decode greedily, at most `tokens` tokens, and save every step; the run's id."""
    sampling = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": tokens, "seed": 0, "stop_token_ids": [2]}
    ids = pair.tokenizer.encode_prompt(prompt)
    writer = store.create({**run_info(pair, prompt, ids, method, sampling), **info}, text_of=pair.tokenizer.token_texts,
                          decode=pair.tokenizer.decode)
    for step in decode(pair, ids, method=method, trace=True, **sampling):
        writer.append(step)
    writer.finish()
    return writer.id
