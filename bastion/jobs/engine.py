"""The engine that jobs run on: pairs kept loaded, decoding and calibration. torch is imported at first use."""

from __future__ import annotations

import gc
import platform
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from importlib import metadata
from typing import Any

from bastion.jobs.engine_import import import_engine
from bastion.jobs.job import Progress, seconds_left
from bastion.jobs.pairs import memory_words
from bastion.jobs.request import DecodeRequest, PairChoice
from bastion.latency import ProbeGrid
from bastion.step import StepRecord

KEPT_PAIRS = 2
VERSIONED = ("torch", "transformers", "numpy", "pyarrow")
TITLE_CHARACTERS = 80


class DecodingEngine:
    """Runs `bastion.decode`. Used by one worker thread per device; loading is one at a time for all."""

    def __init__(self) -> None:
        self._pairs: OrderedDict[PairChoice, Any] = OrderedDict()
        self._loading = threading.Lock()

    def device(self, choice: PairChoice) -> str:
        from bastion.models.device import pick_device
        device = pick_device(choice.device)
        return f"{device.type}:0" if device.type == "cuda" and device.index is None else str(device)

    def loaded(self, choice: PairChoice) -> bool:
        return choice in self._pairs

    def load(self, choice: PairChoice) -> Any:
        with self._loading:
            if choice not in self._pairs:
                import_engine()
                from bastion.drafters import load_pair
                self._make_room(0 if memory_words(choice, self.device(choice)) else KEPT_PAIRS - 1)
                self._pairs[choice] = load_pair(choice.preset or choice.target, drafter=choice.drafter, small_lm=choice.small_lm,
                                                device=choice.device, dtype=choice.dtype)
                # Hundreds of thousands of objects that never die: without this every collection
                # of the process walks them, and all open pages wait.
                gc.collect()
                gc.freeze()
            self._pairs.move_to_end(choice)
            return self._pairs[choice]

    def _make_room(self, kept: int) -> None:
        """Let go of the pairs used longest ago until `kept` are left; a large pair is loaded alone."""
        if len(self._pairs) <= kept:
            return
        while len(self._pairs) > kept:
            self._pairs.popitem(last=False)
        gc.unfreeze()   # what was frozen is never looked at, and a model holds itself by cycles
        gc.collect()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            torch.cuda.empty_cache()

    def encode(self, pair: Any, prompt: str) -> list[int]:
        from bastion.decoding.loop import encode_prompt
        return encode_prompt(pair, prompt)

    def texts(self, pair: Any, ids: Iterable[int]) -> list[str]:
        return pair.tokenizer.token_texts(list(ids))

    def text(self, pair: Any, ids: Iterable[int]) -> str:
        return pair.tokenizer.decode(list(ids))

    def info(self, pair: Any, prompt_ids: list[int], request: DecodeRequest) -> dict[str, Any]:
        from bastion.decoding.methods import drafter_depth, is_simulated
        return {
            "title": " ".join(request.prompt.split())[:TITLE_CHARACTERS],
            "prompt": request.prompt, "prompt_ids": prompt_ids, "pair": pair.name, "method": request.method,
            "sampling": {**request.sampling(), "stop_token_ids": sorted(pair.stop_token_ids)},
            "tree": {"min_nodes": request.min_nodes, "max_nodes": request.max_nodes},
            "device": pair.device_name, "dtype": pair.dtype_name, "dtype_why": pair.dtype_why, "attention": pair.attention,
            "drafter_depth": drafter_depth(request.method, pair),
            **({"simulated": True} if is_simulated(request.method) else {}),
            "versions": {"python": platform.python_version(), **{n: metadata.version(n) for n in VERSIONED}},
        }

    def calibration(self, pair: Any, request: DecodeRequest) -> dict[str, Any] | None:
        from bastion.decoding.calibrate import usable_calibration
        needed, found = is_adaptive(resolved(request)), usable_calibration(pair)
        if found is not None:
            return described(found)
        return None if needed else {}

    def calibrate(self, pair: Any, say: Any, quick: bool = True, grid: ProbeGrid | None = None) -> dict[str, Any]:
        from bastion.decoding.calibrate import calibrate
        began = time.monotonic()
        return described(calibrate(pair, quick=quick, grid=grid, progress=lambda words, share: say(
            Progress(f"Calibrating this device. {words}", share, 1.0, seconds_left(began, share, 1.0)))))

    def examine(self, pair: Any, prompts: int, tokens: int, nodes: int, tests: Sequence[str],
                say: Callable[[str, float], None]) -> dict[str, Any]:
        from bastion.decoding.doctor import PROMPTS, checks_named, examine, report_json
        return {**report_json(examine(pair, PROMPTS[:prompts], tokens, nodes, checks_named(tests), say=say)),
                "device": pair.device_name, "dtype": pair.dtype_name}

    def decode(self, pair: Any, prompt_ids: list[int], request: DecodeRequest,
               on_read: Callable[[int], None]) -> Iterator[StepRecord]:
        from bastion.decoding import decode
        return decode(pair, prompt_ids, method=resolved(request), temperature=request.temperature,
                      top_p=request.top_p, top_k=request.top_k, max_new_tokens=request.max_new_tokens,
                      seed=request.seed, trace=True, acceptance=request.acceptance, on_read=on_read)


def resolved(request: DecodeRequest) -> Any:
    """The built method of a request, with its tree bounds where the method has any. Raises UserError."""
    from bastion.decoding.methods import resolve_method
    method = resolve_method(request.method)
    if not is_adaptive(method):
        return method
    return replace(method, min_nodes=request.min_nodes, max_nodes_bound=request.max_nodes)


def is_adaptive(method: Any) -> bool:
    """Whether the method chooses its tree size by the latency model, within bounds."""
    return {"min_nodes", "max_nodes_bound"} <= {f.name for f in fields(method)}


def described(calibration: Any) -> dict[str, Any]:
    """What a run keeps of its calibration: all of it (`Calibration.from_json` reads it), and the largest tree it timed."""
    return {**calibration.to_json(), "max_probed_nodes": calibration.max_probed_nodes}
