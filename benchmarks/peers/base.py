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
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy.typing as npt

Array = npt.NDArray[Any]

START_LIMIT_S = 60.0
STOP_LIMIT_S = 8.0
MARK = b"benchmark server: "


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
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,  # its end tells the server that this process is gone
            stdout=subprocess.PIPE,
            bufsize=0,  # what has come can be waited for
            env={**os.environ, **(variables or {})},
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def announced(self) -> dict[str, Any]:
        """What the server announces once it is ready; libraries may have printed before.

        Raises:
            RuntimeError: it ended, or said nothing.
        """
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            line = self._line(deadline)
            if line.startswith(MARK):
                said: dict[str, Any] = json.loads(line[len(MARK) :])
                return said

    def _line(self, deadline: float) -> bytes:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        line: bytes = self._process.stdout.readline() if readable else b""
        if not line:
            raise RuntimeError("its server ended" if readable else f"its server was not ready in {START_LIMIT_S:g} s")
        return line

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_LIMIT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # the group is the server's own
        self._process.wait()


def announce(**said: Any) -> None:
    """Say that this server is ready, and where; what libraries print from now on goes to standard error."""
    os.write(1, MARK + json.dumps(said).encode() + b"\n")
    os.dup2(2, 1)


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
