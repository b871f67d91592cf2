"""One thread per device: tasks run one at a time, first come first served."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

log = logging.getLogger(__name__)

Task = Callable[[], None]


class DeviceWorker:
    """A daemon thread with a queue. A task must not raise; if it does, the worker logs and goes on."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._waiting: deque[Task] = deque()
        self._running: Task | None = None
        self._closed = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=f"bastion-{device}", daemon=True)
        self._thread.start()

    def put(self, task: Task) -> None:
        with self._wake:
            self._waiting.append(task)
            self._wake.notify()

    def remove(self, task: Task) -> bool:
        """Take a waiting task out of the queue; False when it has started or is not there."""
        with self._wake:
            try:
                self._waiting.remove(task)
            except ValueError:
                return False
            return True

    def ahead(self, task: Task) -> int:
        """Tasks that run before this one, the running one included; 0 when it runs or is not there."""
        with self._wake:
            if task not in self._waiting:
                return 0
            return self._waiting.index(task) + (self._running is not None)

    def waiting(self) -> int:
        with self._wake:
            return len(self._waiting) + (self._running is not None)

    def close(self, timeout: float | None = None) -> None:
        """Drop what waits, let the running task end, and join the thread."""
        with self._wake:
            self._closed = True
            self._waiting.clear()
            self._wake.notify()
        self._thread.join(timeout)

    def _work(self) -> None:
        while True:
            with self._wake:
                while not self._waiting and not self._closed:
                    self._wake.wait()
                if self._closed:
                    return
                self._running = self._waiting.popleft()
            try:
                self._running()
            except BaseException:  # the thread must outlive any task
                log.exception("a task on %s raised", self.device)
            finally:
                with self._wake:
                    self._running = None
