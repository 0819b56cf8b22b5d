"""How an engine process is started: by exec, with its settings and its ends of two sockets."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

ENGINE_PROGRAM = ("-m", "shardserve_server.engine.main")
#: Exit status of an engine that cannot start with its settings; the same ones would be refused again.
REFUSED_STATUS = 2
DEATHS_ALLOWED = 3
DEATHS_WINDOW_S = 60.0


def engine_environment(
    environment: Mapping[str, str], *, virtual_devices: int | None = None, jax_platforms: str | None = None
) -> dict[str, str]:
    """The engine's environment: without the server's keys, and for the devices that are asked for.

    Arguments:
        virtual_devices: so many virtual CPU devices.
        jax_platforms: what JAX may look for; None leaves it as it is.
    """
    child = {name: value for name, value in environment.items() if not name.startswith("SHARDSERVE_")}
    if virtual_devices is not None:
        flags = [flag for flag in child.get("XLA_FLAGS", "").split() if "host_platform_device_count" not in flag]
        child["XLA_FLAGS"] = " ".join([*flags, f"--xla_force_host_platform_device_count={virtual_devices}"])
        jax_platforms = "cpu"
    if jax_platforms is not None:
        child["JAX_PLATFORMS"] = jax_platforms
    return child


@dataclass
class EngineCommand:
    """The command of an engine.

    Attributes:
        settings: JSON that the engine reads as its settings.
        environment: the child's whole environment.
        program: arguments of the Python interpreter.
    """

    settings: str
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    program: Sequence[str] = ENGINE_PROGRAM

    def start(self, *, is_restart: bool) -> tuple[subprocess.Popen[bytes], socket.socket, socket.socket]:
        """Start the process; it, and the front's ends of the messages and of the descriptors."""
        (messages, its_messages), (descriptors, its_descriptors) = _socket_pairs()
        with its_messages, its_descriptors:
            try:
                return self.spawn(its_messages, its_descriptors, is_restart=is_restart), messages, descriptors
            except OSError:
                messages.close()
                descriptors.close()
                raise

    def spawn(
        self, messages: socket.socket, descriptors: socket.socket, *, is_restart: bool = False
    ) -> subprocess.Popen[bytes]:
        """Start the process with its ends of both sockets; never a fork of this one, whose threads would not follow.

        It dies with the thread that calls this, which must be one that lives as long as the process is wanted.
        """
        ends = (messages.fileno(), descriptors.fileno())
        settings = json.dumps(json.loads(self.settings) | {"is_restart": is_restart})
        argv = [sys.executable, *self.program, settings, *map(str, ends), str(os.getpid())]
        return subprocess.Popen(  # noqa: S603 - our own interpreter and program
            argv,
            env=dict(self.environment),
            pass_fds=ends,
            stdin=subprocess.DEVNULL,
            stdout=2,  # nothing of the engine belongs on the front's stdout, which scripts read
            process_group=0,  # Ctrl-C is for its parent, which ends the engine in good order
        )


def _socket_pairs() -> tuple[tuple[socket.socket, socket.socket], tuple[socket.socket, socket.socket]]:
    """The sockets of the messages and of the descriptors, each with the front's end first: both, or none."""
    first = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        return first, socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError:
        for end in first:
            end.close()
        raise


class Deaths:
    """Counts deaths of an engine, and says when it dies too often to be started again."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=DEATHS_ALLOWED)

    def add(self, status: int | None) -> str | None:
        """Count one; the sentence that says why there is no next start, or None."""
        now = time.monotonic()
        self._times.append(now)
        if len(self._times) < DEATHS_ALLOWED or now - self._times[0] >= DEATHS_WINDOW_S:
            return None
        return f"the engine died {DEATHS_ALLOWED} times within {DEATHS_WINDOW_S:.0f} s (last: {describe(status)})"


def describe(status: int | None) -> str:
    """A status of waitpid in words; None is one that nobody could tell."""
    if status is None:
        return "how is not known"
    return f"signal {-status}" if status < 0 else f"exit status {status}"
