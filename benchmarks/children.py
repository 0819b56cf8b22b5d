"""Child processes of a run: JAX on its own, and the bare echo."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LocalJax:
    """JAX in its own process, which answers orders."""

    process: subprocess.Popen[str]

    def run(self, what: str, calls: int, *, batch: int = 0) -> tuple[list[float], list[float]]:
        """The seconds of each call, and the fingerprint of the result."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": what, "calls": calls, "batch": batch}) + "\n")
        self.process.stdin.flush()
        answer = self.answer()
        return answer["seconds"], answer["fingerprint"]

    def answer(self) -> dict[str, Any]:
        """The next line of the process."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the JAX process ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def local_jax() -> Iterator[LocalJax]:
    """Start JAX with eight virtual devices, and end it with the block."""
    command = [sys.executable, "-m", "benchmarks.local_jax"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        child = LocalJax(process)
        try:
            child.answer()
            yield child
        finally:
            process.kill()


@contextmanager
def bare_echo() -> Iterator[str]:
    """The address of a bare uvicorn that echoes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with subprocess.Popen([sys.executable, "-m", "benchmarks.echo", str(port)]) as process:
        try:
            _wait_for(port)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError("the echo did not start")
