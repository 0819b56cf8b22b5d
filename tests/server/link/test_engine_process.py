"""One engine process as the front sees it: calls, buffers, death, restart, the breaker, and who outlives whom."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgpack
import pytest

from shardserve_proto.errors import (
    DeadlineExceeded,
    EngineLost,
    EngineStarting,
    InternalError,
    InvalidRequest,
    OutOfMemory,
    ShapeError,
)
from shardserve_server.link.engine_command import EngineCommand
from shardserve_server.link.messages import Reply
from shardserve_server.link.regions import BufferKind

from .harness import ROOT, engine_process, fake_process, is_alive, make_pool, order, outcome, prepare, run, until
from .test_buffers import KINDS

KIB, MIB = 2**10, 2**20


def pattern(nbytes: int) -> bytes:
    return (bytes(range(251)) * (nbytes // 251 + 1))[:nbytes]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_arrays_of_any_size_come_back_as_they_went(kind: BufferKind, loop: str) -> None:
    async def check() -> None:
        async with engine_process(make_pool(kind=kind)) as process:
            for sizes in (
                [],
                [0],
                [1],
                [64 * KIB],
                [64 * KIB + 1],
                [3 * MIB],
                [1, 0, 63, 64, 65],
                [MIB + 1, 0, 7, MIB],
            ):
                arrays = [pattern(size) for size in sizes]
                assert await order(process, "echo", *arrays) == arrays
            await until(lambda: process._pool.usage().leases == 0)

    run(check(), loop=loop)


def test_small_arrays_take_no_shared_buffer_and_large_ones_are_reused() -> None:
    async def check() -> None:
        async with engine_process(make_pool()) as process:
            await order(process, "echo", pattern(64 * KIB))
            assert process._pool.usage().spare_buffers == 0
            for _ in range(5):
                await order(process, "echo", pattern(MIB))
                await until(lambda: process._pool.usage().leases == 0)
            assert process._pool.usage().spare_buffers <= 2, "one for the upload, one for the result"

    run(check())


def test_many_calls_at_once_do_not_mix() -> None:
    async def check() -> None:
        async with engine_process(make_pool()) as process:
            arrays = [bytes([n]) * (n * 5000) for n in range(60)]
            replies = await asyncio.gather(*(order(process, "echo", array) for array in arrays))
            assert replies == [[array] for array in arrays]

    run(check())


def test_an_upload_is_held_until_the_engine_lets_go_of_its_array() -> None:
    async def check() -> None:
        async with engine_process(make_pool()) as process:
            await order(process, "hold", pattern(MIB))
            await asyncio.sleep(0.2)
            assert process._pool.usage().leases == 1, "a view of the root array is alive in the engine"
            await order(process, "drop")
            await until(lambda: process._pool.usage().leases == 0)

    run(check())


def test_a_result_is_held_until_its_reply_is_released() -> None:
    async def check() -> None:
        async with engine_process(make_pool()) as process:
            upload = prepare(process, ())
            reply = await process.call(msgpack.packb({"do": "zeros", "nbytes": MIB}), upload)
            assert process._pool.usage().leases == 1
            assert reply.segments[0].nbytes == MIB
            assert reply.engine_s > 0
            del upload
            reply.release()
            assert process._pool.usage().leases == 0

    run(check())


@pytest.mark.parametrize("do", ["fail", "refuse"])
def test_an_error_of_the_engine_reaches_the_caller_whole(do: str) -> None:
    async def check() -> None:
        async with engine_process(make_pool()) as process:
            error = await outcome(order(process, do, pattern(MIB), code="shape_error"))
            assert type(error) is (ShapeError if do == "fail" else InvalidRequest)
            await order(process, "echo")
            await until(lambda: process._pool.usage().leases == 0)

    run(check())


def test_a_fault_of_the_engine_is_internal_and_names_nothing() -> None:
    async def check() -> None:
        async with engine_process(make_pool()) as process:
            error = await outcome(order(process, "bug"))
            assert isinstance(error, InternalError)
            assert error.error_id
            assert "secret" not in str(error)

    run(check())


@pytest.mark.parametrize("kind", KINDS)
def test_a_dead_engine_fails_its_calls_at_once_and_comes_back(kind: BufferKind) -> None:
    async def check() -> None:
        async with engine_process(make_pool(kind=kind)) as process:
            await order(process, "hold", pattern(MIB))
            calls = [asyncio.create_task(outcome(order(process, "sleep", pattern(MIB), s=60))) for _ in range(4)]
            await asyncio.sleep(0.1)
            assert process._pool.usage().leases == 5
            first = process.pid
            assert first is not None
            os.kill(first, signal.SIGKILL)
            killed = time.monotonic()
            for error in await asyncio.gather(*calls):
                assert isinstance(error, EngineLost)
                assert error.retry_after_s is not None
                assert error.retry_after_s >= 1
            assert time.monotonic() - killed < 1.0
            await until(lambda: process._pool.usage().leases == 0)
            error = await outcome(order(process, "echo"))
            assert isinstance(error, EngineStarting)
            assert error.retry_after_s
            await until(lambda: process.state == "ready")
            assert process.pid != first
            assert await order(process, "echo", pattern(MIB)) == [pattern(MIB)], "known buffers are new to a new engine"

    run(check())


def test_a_reply_that_is_being_sent_survives_its_engine() -> None:
    async def check() -> None:
        async with engine_process(make_pool()) as process:
            reply = await process.call(msgpack.packb({"do": "echo"}), upload := prepare(process, (pattern(MIB),)))
            upload.release()
            await until(lambda: process._pool.usage().leases == 1)
            os.kill(process.pid or 0, signal.SIGKILL)
            await until(lambda: process.state == "ready" and process.starts == 2)
            assert process._pool.usage().leases == 1, "the front still sends from it"
            assert bytes(reply.segments[0]) == pattern(MIB)
            reply.release()

    run(check())


def test_three_deaths_within_a_minute_and_it_stays_down() -> None:
    async def check() -> None:
        async with engine_process(make_pool(), start="crash") as process:
            await until(lambda: process.state == "down")
            assert process.starts == 3
            assert "died 3 times within 60 s" in process.reason
            assert "exit status 3" in process.reason
            error = await outcome(order(process, "echo"))
            assert isinstance(error, EngineLost)
            assert process.reason in error.message
            await asyncio.sleep(0.3)
            assert process.starts == 3

    run(check())


def test_a_host_that_has_no_room_for_the_next_process_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptors, no memory, no process ids: the reason is told meanwhile, and no socket is left behind."""
    monkeypatch.setattr("shardserve_server.link.engine_process.START_PAUSE_S", 0.05)
    refusals = 3
    spawn = EngineCommand.spawn

    def scarce(command: EngineCommand, *ends: Any, **options: Any) -> subprocess.Popen[bytes]:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return spawn(command, *ends, **options)

    async def check() -> None:
        async with engine_process(make_pool()) as process:
            descriptors = len(os.listdir("/proc/self/fd"))
            monkeypatch.setattr(EngineCommand, "spawn", scarce)
            assert isinstance(await outcome(order(process, "crash")), EngineLost)
            await until(lambda: "Too many open files" in process.reason)
            assert process.state == "starting"
            await until(lambda: process.state == "ready")
            assert refusals == 0
            assert await order(process, "echo") == []
            assert len(os.listdir("/proc/self/fd")) == descriptors

    run(check())


