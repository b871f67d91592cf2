"""The shipped EAGLE-3 head: it fits the default target, `eagle3:N` finds it by itself, and what it drafts changes no token."""

from __future__ import annotations

import json

from bastion import decode
from bastion.models.presets import ASSETS

FOLDER = ASSETS / "smollm2-135m-eagle3"
PROMPT = "A farmer has 17 sheep and buys 5 more. How many sheep does he have now?"


def test_it_is_small_and_says_how_it_was_trained() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 30e6
    rows = [json.loads(line) for line in (FOLDER / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    taus = [row["held_out_tau"] for row in rows if "held_out_tau" in row]
    assert taus[-1]["16"] > 2.0 and "answer tokens" in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_the_default_pair_drafts_with_it_and_answers_as_plain_decoding(default_pair) -> None:
    prompt = default_pair.tokenizer.encode_prompt(PROMPT)
    ids, tau = {}, {}
    for method in ("ar", "eagle3:16"):
        steps = list(decode(default_pair, prompt, method=method, max_new_tokens=24, trace=False))
        ids[method] = [token for step in steps for token in step.emitted]
        drafted = [len(step.emitted) for step in steps if step.kind == "decode"]
        tau[method] = sum(drafted) / len(drafted)
    assert ids["eagle3:16"] == ids["ar"]
    assert tau["ar"] == 1.0 and tau["eagle3:16"] > 1.5
