"""An engine by itself: who gets it, who outlives whom, and how its service ends."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from shardserve_proto.errors import EngineLost, EngineStarting
from shardserve_server.link import engine_service
from shardserve_server.link.engine_command import EngineCommand
from shardserve_server.link.engine_service import SocketInUse, claim, listen

from .harness import ROOT, fake_command, is_alive, order, outcome, run, until
from .services import Service, front, service
from .test_engine_process import MIB, pattern


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engine.sock"


def test_arrays_come_back_as_they_went(path: Path) -> None:
    async def check() -> None:
        async with front(path) as process:
            for sizes in ([], [1], [64 * 2**10], [3 * MIB], [MIB + 1, 0, 7, MIB]):
                arrays = [pattern(size) for size in sizes]
                assert await order(process, "echo", *arrays) == arrays
            await until(lambda: process._pool.usage().leases == 0)

    with service(path):
        run(check())


def test_the_engine_is_loaded_before_its_front_comes_and_again_when_one_has_left(path: Path) -> None:
    async def check() -> None:
        pids = []
        for _ in range(3):
            async with front(path) as process:
                await order(process, "hold", pattern(MIB))
                pids.append(process.pid)
            assert process._pool.usage().leases == 0, "what one front had is over for the next"
        assert len(set(pids)) == 3
        await until(lambda: not any(map(is_alive, pids)))

    with service(path):
        run(check())


def test_a_second_front_waits_until_the_first_has_left(path: Path) -> None:
    async def check() -> None:
        async with AsyncExitStack() as second_leaves:
            async with front(path) as first:
                second = await second_leaves.enter_async_context(front(path, wait=False))
                await until(lambda: "serves another front" in second.reason)
                assert await order(first, "echo", pattern(MIB)) == [pattern(MIB)]
            await until(lambda: second.state == "ready")
            assert await order(second, "echo", pattern(MIB)) == [pattern(MIB)]

    with service(path):
        run(check())


def test_a_dead_engine_fails_its_calls_and_the_next_one_comes(path: Path) -> None:
    async def check() -> None:
        async with front(path) as process:
            await order(process, "hold", pattern(MIB))
            assert isinstance(await outcome(order(process, "crash")), EngineLost)
            await until(lambda: process.state == "ready" and process.starts == 2)
            assert process._pool.usage().leases == 0
            assert await order(process, "echo", pattern(MIB)) == [pattern(MIB)]

    with service(path):
        run(check())


_FRONT = """
import asyncio, sys
from pathlib import Path
from tests.server.link.harness import run
from tests.server.link.services import front
async def stay():
    async with front(Path(sys.argv[1])) as process:
        print(process.pid, flush=True)
        await asyncio.sleep(60)
