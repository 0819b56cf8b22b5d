"""Whether the front takes calls: it drains before it stops, so that nothing that was accepted is lost."""

from __future__ import annotations

import asyncio
import enum
import time

from starlette.types import ASGIApp, Receive, Scope, Send

from shardserve_proto.errors import Draining, EngineLost, EngineStarting

#: Answered at every stage: the process lives.
LIVE_PATH = "/livez"
#: Asking whether the server is ready is no use of it.
READY_PATH = "/readyz"
#: By then another server, or the next one here, may take the call.
RETRY_AFTER_S = 1.0


class Stage(enum.IntEnum):
    """How far a front is on its way out."""

    SERVING = 0
    DRAINING = 1  # nothing new is accepted; what was accepted goes on
    HURRYING = 2  # what has not begun to run is given up


class Stopping:
    """The stage of one front, and what it has accepted.

    Attributes:
        active: requests that were accepted and are not answered yet.
        given_up: accepted requests that will not be answered as they should have been.
    """

    def __init__(self) -> None:
        self.stage = Stage.SERVING
        self.active = 0
        self.given_up = 0
        self._used_at = time.monotonic()

    def check(self) -> None:
        """Refuse what is new once the front is about to stop.

        Raises:
            Draining: it is.
        """
        if self.stage > Stage.SERVING:
            raise Draining("the server is about to stop and takes no more calls", retry_after_s=RETRY_AFTER_S)

    def enter(self, stage: Stage) -> None:
        """Go on to a stage; there is no way back."""
        self.stage = max(self.stage, stage)

    def touch(self) -> None:
        """The server is in use."""
        self._used_at = time.monotonic()

    @property
    def idle_s(self) -> float:
        """Seconds since the last request ended; 0 while one is active."""
        return 0.0 if self.active else time.monotonic() - self._used_at


class Door:
    """Counts the requests that are accepted, and accepts none once the front is about to stop; plain ASGI."""

    def __init__(self, app: ASGIApp, stopping: Stopping) -> None:
        self.app = app
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == LIVE_PATH:
            await self.app(scope, receive, send)
            return
        stopping = self._stopping
        stopping.check()
        if scope["path"] == READY_PATH:
            await self.app(scope, receive, send)
            return
        stopping.active += 1
        try:
            await self.app(scope, receive, send)
        except (Draining, EngineLost, EngineStarting, asyncio.CancelledError):
            stopping.given_up += stopping.stage > Stage.SERVING
            raise
        finally:
            stopping.active -= 1
            stopping.touch()
