"""What the worker does for one job: load, calibrate, decode step by step into the store, then the yardstick."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from bastion.jobs.job import CALIBRATING, DECODING, DONE, LOADING, Cancelled, Job, Progress, seconds_left
from bastion.jobs.pairs import memory_words
from bastion.jobs.recorded import record
from bastion.jobs.request import DecodeRequest, PairChoice
from bastion.jobs.work import run_work, sentence
from bastion.latency import ProbeGrid
from bastion.records.totals import output_ids, why_finished
from bastion.step import StepRecord
from bastion.token_text import escape_undecodable

log = logging.getLogger(__name__)

Say = Callable[[Progress], None]


class Engine(Protocol):
    """What a runner needs of the model side. `bastion.jobs.engine.DecodingEngine` is the one in use."""

    def device(self, choice: PairChoice) -> str:
        """The device that "auto" or a name stands for, such as "cpu" or "cuda:0". Raises UserError."""

    def load(self, choice: PairChoice) -> Any:
        """The pair; quick when it was loaded before. Raises UserError."""

    def loaded(self, choice: PairChoice) -> bool:
        """The next `load` is quick."""

    def info(self, pair: Any, prompt_ids: list[int], request: DecodeRequest) -> dict[str, Any]:
        """Plain values for run.json: pair, device, dtype, versions, ..."""

    def encode(self, pair: Any, prompt: str) -> list[int]:
        """Prompt ids with the chat template applied. Raises UserError when they do not fit the model."""

    def texts(self, pair: Any, ids: Iterable[int]) -> list[str]:
        """The text of each token id by itself."""

    def text(self, pair: Any, ids: Iterable[int]) -> str:
        """The text of a sequence."""

    def calibration(self, pair: Any, request: DecodeRequest) -> dict[str, Any] | None:
        """What is stored for this pair on this device; empty when the method needs none, None when it is to be made."""

    def examine(self, pair: Any, prompts: int, tokens: int, nodes: int, tests: Sequence[str],
                say: Callable[[str, float], None]) -> dict[str, Any]:
        """What is wrong with the pair, as `bastion.decoding.doctor.report_json` has it. tests: their names; none for all."""

    def calibrate(self, pair: Any, say: Say, quick: bool = True, grid: ProbeGrid | None = None) -> dict[str, Any]:
        """Measure and store it; quick or full, or over a grid of its own."""

    def decode(self, pair: Any, prompt_ids: list[int], request: DecodeRequest,
               on_read: Callable[[int], None]) -> Iterator[StepRecord]:
        """Steps as they are done; `on_read` hears how much of the prompt is read and may raise. Raises UserError."""


def run_decode(job: Job, engine: Engine, store: Any) -> bool:
    """Decode `job.request`; every outcome ends in a final state of the job. True when it is done."""
    return run_work(job, lambda job: _decode(job, engine, store))


def load(job: Job, engine: Engine, choice: PairChoice) -> Any:
    """The pair, loaded unless it is."""
    job.enter(LOADING, f"Preparing {choice.label}" if engine.loaded(choice) else _loading_words(engine, choice))
    return engine.load(choice)


def _loading_words(engine: Engine, choice: PairChoice) -> str:
    """A large pair is announced with the memory it needs."""
    memory = memory_words(choice, engine.device(choice))
    return f"Loading {choice.label}, which {memory}" if memory else f"Loading {choice.label}, a few seconds"


def calibrate_for(job: Job, engine: Engine, pair: Any, request: DecodeRequest) -> dict[str, Any]:
    """The calibration that decoding `request` uses: as stored, made now when it needs one and has none, else empty."""
    calibration = engine.calibration(pair, request)
    if calibration is None:
        job.enter(CALIBRATING, "Calibrating this device, once, under a minute")
        calibration = engine.calibrate(pair, job.say)
    job.calibrated(calibration)
    return calibration


def _decode(job: Job, engine: Engine, store: Any) -> None:
    request: DecodeRequest = job.request
    pair = load(job, engine, request.pair)
    prompt_ids = engine.encode(pair, request.prompt)  # refused before anything is measured
    job.know(engine.info(pair, prompt_ids, request))
    calibrate_for(job, engine, pair, request)

    def text_of(ids: list[int]) -> list[str]:
        texts = engine.texts(pair, ids)
        job.learn({str(token): escape_undecodable(text) for token, text in zip(ids, texts)})
        return texts

    job.enter(DECODING, "Reading the prompt")

    def on_read(done: int) -> None:
        job.say(Progress(f"Reading the prompt, {done} of {len(prompt_ids)} tokens", done, len(prompt_ids)))

    # refuses what cannot be decoded, before a run is begun
    steps = engine.decode(pair, prompt_ids, request, on_read)
    info = {**job.view().info, "calibration": job.view().calibration or None}
    writer = store.create(info, run_id=job.id, text_of=text_of, decode=lambda ids: engine.text(pair, ids))
    began, emitted = time.monotonic(), 0

    def heard(step: StepRecord, pieces: list[str]) -> None:
        nonlocal emitted
        job.step(step, pieces)
        emitted += len(step.emitted)
        job.say(Progress(f"{emitted} of at most {request.max_new_tokens} tokens", emitted,
                         request.max_new_tokens, seconds_left(began, emitted, request.max_new_tokens)))

    record(steps, writer, heard)
    sampling = info.get("sampling", {})
    job.know({"finish_reason": why_finished(output_ids(job.view().steps), sampling.get("stop_token_ids"),
                                            request.max_new_tokens)})
    job.end(DONE, f"{emitted} tokens")


def run_yardstick(job: Job, engine: Engine, store: Any) -> None:
    """Measure plain decoding on the job's prompt, as many tokens as the job emitted, and attach it to the run."""
    target = sum(len(step.emitted) for step in job.view().steps)
    request = replace(job.request, method="ar", max_new_tokens=target)
    try:
        job.stop_here()
        job.measure(state="measuring", words=f"Measuring plain decoding, {target} tokens")
        pair = engine.load(request.pair)
        prompt_ids = engine.encode(pair, request.prompt)
        tokens, seconds = 0, 0.0
        steps = engine.decode(pair, prompt_ids, request, lambda _done: job.stop_here())
        try:
            for step in steps:
                if step.kind == "decode":
                    tokens, seconds = tokens + len(step.emitted), seconds + step.seconds.total
                    job.measure(tokens=tokens, seconds=seconds)
                job.stop_here()
        finally:
            steps.close()
        store.attach_yardstick(job.id, {"method": "ar", "tokens": tokens, "seconds": seconds})
        job.measure(state="measured", words="")
    except Cancelled:
        job.measure(state="cancelled", words="Plain decoding was not measured: stopped")
    except Exception as error:
        log.exception("the yardstick of %s failed", job.id)
        job.measure(state="failed", words=sentence(error))
