"""Runs the app under uvicorn, on a socket that is bound before anything else starts."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import errno
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import structlog
import uvicorn
from fastapi import FastAPI

from shardserve_proto.errors import Draining
from shardserve_proto.messages import EngineInfo

from ..link.descriptors import raise_descriptor_limit
from ..link.log import configure_logging
from ..link.transfer import EngineLink, EngineState
from ..settings import BadSetting, Settings, StartRefused
from .address import url_at
from .app import create_app
from .auth import load_keys
from .limits import ConnectionLimits
from .protocol import FrontProtocol
from .services import Services
from .stopping import RETRY_AFTER_S, Stage, Stopping

#: What is given up at the end of the grace is told so within this time.
LAST_WORDS_S = 0.5
#: How often a drain looks whether all is done.
LOOK_AGAIN_S = 0.02


class ExitStatus(enum.IntEnum):
    """What the process of a server ends with; 1 is a fault of its own."""

    STOPPED = 0  # as asked, and nothing that was accepted is lost
    BAD_SETTING = 2  # or a refused start; the setting is named
    GAVE_UP = 3  # as asked, but something that was accepted was given up
    IDLE = 4  # nobody asked for anything for `exit_after_idle_s`
    QUIT = 131  # SIGQUIT, or a second Ctrl-C


class FrontServer(uvicorn.Server):
    """uvicorn's server, which tells when it listens, and drains before it stops.

    Arguments:
        stopping: the stage of its app.
        settings: how long a stop may take, and what idleness ends it.
        engine: drops queued calls when the stop is a fast one.
        on_listening: called once it listens.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        stopping: Stopping,
        settings: Settings,
        engine: EngineLink,
        on_listening: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self.is_idle = False
        self._stopping = stopping
        self._settings = settings
        self._engine = engine
        self._on_listening = on_listening
        self._deadline: float | None = None
        self._draining: asyncio.Task[None] | None = None

    @property
    def status(self) -> ExitStatus:
        """What the process should end with."""
        if self._stopping.given_up:
            return ExitStatus.GAVE_UP
        return ExitStatus.IDLE if self.is_idle else ExitStatus.STOPPED

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets=sockets)
        except SystemExit:  # with a status that means something else here
            raise RuntimeError("the server could not start; the log says why") from None
        if self.started:
            self._on_listening()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's own handlers know one way to stop."""
        if threading.current_thread() is threading.main_thread():
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
                loop.add_signal_handler(number, self.signalled, number)
        yield

    def signalled(self, number: int) -> None:
        """SIGTERM drains, a second one and SIGINT hurry, a second SIGINT and SIGQUIT end at once."""
        stage = self._stopping.stage
        if number == signal.SIGQUIT or (number == signal.SIGINT and stage == Stage.HURRYING):
            self._engine.kill()
            os._exit(ExitStatus.QUIT)
        elif number == signal.SIGINT or stage > Stage.SERVING:
            self.hurry()
        else:
            self.drain()

    async def on_tick(self, counter: int) -> bool:
        if self._stopping.stage == Stage.SERVING and self._stopping.idle_s > self._idle_limit_s():
            self.is_idle = True
            self.drain()
        return await super().on_tick(counter)

    def _idle_limit_s(self) -> float:
        limit_s = self._settings.exit_after_idle_s
        if limit_s is None:
            return math.inf
        if self._engine.info is None:  # nobody could use it so far, but that has an end too
            return max(limit_s, self._settings.engine_start_timeout_s)
        return limit_s

    def drain(self) -> None:
        """Accept nothing new, finish what was accepted, and stop."""
        self._begin(Stage.DRAINING)
        self._draining = asyncio.get_running_loop().create_task(self._drain())

    def hurry(self) -> None:
        """Finish what runs, give up what waits, and stop."""
        self._begin(Stage.HURRYING)
        self._engine.drop_queued()
        refusal = Draining("the server stops and waits for no upload", retry_after_s=RETRY_AFTER_S)
        for connection in list(self.server_state.connections):
            if isinstance(connection, FrontProtocol):
                self._stopping.given_up += connection.end_upload(refusal)
        self.should_exit = True

    def _begin(self, stage: Stage) -> None:
        self._stopping.enter(stage)
        if self._deadline is None:
            self._deadline = time.monotonic() + self._settings.stop_grace_s
        structlog.get_logger("shardserve.front").info(
            "stopping", stage=stage.name.lower(), active=self._stopping.active
        )

    async def _drain(self) -> None:
        """Refuse by name for the drain delay, and as long as accepted requests are active; then stop to listen."""
        until = time.monotonic() + self._settings.drain_delay_s
        while self._stopping.stage == Stage.DRAINING and (self._stopping.active or time.monotonic() < until):
            if time.monotonic() > self._stop_by():
                self.hurry()
            await asyncio.sleep(LOOK_AGAIN_S)
        self.should_exit = True

    def _stop_by(self) -> float:
        return time.monotonic() + self._settings.stop_grace_s if self._deadline is None else self._deadline

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close what is idle, wait for the rest up to the end of the grace, and give up what is left."""
        self._stopping.enter(Stage.HURRYING)
        left_s = max(LOOK_AGAIN_S, self._stop_by() - time.monotonic())
        timer = asyncio.get_running_loop().call_later(left_s, self._engine.give_up)
        # uvicorn would answer what it cancels with a bare 500.
        self.config.timeout_graceful_shutdown = left_s + LAST_WORDS_S  # type: ignore[assignment]  # a float is as good
        await super().shutdown(sockets=sockets)
        timer.cancel()
        self._stopping.given_up += sum(self._is_cut(connection) for connection in self.server_state.connections)

    def _is_cut(self, connection: object) -> bool:
        """Whether an answer was complete but for its way out."""
        return isinstance(connection, FrontProtocol) and connection.connection.pending_bytes > 0


def bind(settings: Settings) -> socket.socket:
    """The listening socket.

    Raises:
        BadSetting: the address is not this host's, or the port is in use.
    """
    try:
        infos = socket.getaddrinfo(
            settings.host.strip("[]"), settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError:
        raise BadSetting("host", f"{settings.host!r} is no address of this host") from None
    family, kind, protocol, _, address = infos[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.set_inheritable(False)
    except OSError as error:
        listener.close()
        name = "host" if error.errno == errno.EADDRNOTAVAIL else "port"
        hint = "; `ss -ltnp` names who listens there" if error.errno == errno.EADDRINUSE else ""
        raise BadSetting(name, f"cannot listen on {settings.host}:{settings.port}: {error.strerror}{hint}") from None
    return listener


def make_server(app: FastAPI, settings: Settings, *, on_listening: Callable[[], None] = lambda: None) -> FrontServer:
    """The server of an app."""
    options: dict[str, Any] = {
        "http": partial(FrontProtocol, limits=ConnectionLimits.of(settings)),
        "ws": "none",
        "loop": settings.event_loop,
        "lifespan": "on",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "timeout_keep_alive": settings.keep_alive_s,
        "backlog": 1024,
    }
    services: Services = app.state.services
    return FrontServer(
        uvicorn.Config(app, **options),
        stopping=services.stopping,
        settings=settings,
        engine=services.engine,
        on_listening=on_listening,
    )


def run(
    settings: Settings,
    *,
    announce: Callable[[dict[str, Any]], None],
    announce_ready: Callable[[EngineInfo, float], None] = lambda *_: None,
    stop_at_eof: bool = False,
) -> ExitStatus:
    """Serve until a signal asks to stop, or idleness does.

    Arguments:
        announce: called with the server's address, process id and version, once it listens.
        announce_ready: called with what the engine tells of itself and the seconds it took, once it takes calls.
        stop_at_eof: stop when standard input ends, too.

    Raises:
        BadSetting: before anything is started.
        StartRefused: the engine cannot start with these settings.
    """
    signal.signal(signal.SIGTERM, _stop_early)
    configure_logging()
    raise_descriptor_limit()
    ring = load_keys(settings)
    with bind(settings) as listener:
        app = create_app(settings, ring.keys)
        facts = {
            "url": url_at(*listener.getsockname()[:2]),
            "pid": os.getpid(),
            "version": app.version,
            "needs_key": ring.keys is not None,
            "key_file": str(ring.path) if ring.path else None,
            "made_key": ring.made,
        }
        server = make_server(app, settings, on_listening=lambda: _begin(server, announce, facts, stop_at_eof))
        refused: list[str] = []
        services: Services = app.state.services
        services.engine.on_first_refusal = lambda reason: _give_up(server, refused, reason)
        services.engine.on_change = Watch(services, announce_ready)
        server.run(sockets=[listener])
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one that comes now asks for what is done already
        if refused:
            raise StartRefused(refused[0])
        return server.status


class Watch:
    """Follows the engine's states up to its first readiness, which is announced, and from which idleness counts."""

    def __init__(self, services: Services, announce_ready: Callable[[EngineInfo, float], None]) -> None:
        self._services = services
        self._announce_ready: Callable[[EngineInfo, float], None] | None = announce_ready
        self._started = time.monotonic()

    def __call__(self, state: EngineState) -> None:
        announce, info = self._announce_ready, self._services.engine.info
        if state == "ready" and announce is not None and info is not None:
            self._announce_ready = None
            self._services.stopping.touch()
            announce(info, time.monotonic() - self._started)


def _begin(
    server: FrontServer, announce: Callable[[dict[str, Any]], None], facts: dict[str, Any], stop_at_eof: bool
) -> None:
    announce(facts)
    if stop_at_eof:
        loop = asyncio.get_running_loop()
        threading.Thread(target=_stop_at_eof, args=(server, loop), name="stdin", daemon=True).start()


def _give_up(server: FrontServer, refused: list[str], reason: str) -> None:
    refused.append(reason)
    server.should_exit = True


def _stop_early(number: int, frame: object) -> None:  # noqa: ARG001 - as a handler is called
    sys.exit(ExitStatus.STOPPED)


def _stop_at_eof(server: FrontServer, loop: asyncio.AbstractEventLoop) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    with contextlib.suppress(RuntimeError):  # it has stopped already
        loop.call_soon_threadsafe(server.hurry)
