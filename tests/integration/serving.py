"""A whole server as a user starts it: a process of its own, on loopback, with eight virtual devices."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardserve_proto.frames import MEDIA_TYPE
from shardserve_proto.programs import Program
from tests.server.front.serving import Answer, eventually, frame, request

STOP_S = 20.0


@dataclass
class RunningServer:
    """A server that listens.

    Attributes:
        url, pid: where, and which process.
        first_line: what it printed first, as JSON.
    """

    url: str
    pid: int
    first_line: dict[str, Any]
    process: subprocess.Popen[str]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def request(
        self, method: str, path: str, *, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        return request(self.port, method, path, body=body, headers=headers)

    def call(self, kernel: str | Program, *arrays: Any, **fields: Any) -> Answer:
        """One call as a frame."""
        body = frame(kernel, *arrays, **fields)
        return self.request("POST", "/v1/call", body=body, headers={"Content-Type": MEDIA_TYPE})

    def json(self, kernel: str, body: Any) -> Answer:
        """One call as JSON."""
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.request("POST", f"/v1/kernels/{kernel}", body=text, headers={"Content-Type": "application/json"})

    def is_ready(self) -> bool:
        return self.request("GET", "/readyz").status == 200

    def wait_ready(self, *, within_s: float = 50.0) -> None:
        eventually(self.is_ready, within_s=within_s)

    @property
    def engine_pid(self) -> int:
        """The engine's process id: the only child of the front."""
        (child,) = children(self.pid)
        return child

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait; the exit status."""
        self.process.send_signal(number)
        return self.process.wait(STOP_S)


def children(pid: int) -> list[int]:
    """The process ids of a process' children."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


@contextmanager
def launch(
    *options: str,
    environment: Mapping[str, str] | None = None,
    devices: int | None = 8,
    wait: bool = True,
    stdin: bool = False,
) -> Iterator[RunningServer]:
    """Start `python -m shardserve_server serve` on a free port; stop it at the end."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("SHARDSERVE_")}
    argv = [sys.executable, "-m", "shardserve_server", "serve", "--port", "0", "--json", *options]
    if devices is not None:
        argv += ["--devices", str(devices)]
    source = subprocess.PIPE if stdin else subprocess.DEVNULL
    variables = own | dict(environment or {})
    with subprocess.Popen(argv, text=True, env=variables, stdin=source, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            line = json.loads(process.stdout.readline() or "null")
            assert line is not None, "the server did not start"
            server = RunningServer(line["url"], line["pid"], line, process)
            if wait:
                server.wait_ready()
            yield server
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
