"""The queue that every page of one server process shares."""

from __future__ import annotations

import threading
from typing import Any

from bastion.errors import UserError
from bastion.jobs.fetching import run_fetch
from bastion.jobs.job import CANCELLED, FINAL, Event, Job, JobView
from bastion.jobs.request import DecodeRequest, PairChoice
from bastion.jobs.runner import Engine, run_decode, run_yardstick
from bastion.jobs.work import Work, run_work
from bastion.jobs.worker import DeviceWorker, Task
from bastion.records.ids import new_run_id

KEPT_JOBS = 200   # finished jobs kept in memory; older ones are read from the store


class JobManager:
    """Accepts jobs, runs them one at a time per device, and answers questions about them from any thread."""

    def __init__(self, engine: Engine | None = None, store: Any = None) -> None:
        if engine is None:
            from bastion.jobs.engine import DecodingEngine
            engine = DecodingEngine()
        if store is None:
            from bastion.records import RunStore
            store = RunStore()
        self.engine, self.store = engine, store
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, tuple[DeviceWorker, Task]] = {}
        self._workers: dict[str, DeviceWorker] = {}
        self._fetch: Job | None = None

    # --- asking ---------------------------------------------------------------------------------

    def submit(self, request: DecodeRequest) -> str:
        """Queue a decode and return its job id, which is the run id. Raises UserError on a bad request."""
        request = request.check()
        device = self.engine.device(request.pair.check())
        job = Job(new_run_id(), request)
        if request.yardstick and request.method != "ar":
            job.measure(state="waiting", words="Plain decoding is measured after this")
        self._enter(job)
        self._put(device, job, lambda: self._decode(device, job))
        return job.id

    def start(self, request: Any, choice: PairChoice, work: Work, job_id: str | None = None) -> str:
        """Queue other work behind the decodes of the same device; its job id. `request` says what was asked
        for (`view(id).request`); `work` reports through its job, results by `job.know`."""
        device = self.engine.device(choice.check())
        job = Job(job_id or new_run_id(), request)
        with self._lock:
            if job_id in self._jobs and self._jobs[job_id].state not in FINAL:
                return job_id
        self._enter(job)
        self._put(device, job, lambda: run_work(job, work))
        return job.id

    def fetch_default(self) -> str:
        """Fetch the default target in the background; the job id of the one that runs, if one does."""
        with self._lock:
            if self._fetch is not None and self._fetch.state not in FINAL:
                return self._fetch.id
            job = self._fetch = Job(new_run_id())
        self._enter(job)
        self._put("download", job, lambda: run_fetch(job))
        return job.id

    def cancel(self, job_id: str) -> None:
        """Stop a job: at once while it waits, else at its next step. Nothing happens to one that is over."""
        job = self._job(job_id)
        if job is None:
            return
        job.ask_to_stop()
        with self._lock:
            worker, task = self._tasks.get(job_id, (None, None))
        waited = worker is not None and worker.remove(task)
        if job.yardstick.state == "waiting" and (waited or job.state not in FINAL):
            job.measure(state="cancelled", words="Plain decoding was not measured: stopped")
        if waited:
            job.end(CANCELLED, "Stopped before it began")

    # --- reading ----------------------------------------------------------------------------------

    def events(self, job_id: str, since: int = 0) -> list[Event]:
        job = self._job(job_id)
        if job is None:
            raise UserError(f"No job {job_id} in this server; open it as a saved run.")
        return job.log.since(since)

    def view(self, job_id: str) -> JobView | None:
        """The job now, or None when this process does not know it (an older run is in the store)."""
        job = self._job(job_id)
        if job is None:
            return None
        with self._lock:
            worker, task = self._tasks.get(job_id, (None, None))
        return job.view(worker.ahead(task) if worker else 0)

    def device(self, job_id: str) -> str | None:
        """The device whose queue the job is or was in, such as "cpu" or "cuda:0"; None for one this process does not know."""
        with self._lock:
            worker, _ = self._tasks.get(job_id, (None, None))
        return worker.device if worker else None

    def waiting(self, device: str | None = None) -> int:
        """Tasks that wait or run, on one device or on all."""
        with self._lock:
            workers = [w for name, w in self._workers.items() if device in (None, name)]
        return sum(worker.waiting() for worker in workers)

    def close(self, timeout: float = 10.0) -> None:
        """Ask everything to stop and join the threads."""
        with self._lock:
            jobs, workers = list(self._jobs.values()), list(self._workers.values())
            self._workers = {}
        for job in jobs:
            job.ask_to_stop()
        for worker in workers:
            worker.close(timeout)

    # --- inside -----------------------------------------------------------------------------------

    def _job(self, job_id: str) -> Job | None:
        with self._lock:
            return self._jobs.get(job_id)

    def _enter(self, job: Job) -> None:
        with self._lock:
            self._jobs[job.id] = job
            over = [k for k, j in self._jobs.items() if j.state in FINAL and not j.view().live]
            for old in over[: max(len(self._jobs) - KEPT_JOBS, 0)]:
                self._jobs.pop(old)
                self._tasks.pop(old, None)

    def _put(self, device: str, job: Job, task: Task) -> None:
        with self._lock:
            worker = self._workers.get(device) or self._workers.setdefault(device, DeviceWorker(device))
            self._tasks[job.id] = worker, task
        worker.put(task)

    def _decode(self, device: str, job: Job) -> None:
        done = run_decode(job, self.engine, self.store)
        if job.yardstick.state != "waiting":
            return
        if done:  # behind whatever others asked for meanwhile
            self._put(device, job, lambda: run_yardstick(job, self.engine, self.store))
        else:
            job.measure(state="cancelled", words="Plain decoding was not measured")


_manager: JobManager | None = None
_manager_lock = threading.Lock()


def manager() -> JobManager:
    """The one manager of this process, made at first use; it outlives page reruns."""
    global _manager
    with _manager_lock:
        if _manager is None:
            _manager = JobManager()
        return _manager


__all__ = ["JobManager", "manager"]
