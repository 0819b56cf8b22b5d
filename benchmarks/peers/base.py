"""What every peer has in common: the protocol that measurements speak to it, and its server's process."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy.typing as npt

Array = npt.NDArray[Any]

START_LIMIT_S = 60.0
STOP_LIMIT_S = 8.0
VARIABLE = "BENCHMARK_ANNOUNCE"


class Peer(Protocol):
    """One thing that is measured. A method that it has no way to offer raises `CannotDo`."""

    #: What only some can do: operation -> maker of the call, by the order that asks for it.
    extras: Mapping[str, Callable[..., Any]]

    def start(self) -> None:
        """Start the server, and reach it."""

    def stop(self) -> None:
        """Leave, and end the server."""

    def put(self, array: Array) -> Any:
        """Move an array to the server, until calls can use it; its handle."""

    def get(self, handle: Any, out: Array | None) -> Array:
        """Fetch an array; into `out` where the peer can fill a caller's memory."""

    def drop(self, handle: Any) -> None:
        """Let the server forget an array."""

    def dot(self, x: Array, y: Array) -> Array:
        """The dot of two vectors, or the dots over the first dimension of (3, N) pairs; there and back."""

    def server_pid(self) -> int | None:
        """The root of the server's processes, where there is a server."""


class CannotDo(Exception):
    """The peer has no such thing; the message says so in the table."""


class Plain:
    """A peer that can do nothing yet, in this process."""

    extras: Mapping[str, Callable[..., Any]] = {}

    def start(self) -> None:
        return

    def stop(self) -> None:
        return

    def put(self, array: Array) -> Any:
        raise CannotDo("it keeps no arrays")

    def get(self, handle: Any, out: Array | None) -> Array:
        raise CannotDo("it keeps no arrays")

    def drop(self, handle: Any) -> None:
        """Most let an array go with its last reference."""

    def dot(self, x: Array, y: Array) -> Array:
        raise CannotDo("it computes nothing")

    def server_pid(self) -> int | None:
        return None


class ServerProcess:
    """A server's own script, in the environment of this process; in a session of its own, so that all of it can end."""

    def __init__(self, module: str, *arguments: str, variables: Mapping[str, str] | None = None) -> None:
        self._ready, announcing = os.pipe()  # not standard output: libraries print there
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,  # its end tells the server that this process is gone
            stdout=sys.stderr,
            env={**os.environ, **(variables or {}), VARIABLE: str(announcing)},
            pass_fds=(announcing,),
            start_new_session=True,
        )
        os.close(announcing)

    @property
    def pid(self) -> int:
        return self._process.pid

    def announced(self) -> dict[str, Any]:
        """What the server says once it is ready.

        Raises:
            RuntimeError: it ended, or said nothing.
        """
        readable, _, _ = select.select([self._ready], [], [], START_LIMIT_S)
        if not readable:
            raise RuntimeError(f"its server was not ready in {START_LIMIT_S:g} s")
        text = os.read(self._ready, 4096)  # short enough to come in one piece
        os.close(self._ready)
        if not text:
            raise RuntimeError("its server ended")
        said: dict[str, Any] = json.loads(text)
        return said

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_LIMIT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # the group is the server's own
        self._process.wait()


def announce(**said: Any) -> None:
    """Say that this server is ready, and where."""
    announcing = int(os.environ[VARIABLE])
    os.write(announcing, json.dumps(said).encode())
    os.close(announcing)


def end_with_parent(leave: Callable[[], None] = lambda: None) -> threading.Thread:
    """End this server when the process that started it closes its end, or is gone."""

    def watch() -> None:
        sys.stdin.buffer.read()
        try:
            leave()
        finally:
            os._exit(0)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    return watcher
