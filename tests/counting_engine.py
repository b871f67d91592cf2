"""An engine for jobs that counts: deterministic records without a model.

It counts upwards from the sum of the prompt's characters, three tokens a step (one for `ar`), and
can be held at any step, so that every moment of a job can be looked at.
"""

import threading

import numpy as np

from bastion.errors import UserError
from bastion.jobs import PairChoice, Progress
from bastion.records import StepRecord, StepSeconds

STEP_SECONDS = 0.25   # written into the records, not waited for


def record(index: int, kind: str, emitted: list[int], root: int) -> StepRecord:
    chain = [] if kind == "prefill" else [root, *emitted[:-1]]
    n = len(chain)
    return StepRecord(
        index=index, kind=kind, emitted=emitted, context=10 + index, root=root,
        token_ids=np.array(chain, dtype=np.int64), parents=np.arange(n, dtype=np.int64) - 1,
        depths=np.arange(n, dtype=np.int64), path_log_probs=-0.5 * np.arange(n, dtype=np.float64),
        accepted=np.arange(n, dtype=np.int64), bonus=emitted[-1], surrogate=float(np.exp(-0.5 * np.arange(n)).sum()),
        stop_reason="" if kind == "prefill" else "chain", seconds=StepSeconds(verify=STEP_SECONDS),
        top2_gaps=np.ones(len(emitted), dtype=np.float32))


class CountingEngine:
    """`hold(name)` makes the engine wait at a place until `release(name)`; `reached(name)` waits for it there."""

    def __init__(self, needs_calibration: bool = False) -> None:
        self.needs_calibration, self.loads, self.closed = needs_calibration, 0, 0
        self._held: dict[str, threading.Event] = {}
        self._there: dict[str, threading.Event] = {}
        self._pairs: set[PairChoice] = set()

    def hold(self, place: str) -> None:
        self._held[place], self._there[place] = threading.Event(), threading.Event()

    def release(self, place: str) -> None:
        self._held.pop(place).set()

    def reached(self, place: str) -> None:
        assert self._there[place].wait(20), f"the engine never came to {place}"

    def _pass(self, place: str) -> None:
        if place in self._held:
            held = self._held[place]
            self._there[place].set()
            assert held.wait(20), f"nobody let go of {place}"

    def device(self, choice):
        return {"auto": "cpu"}.get(choice.device, choice.device)

    def loaded(self, choice):
        return choice in self._pairs

    def load(self, choice):
        self._pass("load")
        if choice.preset == "missing":
            raise UserError("There is no model called missing; choose another.")
        self.loads += choice not in self._pairs
        self._pairs.add(choice)
        return choice

    def info(self, pair, prompt_ids, request):
        return {"title": request.prompt[:40], "prompt": request.prompt, "prompt_ids": prompt_ids,
                "pair": pair.label, "method": request.method, "device": "cpu", "dtype": "float32",
                "sampling": {**request.sampling(), "stop_token_ids": []}}

    def encode(self, pair, prompt):
        if len(prompt) > 1000:
            raise UserError("The prompt has more tokens than the model allows; shorten it.")
        return [ord(c) for c in prompt]

    def texts(self, pair, ids):
        return [f"<{i}>" for i in ids]

    def text(self, pair, ids):
        return "".join(self.texts(pair, ids))

    def calibration(self, pair, request):
        return None if self.needs_calibration else {}

    def calibrate(self, pair, say):
        for done in range(3):
            say(Progress(f"probe {done + 1} of 3", done, 3, 1.0))
            self._pass(f"probe {done}")
        self.needs_calibration = False
        return {"made_at": "2026-01-01T00:00:00+00:00", "peaks_source": "measured"}

    def decode(self, pair, prompt_ids, request, on_read):
        try:
            for done in range(0, len(prompt_ids), 2):
                self._pass(f"read {done}")
                on_read(done)
            first, wide = sum(prompt_ids), 1 if request.method == "ar" else 3
            yield record(0, "prefill", [first], prompt_ids[-1])
            done, index = 1, 1
            while done < request.max_new_tokens:
                self._pass(f"{request.method} {index}")
                if request.seed == 13 and index == 2:
                    raise RuntimeError("the device fell over")
                take = min(wide, request.max_new_tokens - done)
                yield record(index, "decode", [first + done + k for k in range(take)], first + done - 1)
                done, index = done + take, index + 1
        finally:
            self.closed += 1

    def release_all(self) -> None:
        for place in list(self._held):
            self.release(place)
