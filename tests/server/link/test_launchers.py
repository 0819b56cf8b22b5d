"""An engine that is taken over from a service: what is at its socket, and when it is dead."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from shardserve_proto.errors import EngineStarting
from shardserve_server.link.engine_service import listen
from shardserve_server.link.messages import LINK_VERSION

from .harness import ROOT, is_alive, make_pool, order, outcome, run, until
from .services import front, service
from .test_engine_process import MIB, pattern


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engine.sock"


def test_a_front_waits_for_an_engine_that_is_not_there_yet(path: Path) -> None:
    async def check() -> None:
        async with front(path, wait=False) as process:
            await until(lambda: "nobody answers at its socket" in process.reason)
            assert isinstance(await outcome(order(process, "echo")), EngineStarting)
            assert str(path.parent) not in process.reason, "no path goes out"
            with service(path):
                await until(lambda: process.state == "ready")
                assert await order(process, "echo", pattern(MIB)) == [pattern(MIB)]

    run(check())


def test_no_buffer_comes_back_before_the_process_is_dead(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link is closed, but the process lives for a second more and has its buffers mapped."""

    async def check() -> None:
        pool = make_pool()
        async with front(path, pool) as process:
            await order(process, "hold", pattern(MIB))
            pid = process.pid
            assert process._connection is not None
            process._connection._channel.close()  # type: ignore[union-attr]
            monitored = []
            while pool.usage().leases:
                monitored.append(is_alive(pid))
                await asyncio.sleep(0.01)
            assert all(monitored[:-2]), "held to the last"
            assert len(monitored) > 50
            assert not is_alive(pid)

    # A front kills an engine whose link has ended; here its order to do so is lost.
    monkeypatch.setattr("shardserve_server.link.launchers._Life.kill", lambda _: None)
    with service(path, lingers_s=1.0):
        run(check())


_OTHER_USER = """
import os, sys
from pathlib import Path
import asyncio.base_events, uvloop  # while this user may still read them
from tests.server.link.harness import order, run, until
from tests.server.link.services import front
from tests.server.link.test_engine_process import MIB, pattern
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(10_002)
async def use():
    async with front(Path(sys.argv[1]), wait=False) as process:
        await until(lambda: process.state == "ready" or "Permission denied" in process.reason)
        if process.state == "ready":
            assert await order(process, "echo", pattern(MIB)) == [pattern(MIB)]
        sys.stdout.write(process.state + " " + process.reason)
run(use())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_gets_the_engine_by_its_group_and_a_stranger_does_not() -> None:
    """Two users who share nothing but the socket: buffers pass between them all the same."""
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, 0, 10_001)
        Path(folder).chmod(0o2750)  # as the volume of two containers: the file takes the folder's group
        path = Path(folder, "engine.sock")
        with service(path):
            said = [
                subprocess.run(
                    [sys.executable, "-c", _OTHER_USER, str(path), group],
                    capture_output=True, text=True, cwd=ROOT, check=False,
                )
                for group in ("10001", "10003")
            ]  # fmt: skip
    assert [done.returncode for done in said] == [0, 0], said[0].stderr + said[1].stderr
    assert said[0].stdout.endswith("ready ")
    assert "Permission denied" in said[1].stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("record", "descriptors", "told"),
    [
        (b'{"version": 999, "pid": 1}', 3, "different versions"),
        (b"hello", 0, "no service of an engine"),
        (b"[1]", 2, "no service of an engine"),
        (b'{"version": %d}' % LINK_VERSION, 3, "hands over no engine"),
        (b'{"version": %d, "pid": 1}' % LINK_VERSION, 1, "hands over no engine"),
        (b"", 0, "its service ended"),
    ],
)
def test_whatever_answers_at_the_socket_is_named_and_the_front_tries_again(
    path: Path, record: bytes, descriptors: int, told: str
) -> None:
    async def check() -> None:
        loop = asyncio.get_running_loop()
        before = len(os.listdir("/proc/self/fd"))
        async with front(path, wait=False) as process:
            for _ in range(2):
                control, _ = await loop.run_in_executor(None, listener.accept)
                with control:
                    if record:
                        socket.send_fds(control, [record], [listener.fileno()] * descriptors)
                await until(lambda: told in process.reason)
            assert process.state == "starting"
        await until(lambda: len(os.listdir("/proc/self/fd")) <= before + 2)

    with listen(path) as listener:
        listener.setblocking(True)
        run(check())


def test_a_service_that_is_stuck_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardserve_server.link.launchers.ANSWER_WAIT_S", 0.2)

    async def check() -> None:
        async with front(path, wait=False) as process:
            await until(lambda: "it does not answer" in process.reason)

    with listen(path):
        run(check())
