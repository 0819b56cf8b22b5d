"""Runs the app under uvicorn, on a socket that is bound before anything else starts."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI

from ..link.descriptors import raise_descriptor_limit
from ..settings import BadSetting, Settings, StartRefused
from .app import create_app
from .auth import load_keys
from .limits import ConnectionLimits
from .protocol import FrontProtocol
from .telemetry import configure_logging


class FrontServer(uvicorn.Server):
    """uvicorn's server, which tells when it listens."""

    def __init__(self, config: uvicorn.Config, on_listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._on_listening()


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
        name = "host" if error.errno == 99 else "port"
        raise BadSetting(name, f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from None
    return listener


def url_of(listener: socket.socket) -> str:
    """The address to connect to."""
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - shown, not bound
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


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
        "timeout_graceful_shutdown": max(1, round(settings.stop_grace_s)),
        "backlog": 1024,
    }
    return FrontServer(uvicorn.Config(app, **options), on_listening)


def run(settings: Settings, *, announce: Callable[[dict[str, Any]], None], stop_at_eof: bool = False) -> None:
    """Serve until a signal asks to stop.

    Arguments:
        announce: called with the server's address, process id and version, once it listens.
        stop_at_eof: stop when standard input ends, too.

    Raises:
        BadSetting: before anything is started.
        StartRefused: the engine cannot start with these settings.
    """
    configure_logging()
    raise_descriptor_limit()
    ring = load_keys(settings)
    with bind(settings) as listener:
        app = create_app(settings, ring.keys)
        facts = {
            "url": url_of(listener),
            "pid": os.getpid(),
            "version": app.version,
            "needs_key": ring.keys is not None,
            "key_file": str(ring.path) if ring.path else None,
            "made_key": ring.made,
        }
        server = make_server(app, settings, on_listening=lambda: announce(facts))
        # uvicorn raises the signal again when it has stopped, which would make a clean stop look like a crash.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _stopped)
        if stop_at_eof:
            threading.Thread(target=_stop_at_eof, args=(server,), name="stdin", daemon=True).start()
        refused: list[str] = []
        app.state.services.engine.on_first_refusal = lambda reason: _give_up(server, refused, reason)
        server.run(sockets=[listener])
        if refused:
            raise StartRefused(refused[0])


def _give_up(server: FrontServer, refused: list[str], reason: str) -> None:
    refused.append(reason)
    server.should_exit = True


def _stopped(number: int, frame: object) -> None:
    """The signal did its work already."""


def _stop_at_eof(server: FrontServer) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    server.should_exit = True
