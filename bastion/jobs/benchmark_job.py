"""A benchmark on a device's queue: begun, resumed and stopped from a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bastion.errors import UserError
from bastion.jobs.benchmark import Say, create, run_benchmark
from bastion.jobs.benchmark_decoder import Decoder, PairDecoder
from bastion.jobs.benchmark_request import BenchmarkRequest
from bastion.jobs.benchmark_runs import RunKeeper
from bastion.jobs.job import DECODING, LOADING, Job, JobView, Progress
from bastion.jobs.job_manager import JobManager, manager
from bastion.jobs.runner import load
from bastion.records.benchmark_store import Benchmark, BenchmarkStore
from bastion.records.ids import new_run_id


def make_decoder(pair: Any) -> Decoder:
    """The decoder of a loaded pair."""
    return PairDecoder(pair)


def start_benchmark(request: BenchmarkRequest, again: bool = False, jobs: JobManager | None = None,
                    store: BenchmarkStore | None = None) -> str:
    """Queue a benchmark and return its id, which is the job's. One of the same request that was left
    unfinished goes on, and a finished one is shown again unless `again`. Raises UserError on a bad request."""
    jobs, store = jobs or manager(), store or BenchmarkStore()
    request = request.check()
    found = store.find(request.key)
    if found is not None and found.finished and not again:
        return found.id
    if found is not None and not found.finished:
        return resume_benchmark(found.id, jobs, store)
    bench_id = new_run_id()
    return jobs.start(request, request.pair, lambda job: _work(job, bench_id, request, jobs, store), bench_id)


def resume_benchmark(bench_id: str, jobs: JobManager | None = None, store: BenchmarkStore | None = None) -> str:
    """Queue what is missing of a benchmark. Raises UserError when it is at work elsewhere or is damaged."""
    jobs, store = jobs or manager(), store or BenchmarkStore()
    if (view := jobs.view(bench_id)) is not None and not view.final:
        return bench_id
    benchmark = store.open(bench_id)
    if benchmark.finished:
        return bench_id
    if benchmark.held:
        raise UserError(f"Benchmark {bench_id} is at work in another process: wait for it, or stop it there first.")
    request = BenchmarkRequest.from_json(benchmark.info["request"])
    return jobs.start(request, request.pair, lambda job: _work(job, bench_id, request, jobs, store), bench_id)


def _work(job: Job, bench_id: str, request: BenchmarkRequest, jobs: JobManager, store: BenchmarkStore) -> None:
    job.enter(LOADING, "Reading the prompt sets")
    say = _saying(job)
    if bench_id not in {summary.id for summary in store.list()}:
        create(request, store, bench_id, say)
    pair = load(job, jobs.engine, request.pair)
    decoder = make_decoder(pair)
    job.enter(DECODING, "Starting")
    run_benchmark(bench_id, store, decoder, say, RunKeeper(jobs.store, decoder) if request.keep_runs else None)


def _saying(job: Job) -> Say:
    def say(words: str, share: float | None, left: float | None) -> None:
        job.say(Progress(words, share or 0.0, None if share is None else 1.0, left))

    return say


@dataclass(frozen=True, slots=True)
class ShownBenchmark:
    """A benchmark as a page shows it: what is on disk, and the job that works on it in this process, if any."""

    id: str
    benchmark: Benchmark | None     # None until its prompts are read
    view: JobView | None

    @property
    def live(self) -> bool:
        """At work, here or in another process."""
        if self.view is not None and not self.view.final:
            return True
        return self.benchmark is not None and self.benchmark.held

    @property
    def words(self) -> str:
        """What is going on, in one line."""
        benchmark, view = self.benchmark, self.view
        counted = f"{benchmark.done} of {benchmark.total} decode{'s' * (benchmark.total != 1)}" if benchmark is not None else ""
        if view is not None and not view.final:
            if view.state == "queued":
                return f"Waiting: {view.ahead} ahead of you" if view.ahead else "Waiting for the device"
            left = view.progress.seconds_left
            return ", ".join(filter(None, (view.progress.words, counted, _left(left) if left is not None else "")))
        if benchmark is None:
            return "Not begun"
        if benchmark.held:
            return f"At work in another process: {counted}"
        if benchmark.finished:
            return f"Finished: {counted}"
        return f"Stopped after {counted}; Resume goes on from there"

    @property
    def share(self) -> float | None:
        if self.benchmark is None or not self.benchmark.total:
            return None
        return min(self.benchmark.done / self.benchmark.total, 1.0)


def show_benchmark(bench_id: str, jobs: JobManager | None = None, store: BenchmarkStore | None = None) -> ShownBenchmark:
    """The benchmark with this id. Raises UserError when there is none."""
    view = (jobs or manager()).view(bench_id)
    store = store or BenchmarkStore()
    try:
        benchmark = store.open(bench_id)
    except UserError:
        if view is None:
            raise
        benchmark = None
    return ShownBenchmark(bench_id, benchmark, view)


def _left(seconds: float) -> str:
    """How long it still takes, in the largest unit that is worth saying."""
    if seconds < 90:
        return f"about {max(seconds, 1):.0f} s left"
    if seconds < 5400:
        return f"about {seconds / 60:.0f} min left"
    return f"about {seconds / 3600:.1f} hours left"


__all__ = ["ShownBenchmark", "make_decoder", "resume_benchmark", "show_benchmark", "start_benchmark"]
