"""Work on memory that takes the system so long that neither an event loop nor a receiving thread may do it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class Background:
    """Runs jobs one after another in a thread that lives as long as there are any."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.is_stopped = False

    def submit(self, job: Callable[[], object]) -> None:
        """Run a job soon, unless this is stopped before."""
        with self._lock:
            self._jobs.put(job)
            if self._thread is None and not self.is_stopped:
                self._thread = threading.Thread(target=self._run, name="memory", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Begin no more jobs, and wait for the one that runs."""
        self.is_stopped = True
        thread = self._thread
        if thread is not None:
            thread.join()

    def finish(self) -> None:
        """Wait until every job is done."""
        while (thread := self._thread) is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                if self.is_stopped or self._jobs.empty():
                    self._thread = None
                    return
                job = self._jobs.get()
            job()
