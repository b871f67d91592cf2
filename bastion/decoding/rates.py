"""How often the drafter's proposal of each rank is the target's token: what Sequoia's programme builds its tree from."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from bastion.errors import UserError
from bastion.home import home
from bastion.models.pair import Pair
from bastion.step import StepRecord

RANKS = 32
TOKENS = 48
PROMPTS = (
    "A train leaves at 9:40 and arrives at 13:05. How long is the journey? Explain step by step.",
    "Write a Python function that counts how often each word occurs in a text.",
    "Name five things that make a long walk in the hills more pleasant, one per line.",
    "Explain in three sentences why the sea is salty.",
    "My bicycle makes a clicking noise when I pedal. What should I check first?",
    "Write the opening paragraph of a story about a lighthouse keeper.",
)


def rates_by_rank(steps: Iterable[StepRecord]) -> np.ndarray:
    """float64 [RANKS]: share of reached positions whose token was the proposal of that rank.

    A position is reached when all drafted tokens before it were accepted; its token is the next
    accepted one or the bonus token. Steps need their trace.
    """
    hits, reached = np.zeros(RANKS), 0
    for step in steps:
        if step.trace is None or step.kind != "decode":
            continue
        tokens = [*step.token_ids[step.accepted[1:]].tolist(), step.bonus]
        for row, token in zip(step.trace.marginal_token_ids, tokens):
            reached += 1
            place = np.flatnonzero(row[:RANKS] == token)
            if len(place):
                hits[place[0]] += 1
    if not reached:
        raise UserError("No drafted position was reached, so there are no acceptance rates: use a pair whose drafter gives marginals.")
    return hits / reached


def find_or_make_rates(pair: Pair, on_notice: Callable[[str], None] | None = None) -> tuple[float, ...]:
    """The drafter's own rates, those measured here before, or measured now and kept."""
    own = getattr(pair.drafter, "acceptance_rates", None)
    if own:
        return own
    file = _file(pair)
    try:
        rates = tuple(float(rate) for rate in json.loads(file.read_text(encoding="utf-8"))["rates"])
        if rates and all(rate >= 0 for rate in rates) and sum(rates) <= 1 + 1e-6:
            return rates
    except (OSError, ValueError, KeyError, TypeError):
        pass  # none yet, or damaged: measured anew
    if on_notice is not None:
        on_notice("Measuring how often each rank of the drafter is accepted, once; it takes under a minute.")
    rates = tuple(measure_rates(pair).tolist())
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(f".{os.getpid()}.tmp")
    beside.write_text(json.dumps({"target": pair.target.name, "drafter": pair.drafter_name, "rates": rates}), encoding="utf-8")
    os.replace(beside, file)
    return rates


def measure_rates(pair: Pair, prompts: Iterable[str | list[int]] = PROMPTS, tokens: int = TOKENS) -> np.ndarray:
    """Greedy decodes of `prompts` (text, or token ids for a pair without a tokenizer); rates float64 [RANKS]."""
    from bastion.decoding.loop import decode

    steps = [step for prompt in prompts for step in decode(pair, prompt, "ddtree:16", max_new_tokens=tokens)]
    return rates_by_rank(steps)


def _file(pair: Pair) -> Path:
    words = "-".join(re.sub(r"[^A-Za-z0-9.]+", "_", Path(part).name) for part in (pair.target.name, pair.drafter_name))
    return home() / "rates" / f"{words[:100]}.json"