def test_deaths_far_apart_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardserve_server.link.engine_command.DEATHS_WINDOW_S", 0.0)

    async def check() -> None:
        async with engine_process(make_pool()) as process:
            for _ in range(4):
                assert isinstance(await outcome(order(process, "crash")), EngineLost)
                await until(lambda: process.state == "ready")
            assert process.starts == 5

    run(check())


def test_refused_settings_are_not_tried_again() -> None:
    async def check() -> None:
        async with engine_process(make_pool(), start="refuse") as process:
            assert process.state == "down"
            assert "a mesh of 9 devices" in process.reason
            await asyncio.sleep(0.3)
            assert process.starts == 1

    run(check())


@pytest.mark.parametrize("start", ["silence", "garbage"])
def test_an_engine_that_does_not_start_as_it_should_is_ended(start: str) -> None:
    async def check() -> None:
        async with engine_process(make_pool(), start=start, start_timeout_s=0.5) as process:
            await until(lambda: process.state == "down")
            assert process.starts == 3
            assert "signal 9" in process.reason

    run(check())


def test_a_deadline_ends_the_wait_and_the_engine_drops_what_it_has_not_begun() -> None:
    async def check() -> None:
        async with engine_process(make_pool()) as process:
            running = asyncio.create_task(order(process, "sleep", s=1.0))
            await asyncio.sleep(0.05)
            started = time.monotonic()
            error = await outcome(order(process, "crash", pattern(MIB), deadline=started + 0.2))
            assert isinstance(error, DeadlineExceeded)
            assert 0.15 < time.monotonic() - started < 0.6
            await running
            await order(process, "echo")
            assert process.starts == 1, "the call that came too late was never begun"
            await until(lambda: process._pool.usage().leases == 0)

    run(check())


