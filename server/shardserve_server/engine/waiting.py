"""Calls that wait for running ones to make room: beside the lanes, so that nobody waits behind them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: Whether the caller is done with waiting: it has room now, or gave up.
Retry = Callable[[], bool]
#: Room comes when the last reference to an array goes, anywhere; so it is looked for, not told.
LOOK_AGAIN_S = 0.02


class WaitingRoom:
    """Asks everybody who waits, in the order of their coming, until they are done; its thread lives as long as any."""

    def __init__(self) -> None:
        self._waiting: list[Retry] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def enter(self, retry: Retry) -> None:
        """Ask `retry` again and again until it says that it is done; it must not raise."""
        with self._lock:
            self._waiting.append(retry)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="waiting-room", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(LOOK_AGAIN_S)
            with self._lock:
                waiting = list(self._waiting)
                if not waiting:
                    self._thread = None
                    return
            done = [retry for retry in waiting if retry()]
            with self._lock:
                for retry in done:
                    self._waiting.remove(retry)
