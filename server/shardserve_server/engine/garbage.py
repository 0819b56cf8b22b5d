"""Host memory that JAX's arrays shared: JAX lets go of it only when Python next collects garbage.

XLA may give an argument back a moment after the results are ready, and an engine that has nothing to do collects
nothing. So whoever drops a large array has the youngest generation collected at once, and some times more soon after;
once all is quiet, the older ones too, for what had to be waited for.
"""

from __future__ import annotations

import gc
import threading
import time

#: Arguments up to this size ride in the front's message, so no shared buffer waits for them.
SMALL_BYTES = 64 * 1024
EVERY_S = 0.1
FOR_S = 3.0


def keep_loaded() -> None:
    """Pass over what is loaded by now in later collections: a full one then takes 2 µs, not 43 ms (on 2 cores)."""
    gc.collect()
    gc.freeze()


def let_go(nbytes: int) -> None:
    """An array was dropped.

    Arguments:
        nbytes: of the largest one that was; small ones share no buffer of the front.
    """
    if nbytes > SMALL_BYTES:
        gc.collect(0)
        _later.begin()


class _Later:
    """Collects again and again for a while, in a thread that lives as long."""

    def __init__(self) -> None:
        self._until = 0.0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        with self._lock:
            self._until = time.monotonic() + FOR_S
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="garbage", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(EVERY_S)
            gc.collect(0)
            with self._lock:
                if time.monotonic() > self._until:
                    self._thread = None
                    break
        gc.collect()


_later = _Later()
