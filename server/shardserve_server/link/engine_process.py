"""The engine process, seen from the front: launched, watched, and launched again when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog

from shardserve_proto.errors import EngineLost, EngineStarting, ShardserveError
from shardserve_proto.messages import EngineInfo

from .buffers import BufferPool
from .connection import EngineConnection
from .engine_command import DEATHS_WINDOW_S, Deaths, describe
from .launchers import Launched, Launcher
from .transfer import NO_OPTIONS, CallOptions, EngineReply, EngineState, Upload

STOP_GRACE_S = 5.0
START_PAUSE_S = 1.0
MOST_START_PAUSE_S = 5.0
#: How often a front that is about to leave its engine looks whether it may.
LOOK_AGAIN_S = 0.02


class EngineProcess:
    """Keeps one engine running and hands calls to it. Belongs to one event loop, but not to the only one: any number
    of these may share a pool.

    Arguments:
        launcher: where engines come from.
        pool: the shared buffers.
        start_timeout_s: an engine that is not ready by then is ended, and counts as dead.

    Attributes:
        on_change: called after each change of state.
        on_first_refusal: called with the reason when the first engine cannot start with its settings. Later ones may
            be refused too (a file of declared arrays has changed); the server then stays up and says so.
        may_leave: whether nothing that was accepted may still need the engine, when somebody else wants to stop it.
    """

    def __init__(self, launcher: Launcher, pool: BufferPool, *, start_timeout_s: float = 180.0) -> None:
        self.state: EngineState = "down"
        self.reason = "the engine was not started"
        self.info: EngineInfo | None = None
        self.pid: int | None = None
        self.starts = 0
        self.before_ready: Callable[[EngineConnection], Awaitable[None]] | None = None
        self.on_first_refusal: Callable[[str], None] | None = None
        self.may_leave: Callable[[], bool] | None = None
        self.on_change: Callable[[EngineState], None] | None = None
        self._launcher = launcher
        self._pool = pool
        self._start_timeout_s = start_timeout_s
        self._connection: EngineConnection | None = None
        self._process: Launched | None = None
        self._deaths = Deaths()
        self._last_death = ""
        self._start_timer: asyncio.TimerHandle | None = None
        self._started_at = 0.0
        self._start_s = 5.0  # of the last start that succeeded; a guess until then
        self._is_stopping = False
        self._is_leaving = False
        self._gone = asyncio.Event()
        self._starting: asyncio.Task[None] | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._log = structlog.get_logger("shardserve.engine")

    async def start(self) -> None:
        """Start the engine; it is ready later. One that cannot be started now is tried again."""
        self._starting = asyncio.get_running_loop().create_task(self._start_patiently())
        await asyncio.sleep(0)  # a child is started at once

    async def _launch(self) -> None:
        loop = asyncio.get_running_loop()
        self._gone.clear()
        self._started_at = time.monotonic()
        if self.state != "starting":
            self._enter("starting", "the engine is loading")
        process = await self._launcher.launch(is_restart=self.starts > 0)
        self.starts += 1
        self._enter("starting", "the engine is loading")
        connection = EngineConnection(
            self._pool,
            descriptors=process.descriptors,
            on_hello=lambda info: self._on_hello(info, connection),
            on_refused=self._on_refused,
            on_end=lambda: self._on_link_end(connection),
        )
        self._process, self._connection, self.pid = process, connection, process.pid
        threading.Thread(
            target=_wait, args=(process, loop, self._on_stopping, self._on_death), name="engine-wait", daemon=True
        ).start()
        self._start_timer = loop.call_later(self._start_timeout_s, self.kill)
        await connection.open(process.messages)

    async def stop(self) -> None:
        """End the process: the closed link asks it to, and SIGKILL follows when it does not listen."""
        self._is_stopping = True
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        if self._process is None or self._connection is None:
            return
        self._enter("down", "the server is stopping")
        self._connection.fail_calls(EngineLost("the server is stopping"))
        self._connection.close()
        if not await self._is_gone_within(STOP_GRACE_S):
            self.kill()
            if not await self._is_gone_within(STOP_GRACE_S):
                self._log.error("engine does not end", pid=self.pid)

    async def _is_gone_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._gone.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def call(self, header: bytes, upload: Upload, options: CallOptions = NO_OPTIONS) -> EngineReply:
        """Run a call on the engine.

        Arguments:
            header: the bytes of a `CallRequest`.
            upload: its segments; the caller's hold on their lease stays the caller's to release.

        Raises:
            EngineStarting: it is not ready yet.
            EngineLost: it is down, or died during the call.
            DeadlineExceeded: the deadline passed first.
            ShardserveError: what the engine answered.
        """
        return await self._ready_connection().call(header, upload, options)

    def delete(self, owner: str, ids: Sequence[bytes], *, undo: bool = False) -> None:
        """Have the engine forget resident arrays; one that is gone has forgotten them already."""
        if self._connection is not None:
            self._connection.delete(owner, ids, undo=undo)

    def drop_queued(self) -> None:
        """Have the engine refuse the calls that it has not launched yet."""
        if self._connection is not None:
            self._connection.drop_queued()

    def give_up(self) -> None:
        """Fail the calls that still run: the server ends before they do."""
        if self._connection is not None:
            self._connection.fail_calls(EngineLost("the server stops before the call is done; it is not repeated"))

    async def memory(self) -> dict[str, Any]:
        """What the engine's ledger of device memory says.

        Raises:
            EngineStarting, EngineLost: it is not ready.
        """
        return await self._ready_connection().memory()

    def check_ready(self) -> EngineInfo:
        """What the engine tells of itself, if it takes new calls.

        Raises:
            EngineStarting, EngineLost: it does not, and why.
        """
        if self._is_leaving:
            raise self._starting_error()
        return self.check_usable()

    def check_usable(self) -> EngineInfo:
        """The same for a call that was accepted already: an engine that is about to stop still runs it.

        Raises:
            EngineStarting, EngineLost: it cannot, and why.
        """
        self._ready_connection()
        assert self.info is not None  # noqa: S101 - a ready engine has said hello
        return self.info

    def _starting_error(self) -> EngineStarting:
        return EngineStarting(f"{self.reason}; ask again", retry_after_s=self._retry_after_s())

    def _ready_connection(self) -> EngineConnection:
        if self.state == "starting" and not self._is_leaving:
            raise self._starting_error()
        if self.state == "down" or self._connection is None:
            raise EngineLost(self.reason, retry_after_s=DEATHS_WINDOW_S)
        return self._connection

    def _retry_after_s(self) -> float:
        return max(1.0, math.ceil(self._started_at + self._start_s - time.monotonic()))

    def _enter(self, state: EngineState, reason: str) -> None:
        self.state, self.reason = state, reason
        if self.on_change is not None:
            self.on_change(state)

    def _on_hello(self, info: EngineInfo, connection: EngineConnection) -> None:
        self._disarm()
        self.info = info
        if self.before_ready is None:
            self._on_ready(info)
            return
        self._enter("starting", "the engine is loaded and takes its arrays back")
        self._preparing = asyncio.get_running_loop().create_task(self._prepare(info, connection, self.before_ready))

    async def _prepare(
        self,
        info: EngineInfo,
        connection: EngineConnection,
        before_ready: Callable[[EngineConnection], Awaitable[None]],
    ) -> None:
        try:
            await before_ready(connection)
        except EngineLost:
            return  # it died meanwhile, and starts again
        except Exception as error:
            self._log.error("engine could not be prepared", exc_info=error)
            self.kill()
            return
        if connection is self._connection and self.state == "starting":
            self._on_ready(info)

    def _on_ready(self, info: EngineInfo) -> None:
        self._start_s = time.monotonic() - self._started_at
        self._enter("ready", "")
        self._log.info("engine ready", pid=self.pid, start_s=round(self._start_s, 3), devices=len(info.devices))

    def _on_refused(self, error: ShardserveError) -> None:
        if self.starts > 1 or not self._launcher.is_own:
            return  # they were good once, or are somebody else's: what they refer to may change (back)
        self._is_stopping = True  # the same settings would be refused again
        self._enter("down", f"the engine cannot start with these settings: {error.message}")
        if self.on_first_refusal is not None:
            self.on_first_refusal(error.message)

    def _on_link_end(self, connection: EngineConnection) -> None:
        """The engine's end of the link is closed: whoever waits learns it now, before waitpid has the verdict."""
        if connection is self._connection and not self._is_stopping:
            self._lose(connection)
            if not self._is_leaving:
                self.kill()  # a process that lives on without its link is of no use

    def _on_stopping(self, process: Launched) -> None:
        """Somebody stops the engine, which is not this front's own: finish with it, and wait for the next."""
        connection = self._connection
        if process is not self._process or connection is None or self._is_stopping:
            return
        if self.state != "ready":  # nobody uses it yet
            connection.close()
            return
        self._is_leaving = True
        self._enter("starting", "the engine is about to stop; the next one is awaited")
        self._leaving = asyncio.get_running_loop().create_task(self._leave(connection))

    async def _leave(self, connection: EngineConnection) -> None:
        while connection.is_busy or not (self.may_leave is None or self.may_leave()):
            await asyncio.sleep(LOOK_AGAIN_S)
        connection.close()

    def _on_death(self, process: Launched, status: int | None) -> None:
        """waitpid, or what stands for it, has spoken: the process holds nothing any more."""
        connection = self._connection
        if process is not self._process or connection is None:
            return
        self._disarm()
        connection.return_buffers()
        self._lose(connection)
        connection.close()
        self._connection, self._process, self.pid = None, None, None
        self._gone.set()
        has_left, self._is_leaving = self._is_leaving, False
        if self._is_stopping:
            return
        if has_left:
            self._log.info("engine left", how=describe(status))
            self._starting = asyncio.get_running_loop().create_task(self._start_patiently())
        else:
            self._log.error("engine died", how=describe(status), starts=self.starts)
            self._restart(status)

    def _lose(self, connection: EngineConnection) -> None:
        """No new call reaches this life of the engine, and those that wait fail."""
        if self.state == "ready" and not self._is_stopping:
            self._started_at = time.monotonic()
            self._enter("starting", "the engine died and is starting again")
        text = "the engine died during the call; it is starting again, but this call is not repeated"
        connection.fail_calls(EngineLost(text, retry_after_s=self._retry_after_s()))

    def _restart(self, status: int | None) -> None:
        reason = self._deaths.add(status)
        if reason is not None and not self._launcher.is_own:
            self._last_death = f"{reason}; "  # who started it gives it up, and may start another
        elif reason is not None:
            self._enter("down", f"{reason}; it stays down until the server is restarted")
            self._log.error("engine stays down", reason=self.reason)
            return
        self._starting = asyncio.get_running_loop().create_task(self._start_patiently())

    async def _start_patiently(self) -> None:
        """Start the next life; a host that has no room for a process now may have it later, and an engine that runs by
        itself may not be there yet."""
        pause_s, told = START_PAUSE_S, ""
        while not self._is_stopping:
            try:
                await self._launch()
                self._last_death = ""
                return
            except OSError as error:
                reason = f"{self._last_death}the engine cannot be started now: {error.strerror or error}"
            self._enter("starting", f"{reason}; the next try is in {pause_s:g} s")
            if reason != told:
                self._log.error("engine not started", reason=reason)
                told = reason
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MOST_START_PAUSE_S)

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()

    def _disarm(self) -> None:
        if self._start_timer is not None:
            self._start_timer.cancel()
            self._start_timer = None


def _wait(
    process: Launched,
    loop: asyncio.AbstractEventLoop,
    on_stopping: Callable[[Launched], None],
    on_death: Callable[[Launched, int | None], None],
) -> None:
    def tell_stopping() -> None:
        loop.call_soon_threadsafe(on_stopping, process)

    with contextlib.suppress(RuntimeError):  # the loop is closed: the front itself is ending
        status = process.wait(tell_stopping)
        loop.call_soon_threadsafe(on_death, process, status)
