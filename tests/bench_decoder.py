"""A decoder for benchmarks that counts: deterministic records without a model, and a log of what it was asked."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bastion.errors import UserError
from bastion.records import StepRecord, StepSeconds

WIDTHS = {"ar": 1, "dflash": 2, "ddtree:16": 4, "bastion": 3}
LONGEST_PROMPT = 400


def step(index: int, kind: str, emitted: list[int], nodes: int, seconds: float, root: int = 1) -> StepRecord:
    """A chain that is accepted whole, with further children of the root up to `nodes` that are not."""
    chain = 0 if kind == "prefill" else len(emitted)
    n = 0 if kind == "prefill" else max(nodes, chain)
    depths = np.array([*range(chain), *[1] * (n - chain)], np.int64)
    return StepRecord(
        index=index, kind=kind, emitted=emitted, context=10 + index, root=root,
        token_ids=np.array([root, *emitted[:-1], *range(90_000, 90_000 + n - chain)][:n], np.int64),
        parents=np.array([*range(-1, chain - 1), *[0] * (n - chain)], np.int64), depths=depths, path_log_probs=-0.5 * depths,
        accepted=np.arange(chain, dtype=np.int64), bonus=emitted[-1], surrogate=float(np.exp(-0.5 * depths).sum()) if n else 1.0,
        stop_reason="prefill" if not n else "budget", seconds=StepSeconds(draft=0.25 * seconds, verify=0.75 * seconds),
        top2_gaps=np.full(len(emitted), 0.5, np.float32))


class CountingDecoder:
    """Emits ids that follow from prompt, method width and, above temperature 0, the seed. `before` is called with
    every decode that is not a warm-up and may raise."""

    stop_token_ids = [0]

    def __init__(self, before: Callable[[int], None] = lambda count: None, made_at: str = "2026-01-01T00:00:00+00:00",
                 device: str = "counter", apart: str = "") -> None:
        self.asked: list[tuple[str, str, float, int]] = []   # (last user words, method, temperature, seed)
        self.heard: list[list[dict[str, str]]] = []
        self.before, self.made_at, self.device, self.apart = before, made_at, device, apart
        self.pinned: dict = {}
        self._messages: list[dict[str, str]] = []

    def facts(self):
        return {"pair": "counting", "device": self.device, "dtype": "float32", "attention": "none", "drafter_depth": 3,
                "versions": {"python": "3"}}

    def calibrate(self, methods, say):
        return {"made_at": self.made_at} if "bastion" in methods else {}

    def pin(self, calibration):
        self.pinned = dict(calibration)

    def encode(self, messages):
        text = " ".join(m["content"] for m in messages)
        if len(text) > LONGEST_PROMPT:
            raise UserError("The prompt has more tokens than the model allows; shorten it.")
        self._messages = messages
        return [ord(c) for c in text]

    def decode(self, prompt_ids, method, temperature, max_new_tokens, seed, trace=False, on_read=None):
        warm_up = max_new_tokens == 8 and seed == 0
        if not warm_up:
            self.asked.append((self._messages[-1]["content"], method, temperature, seed))
            self.heard.append(self._messages)
            self.before(len(self.asked))
        first = 1 + sum(prompt_ids) % 1000 + (seed % 97 if temperature else 0)
        ids = [first + k for k in range(max_new_tokens)]
        if method == self.apart:
            ids[2] += 5000
        yield step(0, "prefill", ids[:1], 0, 1.0, prompt_ids[-1])
        wide, done, index = WIDTHS[method], 1, 1
        while done < len(ids):
            taken = ids[done:done + wide]
            yield step(index, "decode", taken, 2 * wide, 0.1 + 0.02 * wide, ids[done - 1])
            done, index = done + len(taken), index + 1

    def text(self, ids):
        return " ".join(map(str, ids))

    def texts(self, ids):
        return [f"<{i}>" for i in ids]
