"""Arrays that nobody holds any more, on their way to be released: noted without a lock or I/O, sent in batches.

`drop` may be called by the garbage collector at any moment, in any thread, while any lock is held. So it appends to a
deque and wakes a thread by a `SimpleQueue`, both of which are safe there.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol

from ._asks import MOST_RELEASED, release
from ._patience import Patience

#: How long dropped arrays wait for others, to be released together.
PAUSE_S = 1.0
#: So many of them, or so many bytes, go before the next call instead.
MANY = 64
LARGE_BYTES = 16 * 2**20
SEND_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 2.0


class Sends(Protocol):
    """A blocking transport."""

    def send(self, exchange: Any, patience: Patience) -> Any: ...


class Releases:
    """Releases the arrays of one client, its copies included.

    Arguments:
        connect: gives the transport to send by; called in the thread that sends.
    """

    def __init__(self, connect: Callable[[], Sends]) -> None:
        self._connect = connect
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._dropped: deque[tuple[str, int]] = deque()
        self._wake: SimpleQueue[bool] = SimpleQueue()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def watch(self) -> Releases:
        """An array is about to be made whose last object will be noted here."""
        if self._pid != os.getpid():
            self._begin()  # after a fork: the thread stayed with the parent, and its arrays are the parent's
        if self._thread is None:
            with self._starting:
                if self._thread is None and not self._stopped.is_set():
                    self._thread = self._start()
        return self

    def _start(self) -> threading.Thread:
        arguments = (self._dropped, self._wake, self._stopped, self._connect)
        thread = threading.Thread(target=_release_dropped, args=arguments, name="shardserve-releases", daemon=True)
        thread.start()
        weakref.finalize(self, self._wake.put, False).atexit = False
        return thread

    def drop(self, key: str, nbytes: int, pid: int) -> None:
        """Note an array whose last object goes."""
        if pid == os.getpid() == self._pid:
            self._dropped.append((key, nbytes))
            self._wake.put(True)

    def due(self) -> list[str]:
        """Arrays to release before the next call, as they are many or large; none else."""
        dropped = self._dropped
        if not dropped or self._pid != os.getpid():
            return []
        if len(dropped) < MANY and sum(nbytes for _, nbytes in list(dropped)) < LARGE_BYTES:
            return []
        return _drain(dropped)

    def take(self) -> list[str]:
        """All that was dropped and not released yet: there is no room for a call."""
        return _drain(self._dropped) if self._pid == os.getpid() else []

    def close(self) -> None:
        """Release what was dropped, if the server answers soon, and end the thread."""
        if self._pid != os.getpid():
            return
        self._stopped.set()
        if self._thread is not None:
            self._wake.put(False)
            self._thread.join(CLOSE_TIMEOUT_S)


def _release_dropped(
    dropped: deque[tuple[str, int]], wake: SimpleQueue[bool], stopped: threading.Event, connect: Callable[[], Sends]
) -> None:
    """The thread; it holds no reference to the client, so it ends with it."""
    transport: Sends | None = None
    goes_on = True
    while goes_on:
        goes_on = wake.get() and not stopped.wait(PAUSE_S)
        while not wake.empty():
            goes_on = wake.get() and goes_on
        # Whatever fails, the leases end.
        with contextlib.suppress(Exception):
            while keys := _drain(dropped):
                transport = transport or connect()
                transport.send(release(keys, SEND_TIMEOUT_S), Patience(SEND_TIMEOUT_S))


def _drain(dropped: deque[tuple[str, int]]) -> list[str]:
    keys: list[str] = []
    with contextlib.suppress(IndexError):
        while len(keys) < MOST_RELEASED:
            keys.append(dropped.popleft()[0])
    return keys


_all: weakref.WeakSet[Releases] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for releases in list(_all):
        releases.close()
