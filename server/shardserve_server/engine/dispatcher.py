"""Launch lanes: programs over several devices go one after another from one thread; those on one device overtake.

Two multi-device programs launched in different orders can deadlock, and on CPU many at once starve the thread pool of
XLA's collectives until it ends the process; so that lane has a bound on what is in flight. One-device programs hold no
collectives.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol


class Launched(Protocol):
    """A launched program.

    Attributes:
        is_small: whether `finish` is quick enough for the lane itself.
    """

    is_small: bool

    def wait(self) -> None:
        """Return when the devices are done; must not raise."""

    def finish(self) -> None:
        """Gather and answer; must not raise."""


#: Launches one program; returns None when there is nothing to wait for. Must not raise.
Job = Callable[[], "Launched | None"]


class Lane:
    """One thread that launches jobs in order.

    Arguments:
        in_flight: how many launched programs may be unfinished. With 1 the lane waits itself, which saves a hop.
        finishers: take the work behind the devices (gathering) off the lane.
    """

    def __init__(self, name: str, *, in_flight: int, finishers: ThreadPoolExecutor) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._in_flight = in_flight
        self._room = threading.Semaphore(in_flight)
        self._finishers = finishers
        self._thread = threading.Thread(target=self._run, name=f"lane-{name}", daemon=True)
        self._thread.start()

    def put(self, job: Job) -> None:
        """Queue a job."""
        self._jobs.put(job)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._room.acquire()
            launched = job()
            del job  # its arguments may hold buffers
            if launched is None:
                self._room.release()
            elif self._in_flight > 1:
                self._finishers.submit(self._complete, launched)
            else:
                self._complete_here(launched)
            del launched

    def _complete_here(self, launched: Launched) -> None:
        launched.wait()
        self._room.release()
        if launched.is_small:
            launched.finish()
        else:
            self._finishers.submit(launched.finish)

    def _complete(self, launched: Launched) -> None:
        launched.wait()
        self._room.release()
        launched.finish()

    def close(self) -> None:
        """Launch what is queued, then stop."""
        self._jobs.put(None)
        self._thread.join()
