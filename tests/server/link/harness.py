"""Runs coroutines against an `EngineProcess` whose process is the fake engine."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgpack
import uvloop

from shardserve_proto.frames import PRELUDE_BYTES, lay_out
from shardserve_proto.limits import LIMITS
from shardserve_server.link.buffers import BufferPool
from shardserve_server.link.engine_command import EngineCommand, engine_environment
from shardserve_server.link.engine_process import EngineProcess
from shardserve_server.link.launchers import ChildLauncher
from shardserve_server.link.regions import BufferKind
from shardserve_server.link.transfer import CallOptions, Upload

ROOT = Path(__file__).parents[3]
T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T], *, timeout_s: float = 30.0, loop: str = "uvloop") -> T:
    """Run a coroutine on one of the two event loops, within a time."""
    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(asyncio.wait_for(coroutine, timeout_s))


def make_pool(*, kind: BufferKind = "memfd", limit_bytes: int = 256 * 2**20, spare_bytes: int = 2**26) -> BufferPool:
    return BufferPool(kind=kind, limit_bytes=limit_bytes, spare_bytes=spare_bytes)


def fake_command(**settings: Any) -> EngineCommand:
    environment = engine_environment(os.environ) | {"PYTHONPATH": str(ROOT)}
    return EngineCommand(json.dumps(settings), environment, ("-m", "tests.server.link.fake_engine"))


def fake_process(pool: BufferPool, *, start_timeout_s: float = 30.0, **settings: Any) -> EngineProcess:
    """The front's side of a fake engine, not started yet."""
    return EngineProcess(ChildLauncher(fake_command(**settings)), pool, start_timeout_s=start_timeout_s)


@asynccontextmanager
async def engine_process(pool: BufferPool, **settings: Any) -> AsyncIterator[EngineProcess]:
    """A fake engine that is ready, and gone afterwards."""
    process = fake_process(pool, **settings)
    await process.start()
    try:
        await until(lambda: process.state != "starting")
        yield process
    finally:
        await process.stop()
        assert process.pid is None
        assert pool.usage().leases == 0, "a lease outlived its engine"
        pool.close()


async def until(condition: Callable[[], bool], *, within_s: float = 10.0) -> float:
    """Wait for something to become true; the seconds that it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < within_s, "it did not happen in time"
        await asyncio.sleep(0.005)
    return time.monotonic() - started


async def order(process: EngineProcess, do: str, *arrays: bytes, deadline: float | None = None, **more: Any) -> Any:
    """Have the fake engine do something; the outputs as bytes."""
    upload = prepare(process, arrays)
    try:
        reply = await process.call(msgpack.packb({"do": do, **more}), upload, CallOptions(deadline=deadline))
    finally:
        upload.release()
    try:
        return [bytes(segment) for segment in reply.segments]
    finally:
        reply.release()


def prepare(process: EngineProcess, arrays: tuple[bytes, ...]) -> Upload:
    """The arrays in a payload or in a lease, as a frame would have them."""
    layout = lay_out(0, [len(array) for array in arrays])
    upload = Upload.prepare(
        layout, header_bytes_end=PRELUDE_BYTES, pool=process._pool, inline_bytes=LIMITS.inline_bytes
    )
    for (offset, nbytes), array in zip(upload.segments, arrays, strict=True):
        upload.view[offset : offset + nbytes] = array
    return upload


async def outcome(awaitable: Awaitable[T]) -> T | Exception:
    """The result, or the exception."""
    try:
        return await awaitable
    except Exception as error:
        return error


def is_alive(pid: int | None) -> bool:
    """Whether a process runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second one, if it goes while its file is read
        return False