def test_a_cancelled_caller_frees_everything() -> None:
    async def check() -> None:
        async with engine_process(make_pool()) as process:
            call = asyncio.create_task(order(process, "sleep", pattern(MIB), s=0.3))
            await asyncio.sleep(0.05)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await order(process, "echo")
            await until(lambda: process._pool.usage().leases == 0)

    run(check())


def test_a_reply_that_meets_its_callers_cancellation_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with engine_process(make_pool()) as process:
            connection = process._connection
            assert connection is not None
            on_reply = connection._on_reply
            call = asyncio.create_task(order(process, "zeros", nbytes=MIB))

            def on_reply_and_cancel(message: Reply, payload: memoryview) -> None:
                on_reply(message, payload)
                call.cancel()  # the reply is there, but its caller has not woken up yet

            monkeypatch.setattr(connection, "_on_reply", on_reply_and_cancel)
            with pytest.raises(asyncio.CancelledError):
                await call
            assert process._pool.usage().leases == 0

    run(check())


def test_a_result_without_room_is_out_of_memory_and_nothing_else_happens() -> None:
    async def check() -> None:
        async with engine_process(make_pool(limit_bytes=4 * MIB)) as process:
            held = process._pool.lease(2 * MIB)
            error = await outcome(order(process, "zeros", nbytes=3 * MIB))
            assert isinstance(error, OutOfMemory)
            held.release()
            assert await order(process, "zeros", nbytes=3 * MIB) == [bytes(3 * MIB)]

    run(check())


def test_two_engines_share_a_pool_and_the_death_of_one_leaves_the_other_alone() -> None:
    async def check() -> None:
        pool = make_pool()
        async with engine_process(pool) as first:
            second = fake_process(pool)
            await second.start()
            await until(lambda: second.state == "ready")
            await order(first, "hold", pattern(MIB))
            await order(second, "hold", pattern(MIB))
            assert isinstance(await outcome(order(first, "crash")), EngineLost)
            await until(lambda: pool.usage().leases == 1)
            assert await order(second, "echo", pattern(2 * MIB)) == [pattern(2 * MIB)]
            await second.stop()

    run(check())


def test_an_engine_forgets_a_buffer_that_the_pool_gave_back() -> None:
    async def check() -> None:
        async with engine_process(make_pool(limit_bytes=8 * MIB, spare_bytes=0)) as process:
            for n in range(1, 6):
                assert await order(process, "echo", pattern(n * MIB // 2)) == [pattern(n * MIB // 2)]
                await until(lambda: process._pool.usage().leases == 0)
            maps = Path(f"/proc/{process.pid}/maps")
            await until(lambda: "memfd:shardserve" not in maps.read_text())

    run(check())


_PARENT = """
import asyncio, sys, structlog
from tests.server.link.harness import fake_process, make_pool, order, until

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

async def main():
    process = fake_process(make_pool(), dies_with_parent=sys.argv[1] == "prctl")
    await process.start()
    await until(lambda: process.state == "ready")
    print(process.pid, flush=True)
    await order(process, "sleep", s=60)

asyncio.run(main())
"""


@pytest.mark.parametrize("sign", ["prctl", "end of file"])
def test_the_engine_does_not_outlive_its_front(sign: str) -> None:
    """Promise F10, by each of the two signs alone (with "end of file" the fake engine makes no prctl)."""
    with subprocess.Popen([sys.executable, "-c", _PARENT, sign], stdout=subprocess.PIPE, cwd=ROOT, text=True) as front:
        assert front.stdout is not None
        engine = int(front.stdout.readline())
        front.kill()
        front.wait()
        killed = time.monotonic()
        while is_alive(engine):
            assert time.monotonic() - killed < 5.0
            time.sleep(0.02)


def test_a_stop_ends_an_engine_that_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardserve_server.link.engine_process.STOP_GRACE_S", 0.5)

    async def check() -> Any:
        async with engine_process(make_pool(), start="well") as process:
            os.kill(process.pid or 0, signal.SIGSTOP)  # it will not hear the closed link
            call = asyncio.create_task(outcome(order(process, "echo")))
            await asyncio.sleep(0.05)
            await process.stop()
            return await call

    assert isinstance(run(check()), EngineLost)
