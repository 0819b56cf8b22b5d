"""Pages of fresh memory, made before they are needed: in a thread, without the interpreter's lock.

The first touch of a page costs about as much as the copy that fills it, so an upload into fresh memory runs at half of
the speed. A buffer that stays with a resident array leaves a gap among the spare ones, which is filled from here.
"""

from __future__ import annotations

import ctypes
import queue
import sys
import threading
from collections.abc import Callable

_MADV_POPULATE_WRITE = 23
#: The kernel is asked for so much at a time (0.6 ms): meanwhile nobody can map or unmap memory.
SLICE_BYTES = 2**20


def populate(view: memoryview, *, should_stop: Callable[[], bool] = lambda: False) -> bool:
    """Have the kernel make every page behind a view; whether it did (Linux 5.14 and later)."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    anchor = ctypes.c_char.from_buffer(view)
    start = ctypes.addressof(anchor)
    for offset in range(0, len(view), SLICE_BYTES):
        nbytes = min(SLICE_BYTES, len(view) - offset)
        if should_stop() or libc.madvise(
            ctypes.c_void_p(start + offset), ctypes.c_size_t(nbytes), _MADV_POPULATE_WRITE
        ):
            return False
    return True


class Populator:
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
                self._thread = threading.Thread(target=self._run, name="populate", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Begin no more jobs, and wait for the one that runs."""
        self.is_stopped = True
        thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                if self.is_stopped or self._jobs.empty():
                    self._thread = None
                    return
                job = self._jobs.get()
            job()
