"""Examining a pair as a job: on the device's queue, with words, share, remaining time and a stop."""

from __future__ import annotations

import time
from dataclasses import dataclass

from bastion.errors import UserError
from bastion.jobs.job import EXAMINING, Job, Progress, seconds_left
from bastion.jobs.job_manager import JobManager
from bastion.jobs.request import PairChoice
from bastion.jobs.runner import Engine, load
from bastion.jobs.work import Work

JOB_ID = "doctor"
"""One at a time: a second request joins the one that runs, and a reloaded page finds it again."""


@dataclass(frozen=True, slots=True)
class DoctorRequest:
    """Which pair to examine; the length of the target's answers, and the nodes of the tree that tau is measured with."""

    pair: PairChoice = PairChoice()
    prompts: int = 10
    tokens: int = 48
    nodes: int = 16
    tests: tuple[str, ...] = ()
    """Their names; none for all."""

    def check(self) -> DoctorRequest:
        if min(self.prompts, self.tokens, self.nodes) < 1:
            raise UserError("The doctor needs at least 1 prompt, 1 token and 1 node.")
        return self


def start_doctor(manager: JobManager, request: DoctorRequest) -> str:
    """Queue it behind what the device is doing; its job id. `view(id).info["report"]` is the finished report
    (`bastion.decoding.doctor.report_json`)."""
    request = request.check()
    return manager.start(request, request.pair, doctor_work(manager.engine, request), JOB_ID)


def doctor_work(engine: Engine, request: DoctorRequest) -> Work:
    def work(job: Job) -> None:
        pair = load(job, engine, request.pair)
        job.enter(EXAMINING, "Examining the pair")
        began = time.monotonic()
        job.know({"report": engine.examine(pair, request.prompts, request.tokens, request.nodes, request.tests, lambda words, share: job.say(
            Progress(words, share, 1.0, seconds_left(began, share, 1.0))))})

    return work
