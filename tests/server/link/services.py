"""Services of fake engines, and fronts of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from shardserve_server.link.buffers import BufferPool
from shardserve_server.link.engine_process import EngineProcess
from shardserve_server.link.launchers import SocketLauncher

from .harness import ROOT, make_pool, until

Service = subprocess.Popen[str]


@contextmanager
def service(path: Path, *, stop_grace_s: float = 20.0, **settings: Any) -> Iterator[Service]:
    """A service of fake engines, in a process of its own; killed at the end if it lives."""
    argv = [sys.executable, "-m", "tests.server.link.fake_service", str(path), str(stop_grace_s), json.dumps(settings)]
    with subprocess.Popen(argv, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            yield process
        finally:
            process.kill()
            process.communicate()


@asynccontextmanager
async def front(path: Path, pool: BufferPool | None = None, *, wait: bool = True) -> AsyncIterator[EngineProcess]:
    """A front of the service, whose engine is ready."""
    process = EngineProcess(SocketLauncher(path), pool or make_pool())
    await process.start()
    try:
        if wait:
            await until(lambda: process.state == "ready")
        yield process
    finally:
        await process.stop()
