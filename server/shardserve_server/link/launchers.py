"""Where a front's engines come from: a child of its own, or one that runs by itself behind a unix socket.

Either way a launched engine is a process, the front's ends of two sockets, and a way to learn that the process is
dead: only then may the buffers that it has mapped serve somebody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from .engine_command import EngineCommand
from .messages import LINK_VERSION

#: Of the records between a front and an engine that runs by itself; its service answers at once, or is stuck.
MOST_RECORD_BYTES = 4096
ANSWER_WAIT_S = 10.0
#: The service reaps a dead engine within milliseconds, if it lives.
STATUS_WAIT_S = 2.0


@dataclass(frozen=True)
class Launched:
    """An engine process that was started.

    Attributes:
        pid: as the one who started it sees it.
        messages, descriptors: the front's ends of the link.
        wait: blocks until the process is dead; its status, None when that cannot be told. It is given what to call when
            the engine is about to stop, and waits for its front to leave.
        kill: ends it with SIGKILL.
    """

    pid: int
    messages: socket.socket
    descriptors: socket.socket
    wait: Callable[[Callable[[], None]], int | None]
    kill: Callable[[], None]


class Launcher(Protocol):
    """Starts engines for one front.

    Attributes:
        is_own: the engine is the front's child: what its settings are, and how often it may die, is the front's affair.
    """

    is_own: bool

    async def launch(self, *, is_restart: bool) -> Launched:
        """Start an engine.

        Raises:
            OSError: there is none now; `strerror` says why.
        """


class ChildLauncher:
    """Starts engines as children of this process, which die with it."""

    is_own = True

    def __init__(self, command: EngineCommand) -> None:
        self._command = command

    async def launch(self, *, is_restart: bool) -> Launched:
        process, messages, descriptors = self._command.start(is_restart=is_restart)
        return Launched(process.pid, messages, descriptors, lambda _: process.wait(), process.kill)


class SocketLauncher:
    """Takes over an engine from an `EngineService`.

    Arguments:
        path: of the service's socket.
    """

    is_own = False

    def __init__(self, path: Path) -> None:
        self._path = path

    async def launch(self, *, is_restart: bool) -> Launched:  # noqa: ARG002 - the service counts its starts itself
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            control.setblocking(False)
            _connect(control, self._path)
            await _readable(control)
            return _taken_over(control)
        except BaseException:
            control.close()
            raise


def _connect(control: socket.socket, path: Path) -> None:
    try:
        control.connect(str(path))
    except OSError as error:
        raise OSError(error.errno, f"nobody answers at its socket: {error.strerror or error}") from None


async def _readable(end: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(end, _settle, readable)
    try:
        await asyncio.wait_for(readable, ANSWER_WAIT_S)
    except TimeoutError:
        raise OSError(0, "it does not answer") from None
    finally:
        loop.remove_reader(end)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _taken_over(control: socket.socket) -> Launched:
    record, descriptors, _, _ = socket.recv_fds(control, MOST_RECORD_BYTES, 3)
    with contextlib.ExitStack() as unused:
        for descriptor in descriptors:
            unused.callback(os.close, descriptor)
        pid = _check_record(record, descriptors)
        messages, link = (socket.socket(fileno=os.dup(descriptor)) for descriptor in descriptors[:2])
        life = _Life(control, os.dup(descriptors[2]))
        return Launched(pid, messages, link, life.wait, life.kill)


def _check_record(record: bytes, descriptors: Sequence[int]) -> int:
    """The process id of the engine that a record hands over.

    Raises:
        OSError: it hands over none, or is not of a service that this front can speak to.
    """
    if not record:
        raise OSError(0, "its service ended")
    try:
        said = json.loads(record)
        version, busy, pid = said["version"], said.get("busy"), said.get("pid")
    except (ValueError, TypeError, KeyError, AttributeError):
        raise OSError(0, "what answers at its socket is no service of an engine") from None
    if version != LINK_VERSION:
        raise OSError(0, "front and engine are of different versions; update both")
    if busy is not None or not isinstance(pid, int) or len(descriptors) != 3:
        raise OSError(0, str(busy or "its service hands over no engine"))
    return pid


class _Life:
    """The life of an engine that is nobody's child here.

    Arguments:
        control: the connection to its service; the service takes the end of it as the end of the front.
        pidfd: becomes readable when the process is dead, in whatever namespaces and of whatever user it is.
    """

    def __init__(self, control: socket.socket, pidfd: int) -> None:
        self._control = control
        self._pidfd = pidfd

    def wait(self, on_stopping: Callable[[], None]) -> int | None:
        poll = select.poll()
        for descriptor in (self._pidfd, self._control.fileno()):
            poll.register(descriptor, select.POLLIN)
        while self._pidfd not in (ready := [descriptor for descriptor, _ in poll.poll()]):
            said = self._said()
            if said is None:  # the service is gone, and the engine is about to follow
                poll.unregister(ready[0])
            elif said.get("stopping"):
                on_stopping()
        os.close(self._pidfd)
        with self._control:
            self._control.settimeout(STATUS_WAIT_S)
            said = self._said()
            while said is not None and "status" not in said:
                said = self._said()
            return None if said is None else said["status"]

    def _said(self) -> dict[str, Any] | None:
        """The service's next record; None at its end."""
        try:
            said: dict[str, Any] | None = json.loads(self._control.recv(MOST_RECORD_BYTES) or b"null")
        except (OSError, ValueError):
            return None
        return said

    def kill(self) -> None:
        try:
            self._control.send(b'{"kill": true}')
        except OSError:
            return  # the service is gone, and the engine with it
