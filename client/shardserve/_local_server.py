"""A server of one's own, for notebooks and tests: a child process that ends with this one."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import IO, Any

from shardserve_proto.errors import ConnectFailed

from ._client import Client
from ._config import SERVER_START_S, SERVER_STOP_S

#: What the extra `server` brings.
_NEEDED = ("jax", "fastapi", "uvicorn")
_TAIL = 1500


class LocalServer:
    """A server on this host; the block's value is a `Client` of it.

    Arguments:
        devices: virtual CPU devices to run on; None takes the devices that the host has.
        meshes: named meshes, for example `{"grid": {"x": 4, "y": 2}}`.
        arguments: further arguments of `shardserve serve`.

    Raises:
        ConnectFailed: the server's packages are not installed, or it did not start; with its last words.

    Example:
        with ss.LocalServer(devices=8) as client:
            print(client.dot([1.0, 2.0], [3.0, 4.0]))
    """

    def __init__(
        self,
        devices: int | None = None,
        *,
        meshes: dict[str, dict[str, int]] | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        self._command = _command(devices, meshes or {}, arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._client: Client | None = None

    @property
    def pid(self) -> int | None:
        """Of the server's process, while it runs."""
        return self._process.pid if self._process else None

    def start(self) -> Client:
        """Start the server and wait until it takes calls; one that runs already is left as it is."""
        if self._client is not None and self._process is not None and self._process.poll() is None:
            return self._client
        self.stop()  # what is left of one that ended by itself
        _check_installed()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter, with arguments of the caller's own
            self._command,
            stdin=subprocess.PIPE,  # its end of file tells the child that this process is gone
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=_environment(),
        )
        atexit.register(self.stop)
        try:
            self._client = Client._at(self._first_line()["url"])
            self._client.info()  # waits for an engine that starts
        except BaseException:
            self.stop()
            raise
        return self._client

    def stop(self) -> None:
        """End the server; it is given some seconds for running calls."""
        atexit.unregister(self.stop)
        process, self._process = self._process, None
        client, self._client = self._client, None
        if client is not None:
            client.close()
        if process is not None:
            _end(process)
        if self._errors is not None:
            self._errors.close()

    def __enter__(self) -> Client:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _first_line(self) -> dict[str, Any]:
        """What the child says on its first line: where it listens."""
        lines: list[bytes] = []
        reader = threading.Thread(target=lambda: lines.append(_readline(self._process)), daemon=True)
        reader.start()
        reader.join(SERVER_START_S)
        try:
            said = json.loads(lines[0]) if lines else None
        except ValueError:
            said = None
        if not isinstance(said, dict) or not isinstance(said.get("url"), str):
            raise ConnectFailed(f"the local server did not start; its last words: {self._last_words()}")
        return said

    def _last_words(self) -> str:
        if self._process is not None:
            try:
                self._process.wait(0.5)
            except subprocess.TimeoutExpired:
                return f"none in {SERVER_START_S:g} s"
        assert self._errors is not None  # noqa: S101 - set by start
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace").strip()
        return text[-_TAIL:] or "none"


def _readline(process: subprocess.Popen[bytes] | None) -> bytes:
    if process is None or process.stdout is None:
        return b""
    try:
        return process.stdout.readline(64 * 1024)
    except (OSError, ValueError):  # closed meanwhile
        return b""


def _command(devices: int | None, meshes: dict[str, dict[str, int]], arguments: Sequence[str]) -> list[str]:
    command = [sys.executable, "-m", "shardserve_server", "serve", "--host", "127.0.0.1", "--port", "0", "--json"]
    command += ["--stop-at-eof"]
    if devices is not None:
        command += ["--devices", str(devices)]
    for name, axes in meshes.items():
        command += ["--mesh", f"{name}:" + ",".join(f"{axis}={size}" for axis, size in axes.items())]
    return [*command, *arguments]


def _check_installed() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConnectFailed(
            f"a local server needs the packages of the extra 'server' ({', '.join(missing)} missing): "
            "pip install 'shardserve[server]'"
        )


def _environment() -> dict[str, str]:
    """The environment without the variables that lead this client elsewhere or set up another server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SHARDSERVE_")}


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):  # the child went first
            process.stdin.close()
    process.terminate()
    try:
        process.wait(SERVER_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()  # last: a thread that still reads it holds its lock until the child is gone