run(stay())
"""


def test_an_engine_that_ignores_the_end_of_its_front_is_killed(path: Path) -> None:
    with (
        service(path),
        subprocess.Popen(
            [sys.executable, "-c", _FRONT, str(path)], stdout=subprocess.PIPE, cwd=ROOT, text=True
        ) as left,
    ):
        assert left.stdout is not None
        engine = int(next(line for line in left.stdout if line.strip().isdigit()))
        os.kill(engine, signal.SIGSTOP)
        left.kill()
        left.wait()
        started = time.monotonic()
        while is_alive(engine):
            assert time.monotonic() - started < engine_service.KILL_AFTER_S + 2.0
            time.sleep(0.02)


def test_the_engine_dies_with_its_service_and_the_front_takes_the_next(path: Path) -> None:
    async def check() -> None:
        with service(path) as first:
            async with front(path) as process:
                await order(process, "hold", pattern(MIB))
                pid = process.pid
                first.kill()
                first.wait()
                await until(lambda: not is_alive(pid), within_s=5.0)
                await until(lambda: process._pool.usage().leases == 0)
                assert process.state == "starting"
                with service(path):
                    await until(lambda: process.state == "ready")
                    assert await order(process, "echo", pattern(MIB)) == [pattern(MIB)]

    run(check())


def test_sigterm_lets_the_front_finish_and_nobody_in(path: Path) -> None:
    """The front takes nothing new for this engine, and is ready again with the next."""

    async def check(process: Service) -> None:
        async with front(path) as first:
            call = asyncio.create_task(order(first, "sleep", pattern(MIB), s=1.0))
            await asyncio.sleep(0.1)
            process.send_signal(signal.SIGTERM)
            await until(lambda: first.state == "starting")
            with pytest.raises(EngineStarting, match="about to stop"):
                first.check_ready()
            assert await order(first, "echo", pattern(MIB)) == [pattern(MIB)], "it was accepted before"
            async with front(path, wait=False) as second:
                await until(lambda: "about to stop" in second.reason)
            assert process.poll() is None
            assert await call == [pattern(MIB)]
            assert await asyncio.to_thread(process.wait, 5) == 0
            assert not path.exists()
            with service(path):
                await until(lambda: first.state == "ready")
                assert await order(first, "echo", pattern(MIB)) == [pattern(MIB)]

    with service(path) as process:
        run(check(process))


@pytest.mark.parametrize("how", ["the grace is over", "a second signal", "sigint"])
def test_a_front_that_stays_does_not_keep_the_service(path: Path, how: str) -> None:
    async def check(process: Service) -> None:
        async with front(path) as first:
            call = asyncio.create_task(outcome(order(first, "sleep", s=60)))
            await asyncio.sleep(0.1)
            process.send_signal(signal.SIGINT if how == "sigint" else signal.SIGTERM)
            if how == "a second signal":
                await asyncio.sleep(0.2)
                process.send_signal(signal.SIGTERM)
            await until(lambda: process.poll() is not None)
            assert process.returncode == 0
            assert isinstance(await call, EngineLost)
            assert first.state == "starting"

    with service(path, stop_grace_s=0.3 if how == "the grace is over" else 20.0) as process:
        run(check(process))


def test_a_front_whose_engine_still_loads_does_not_keep_the_service(path: Path) -> None:
    async def check(process: Service) -> None:
        async with front(path, wait=False) as first:
            await until(lambda: first.pid is not None)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 5) == 0

    with service(path, start="silence") as process:
        run(check(process))


def test_without_a_front_sigterm_ends_it_at_once(path: Path) -> None:
    with service(path) as process:
        (engine,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0
        assert not is_alive(int(engine))


def test_refused_settings_end_the_service_with_status_2(path: Path) -> None:
    with service(path, start="refuse") as process:
        assert process.wait(10) == 2


def test_an_engine_that_dies_again_and_again_ends_the_service(path: Path) -> None:
    with service(path, start="crash") as process:
        assert process.wait(10) == 1
        assert process.stderr is not None
        assert "died 3 times within 60 s (last: exit status 3)" in process.stderr.read()


def test_a_process_that_cannot_be_watched_is_not_left_behind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without process descriptors, or a process without room for one."""
    spawned: list[subprocess.Popen[bytes]] = []

    def fail(pid: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    def spawn(*_: object, **__: object) -> subprocess.Popen[bytes]:
        spawned.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        return spawned[-1]

    monkeypatch.setattr(os, "pidfd_open", fail)
    monkeypatch.setattr(EngineCommand, "spawn", spawn)
    service = engine_service.EngineService(fake_command(), path, stop_grace_s=1.0, on_listening=lambda: None)
    with pytest.raises(OSError, match="not implemented"):
        service._spawn()
    assert [process.poll() for process in spawned] == [-signal.SIGKILL]


def test_only_owner_and_group_may_connect(path: Path) -> None:
    with listen(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660


def test_what_is_at_the_path_already_is_named(path: Path) -> None:
    path.write_text("a file")
    with pytest.raises(SocketInUse, match="a file of another kind"):
        listen(path)
    assert path.read_text() == "a file"
    path.unlink()
    with claim(path), pytest.raises(SocketInUse, match="another engine listens there"), claim(path):
        pass
    with claim(path):
        listen(path).close()  # the file stays, as a dead service leaves it
        with listen(path) as listener, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
            caller.connect(str(path))
            listener.accept()[0].close()
    with pytest.raises(SocketInUse, match="No such file or directory"), claim(path.parent / "no" / "folder"):
        pass
    with pytest.raises(SocketInUse, match="No such file or directory"):
        listen(path.parent / "no" / "folder")
    with pytest.raises(SocketInUse, match="too long"):
        listen(path.parent / ("x" * 200))


def test_two_services_never_share_a_path(path: Path) -> None:
    """Started at once, over and over: one listens, the other is told so."""
    argv = [sys.executable, "-m", "tests.server.link.fake_service", str(path), "1", "{}"]
    for _ in range(3):
        both = [
            subprocess.Popen(argv, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for _ in range(2)
        ]
        listening = []
        for process in both:
            assert process.stdout is not None
            listening.append(process.stdout.readline() == "listening\n")
        errors = []
        for process in both:
            process.terminate()
            errors.append(process.communicate(timeout=10)[1])
        assert sorted(listening) == [False, True]
        assert "another engine listens there" in errors[listening.index(False)]


def test_deaths_that_a_front_asked_for_do_not_end_the_service(path: Path) -> None:
    async def check() -> None:
        for _ in range(4):
            async with front(path) as process:
                starts = process.starts
                process.kill()
                await until(lambda p=process, n=starts: p.starts > n and p.state == "ready")  # type: ignore[misc]

    with service(path) as running:
        run(check())
        assert running.poll() is None


def test_a_stranger_that_connects_and_leaves_disturbs_nobody(path: Path) -> None:
    async def check() -> None:
        for _ in range(20):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
                stranger.connect(str(path))
        async with front(path) as process:
            assert await order(process, "echo", pattern(MIB)) == [pattern(MIB)]

    with service(path):
        run(check())
