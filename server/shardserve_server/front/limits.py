"""What a connection may take, in bytes and in time, and the clock that holds it to that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from ..settings import Settings

#: So much of a refused body is read and dropped, so that the client comes to read the answer.
LINGER_BYTES = 2**20
LINGER_S = 2.0
#: Requests that may wait behind the one that runs, on one connection.
PIPELINED_REQUESTS = 16


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of one connection; the settings of the same names say what they mean."""

    head_bytes: int = 32 * 1024
    head_fields: int = 100
    head_timeout_s: float = 10.0
    body_grace_s: float = 30.0
    body_min_rate: int = 256 * 1024
    send_timeout_s: float = 60.0
    send_min_rate: int = 4 * 1024
    connections: int = 4096

    @classmethod
    def of(cls, settings: Settings) -> ConnectionLimits:
        """The limits that these settings ask for."""
        return cls(**{name: getattr(settings, name) for name in cls.__slots__})

    def body_timeout_s(self, nbytes: int) -> float:
        """Seconds in which a body of this size must be here."""
        return self.body_grace_s + nbytes / self.body_min_rate


class Clock:
    """At most one deadline, which can be moved.

    Arguments:
        expired: called when it passes.
    """

    __slots__ = ("_expired", "_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[], None]) -> None:
        self._loop = loop
        self._expired = expired
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float) -> None:
        """Expire so many seconds from now, and not when it was to expire before."""
        self.stop()
        self._handle = self._loop.call_later(seconds, self._fire)

    def stop(self) -> None:
        """Do not expire."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._expired()
