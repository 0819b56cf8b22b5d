"""An engine by itself: a process that keeps an engine loaded and hands it to the front that connects to its socket.

The engine has no port: a unix socket is all that it shares with a front, which may be in another container and of
another user. Who may connect is who may open the socket's file.

One engine serves one front, and ends with it, as it would if it were that front's child: nothing of one front is left
for the next. The next engine is loaded at once. A front that connects is sent the ends of the link and a descriptor of
the engine's process, which tells it when the engine is dead; its connection stays open while it has the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from .engine_command import REFUSED_STATUS, Deaths, EngineCommand, describe
from .launchers import MOST_RECORD_BYTES
from .messages import LINK_VERSION

#: The socket's file: its owner and its group may connect.
SOCKET_MODE = 0o660
#: A host that has no room for a process now may have it later.
START_PAUSE_S = 1.0
#: An engine whose front is gone ends by itself; one that does not is ended after this.
KILL_AFTER_S = 3.0
BACKLOG = 8
_CREDENTIALS = struct.Struct("3i")


class SocketInUse(OSError):
    """The path of the socket is taken, or cannot be used."""


@dataclass
class _Engine:
    """The engine that is loaded now.

    Attributes:
        ends: the front's ends of the link, until a front has them.
        control: the connection of the front that has them.
        is_left: its front is gone, or about to go.
    """

    process: subprocess.Popen[bytes]
    pidfd: int
    ends: tuple[socket.socket, socket.socket]
    control: socket.socket | None = None
    is_left: bool = False

    def close_ends(self) -> None:
        for end in self.ends:
            end.close()


class EngineService:
    """Runs until it is asked to stop, or until its engine cannot be started.

    Arguments:
        command: of the engines.
        path: where the socket's file is made.
        stop_grace_s: how long a front may keep its engine when this service is asked to stop.
        on_listening: called once, when fronts can connect.
    """

    def __init__(
        self, command: EngineCommand, path: Path, *, stop_grace_s: float, on_listening: Callable[[], None]
    ) -> None:
        self._command = command
        self._path = path
        self._stop_grace_s = stop_grace_s
        self._on_listening = on_listening
        self._engine: _Engine | None = None
        self._starts = 0
        self._deaths = Deaths()
        self._is_stopping = False
        self._told = ""
        self._log = structlog.get_logger("shardserve.engine")

    def run(self) -> int:
        """Serve fronts, one after another.

        Returns: the exit status: 0 when asked to stop, 2 when the engine refused its settings, 1 when it died too
            often.

        Raises:
            SocketInUse: the socket cannot be made there.
        """
        return asyncio.run(self._serve())

    async def _serve(self) -> int:
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        with claim(self._path), listen(self._path) as listener:
            try:
                self._loop.add_signal_handler(signal.SIGTERM, self._stop)
                self._loop.add_signal_handler(signal.SIGINT, self._stop_now)
                self._loop.add_reader(listener, self._accept, listener)
                self._start()
                self._on_listening()
                return await self._ended
            finally:
                self._loop.remove_reader(listener)
                self._end_engine()
                self._path.unlink(missing_ok=True)

    # ---- the engine

    def _start(self) -> None:
        try:
            self._spawn()
        except OSError as error:
            reason = error.strerror or str(error)
            if reason != self._told:
                self._log.error("engine not started", reason=reason)
                self._told = reason
            self._loop.call_later(START_PAUSE_S, self._start)

    def _spawn(self) -> None:
        process, messages, descriptors = self._command.start(is_restart=self._starts > 0)
        try:
            pidfd = os.pidfd_open(process.pid)
        except OSError:
            messages.close()
            descriptors.close()
            _end(process)
            raise
        self._starts += 1
        self._engine = _Engine(process, pidfd, (messages, descriptors))
        self._loop.add_reader(self._engine.pidfd, self._died, self._engine)

    def _died(self, engine: _Engine) -> None:
        status = engine.process.wait()
        self._loop.remove_reader(engine.pidfd)
        os.close(engine.pidfd)
        engine.close_ends()
        ended_with_front = engine.is_left or (status == 0 and engine.control is not None)
        self._let_front_go(engine, status)
        self._engine = None
        if self._is_stopping:
            self._finish(0)
        elif status == REFUSED_STATUS and self._starts == 1:
            self._finish(REFUSED_STATUS)
        elif ended_with_front:
            self._start()
        else:
            self._start_after_death(status)

    def _start_after_death(self, status: int) -> None:
        self._log.error("engine died", how=describe(status), starts=self._starts)
        reason = self._deaths.add(status)
        if reason is None:
            self._start()
        else:
            self._log.error("engine stays down", reason=reason)
            self._finish(1)

    def _end_engine(self) -> None:
        if self._engine is not None:
            _end(self._engine.process)
            self._engine.close_ends()

    # ---- its front

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it went away again
            control, _ = listener.accept()
            control.setblocking(False)
            try:
                self._hand_over(control)
            except OSError:
                control.close()
                raise

    def _hand_over(self, control: socket.socket) -> None:
        engine = self._engine
        if engine is None or engine.control is not None or self._is_stopping:
            text = "it is about to stop" if self._is_stopping else "it serves another front, or still ends with it"
            with control:
                control.send(json.dumps({"busy": text, "version": LINK_VERSION}).encode())
            return
        record = json.dumps({"version": LINK_VERSION, "pid": engine.process.pid}).encode()
        socket.send_fds(control, [record], [*(end.fileno() for end in engine.ends), engine.pidfd])
        engine.close_ends()
        engine.control = control
        self._log.info("engine handed over", **_peer(control))
        self._loop.add_reader(control, self._hear, engine, control)

    def _hear(self, engine: _Engine, control: socket.socket) -> None:
        """The front wants its engine dead, or is gone itself."""
        try:
            said = control.recv(MOST_RECORD_BYTES)
        except OSError:
            said = b""
        if said:
            engine.is_left = True
            engine.process.kill()
            return
        self._loop.remove_reader(control)
        engine.is_left = True
        self._loop.call_later(KILL_AFTER_S, self._kill_left, engine)

    def _kill_left(self, engine: _Engine) -> None:
        if engine is self._engine:
            engine.process.kill()

    def _let_front_go(self, engine: _Engine, status: int) -> None:
        if engine.control is not None:
            self._loop.remove_reader(engine.control)
            with engine.control as control, contextlib.suppress(OSError):
                control.send(json.dumps({"status": status}).encode())

    # ---- the end

    def _stop(self) -> None:
        """Let the front finish what it has accepted, and leave; a second request is in earnest."""
        if self._is_stopping or self._engine is None or self._engine.control is None:
            self._stop_now()
            return
        self._is_stopping = True
        with contextlib.suppress(OSError):
            self._engine.control.send(b'{"stopping": true}')
        self._loop.call_later(self._stop_grace_s, self._stop_now)

    def _stop_now(self) -> None:
        self._is_stopping = True
        self._finish(0)

    def _finish(self, status: int) -> None:
        if not self._ended.done():
            self._ended.set_result(status)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _peer(control: socket.socket) -> dict[str, int]:
    """Process and user at the other end."""
    pid, uid, gid = _CREDENTIALS.unpack(control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return {"front_pid": pid, "front_uid": uid, "front_gid": gid}


@contextlib.contextmanager
def claim(path: Path) -> Iterator[None]:
    """Be the only service of a path; whatever is there then is of a dead one. A file beside it is the lock.

    Raises:
        SocketInUse: another service lives, or the folder cannot be written to.
    """
    if not sys.platform.startswith("linux"):
        raise SocketInUse("an engine by itself needs Linux; elsewhere it is the child of its front")
    import fcntl

    try:
        lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, SOCKET_MODE)
    except OSError as error:
        raise SocketInUse(f"no socket can be made there: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise SocketInUse("another engine listens there") from None
    finally:
        os.close(lock)


def listen(path: Path) -> socket.socket:
    """A listening socket whose file is at `path`; one that is there is replaced.

    Raises:
        SocketInUse: something else is there, or the folder cannot be written to.
    """
    _clear(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mask = os.umask(0o777 & ~SOCKET_MODE)
    try:
        listener.bind(str(path))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise SocketInUse(f"no socket can be made there: {error.strerror or error}") from None
    finally:
        os.umask(mask)
    return listener


def _clear(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return  # nothing there; or bind tells what is wrong
    if not stat.S_ISSOCK(mode):
        raise SocketInUse("there is a file of another kind")
    path.unlink(missing_ok=True)
