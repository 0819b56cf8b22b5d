"""Arrays that nobody holds any more, on their way to be released: noted without a lock or I/O, sent in batches.

`drop` may be called by the garbage collector at any moment, in any thread, while any lock is held. So it appends to a
deque and wakes a thread by a `SimpleQueue`, both of which are safe there.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol

from shardserve_proto.errors import OutOfMemory, QuotaExceeded, ShardserveError

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

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._dropped: deque[tuple[str, int]] = deque()
        self._sender: _Sender | None = None
        self._is_closed = False
        self._starting = threading.Lock()

    def watch(self) -> Releases:
        """An array is about to be made whose last object will be noted here."""
        if self._pid != os.getpid():
            self._begin()  # after a fork: the thread stayed with the parent, and its arrays are the parent's
        if self._sender is None:
            with self._starting:
                if self._sender is None and not self._is_closed:
                    self._sender = self._start()
        return self

    def _start(self) -> _Sender:
        sender = _Sender(self._dropped, self._connect)
        _running.add(sender)
        sender.start()
        weakref.finalize(self, sender.wake.put, False).atexit = False
        return sender

    def drop(self, key: str, nbytes: int, pid: int) -> None:
        """Note an array whose last object goes."""
        if pid == os.getpid() == self._pid:
            self._dropped.append((key, nbytes))
            if self._sender is not None:
                self._sender.wake.put(True)

    def due(self) -> list[str]:
        """Arrays to release before the next call, as they are many or large; none else."""
        dropped = self._dropped
        if not dropped or self._pid != os.getpid():
            return []
        if len(dropped) < MANY and sum(nbytes for _, nbytes in list(dropped)) < LARGE_BYTES:
            return []
        return _drain(dropped)

    def room_after(self, error: ShardserveError) -> list[str]:
        """Arrays to release before a call is tried again: all that were dropped, if it failed for want of room."""
        is_full = isinstance(error, OutOfMemory | QuotaExceeded) and self._pid == os.getpid()
        return _drain(self._dropped) if is_full else []

    def close(self) -> None:
        """Release what was dropped, if the server answers soon, and end the thread."""
        if self._pid != os.getpid():
            return
        self._is_closed = True
        if self._sender is not None:
            _end([self._sender])


class _Sender(threading.Thread):
    """Sends what was dropped. It holds no reference to the client, and ends with it.

    Attributes:
        wake: gets True when something was dropped, False when nothing more will be.
        hurry: no pause any more.
    """

    def __init__(self, dropped: deque[tuple[str, int]], connect: Callable[[], Sends]) -> None:
        super().__init__(name="shardserve-releases", daemon=True)
        self._dropped = dropped
        self._connect = connect
        self.wake: SimpleQueue[bool] = SimpleQueue()
        self.hurry = threading.Event()

    def run(self) -> None:
        transport: Sends | None = None
        goes_on = True
        while goes_on:
            goes_on = self.wake.get() and not self.hurry.wait(PAUSE_S)
            while not self.wake.empty():
                goes_on = self.wake.get() and goes_on
            # Whatever fails, the leases end.
            with contextlib.suppress(Exception):
                while keys := _drain(self._dropped):
                    transport = transport or self._connect()
                    transport.send(release(keys, SEND_TIMEOUT_S), Patience(SEND_TIMEOUT_S))
        _running.discard(self)


def _drain(dropped: deque[tuple[str, int]]) -> list[str]:
    keys: list[str] = []
    with contextlib.suppress(IndexError):
        while len(keys) < MOST_RELEASED:
            keys.append(dropped.popleft()[0])
    return keys


#: Senders outlive their clients by a pause, in which the program may end.
_running: set[_Sender] = set()


@atexit.register
def _end_all() -> None:
    _end([sender for sender in list(_running) if sender.is_alive()])  # after a fork the parent's are not


def _end(senders: list[_Sender]) -> None:
    """Let them send what they have, if the server answers soon."""
    for sender in senders:
        sender.hurry.set()
        sender.wake.put(False)
    until = time.monotonic() + CLOSE_TIMEOUT_S
    for sender in senders:
        sender.join(max(0.0, until - time.monotonic()))
