"""One client for many threads, one async client for many tasks; large and small bodies; local servers."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardserve as ss
from shardserve import _local_server
from tests.server.link.harness import is_alive

from .serving import launch

LARGE = np.arange(3_000_000, dtype=np.float32).reshape(3, -1)


def test_16_threads_share_a_client(client: ss.Client) -> None:
    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        for _ in range(10):
            x = rng.integers(-9, 9, size=(4, 4))
            np.testing.assert_array_equal(client.matmul(x, x), x @ x)
            big = LARGE[:, : 100_000 + number] + number
            np.testing.assert_array_equal(client.identity(big), big)

    with ThreadPoolExecutor(16) as pool:
        for future in [pool.submit(work, number) for number in range(16)]:
            future.result(50)


def test_threads_may_trace_one_function_at_once(client: ss.Client) -> None:
    function = ss.vmap(lambda row: row / row.sum())
    x = np.arange(1.0, 13.0).reshape(3, 4)
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: client.run(function, x), range(32)):
            np.testing.assert_allclose(found, x / x.sum(1, keepdims=True))


def test_a_large_array_goes_and_comes_whole(client: ss.Client) -> None:
    with client.record() as log:
        found = client.identity(LARGE.T)
    np.testing.assert_array_equal(found, LARGE.T)
    found += 1  # its own memory
    assert log[0].sent_bytes > LARGE.nbytes
    assert log[0].received_bytes > LARGE.nbytes


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_processes_never_read_each_other_s_answers(client: ss.Client) -> None:
    assert client.sum(np.ones(3)) == 3

    def work(seed: int) -> None:
        for number in range(60):
            x = np.full(64, seed * 1000 + number)
            np.testing.assert_array_equal(client.negative(x), -x)

    children = [multiprocessing.get_context("fork").Process(target=work, args=(seed,)) for seed in range(4)]
    for child in children:
        child.start()
    work(9)
    for child in children:
        child.join(50)
    assert [child.exitcode for child in children] == [0] * 4


def test_an_async_client_serves_one_event_loop_after_another(server_url: str) -> None:
    client = ss.AsyncClient(server_url)

    async def use() -> None:
        assert await asyncio.gather(*(client.sum(np.full(3, number)) for number in range(8))) == [*range(0, 24, 3)]

    for _ in range(3):
        asyncio.run(use())

    async def end() -> None:
        await client.close()
        with pytest.raises(ss.ConnectFailed, match="the client is closed"):
            await client.sum(np.ones(3))

    asyncio.run(end())


def test_the_async_client_runs_calls_beside_each_other(server_url: str) -> None:
    async def use() -> None:
        async with ss.AsyncClient(server_url) as client:
            xs = [np.full((3, 3), number) for number in range(40)]
            found = await asyncio.gather(*(client.matmul(x, x) for x in xs))
            for x, product in zip(xs, found, strict=True):
                np.testing.assert_array_equal(product, x @ x)
            np.testing.assert_array_equal(await client.identity(LARGE), LARGE)
            total = await client.run(lambda x: x.sum(), np.ones(7))
            assert total == 7
            with client.mesh({"x": 8}), client.record() as log:
                await client.normalize(np.ones(9), norm="sum", in_axes=["i"], out_axes=["i"], axis_resources={"i": "x"})
            assert log[0].report.mesh == (("x", 8),)
            assert len(await client.devices()) == 8
            assert (await client.info()).device_count == 8
            assert any(kernel.name == "dot" for kernel in await client.kernels())
            with pytest.raises(ss.ShapeError):
                await client.matmul(np.ones(3), np.ones(4))
            copy = client.with_options(precision="high")
            assert (await copy.call("dot", np.ones(3), np.ones(3))).report.precision == "high"

    asyncio.run(use())


def test_a_cancelled_task_leaves_the_async_client_usable(server_url: str) -> None:
    async def use() -> None:
        async with ss.AsyncClient(server_url) as client:
            task = asyncio.create_task(client.identity(LARGE))
            await asyncio.sleep(0.002)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await client.dot([1, 2], [3, 4]) == 11

    asyncio.run(use())


def test_a_timeout_ends_the_wait_and_the_next_call_works(client: ss.Client) -> None:
    """B59."""
    x = np.ones((64, 64))

    def slow(a: Any) -> Any:
        for _ in range(300):
            a = np.tanh(a @ a)
        return a

    with pytest.raises(TimeoutError, match="timeout"):
        client.run(slow, x, timeout=0.05)
    assert client.dot([1, 2], [3, 4]) == 11


# --- refusals --------------------------------------------------------------------------------------------------------


def test_a_refused_upload_gets_its_own_error_and_no_broken_pipe() -> None:
    """Early answers: a wrong key, and a body over the server's limit, while most of it is still to be sent."""
    key = "k3y-of-the-server-0123456789abcdef"
    big = np.zeros(64 * 2**20, np.uint8)
    with launch("--body-bytes", "1MiB", environment={"SHARDSERVE_API_KEY": key}, devices=1) as server:
        with ss.Client(server.url, key) as client:
            for _ in range(3):
                with pytest.raises(ss.TooLarge, match="at most 1048576"):
                    client.identity(big)
            assert client.dot([1, 2], [3, 4]) == 11
        with ss.Client(server.url, key[::-1]) as stranger:
            for _ in range(3):
                with pytest.raises(ss.Unauthenticated, match="a key that it knows"):
                    stranger.identity(big)
        asyncio.run(_refused(server.url, key, big))


async def _refused(url: str, key: str, big: np.ndarray[Any, Any]) -> None:
    async with ss.AsyncClient(url, key) as client:
        with pytest.raises(ss.TooLarge):
            await client.identity(big)


# --- a server of one's own -------------------------------------------------------------------------------------------


def test_a_local_server_ends_with_its_block() -> None:
    server = ss.LocalServer(devices=2, meshes={"pair": {"x": 2}})
    with server as client:
        assert len(client.devices()) == 2
        assert client.info().meshes["pair"] == (("x", 2),)
        pid = server.pid
        assert pid is not None
        assert is_alive(pid)
        assert server.start() is client
        assert server.pid == pid, "a second start makes no second server"
    assert not is_alive(pid)
    assert server.pid is None


def test_a_local_server_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    code = (
        "import shardserve as ss, time\n"
        "server = ss.LocalServer(devices=1)\n"
        "client = server.start()\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(parent.pid, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while is_alive(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not is_alive(pid)


def test_a_local_server_that_cannot_start_tells_its_last_words() -> None:
    server = ss.LocalServer(devices=2, arguments=["--no-such-option"])
    with pytest.raises(ss.ConnectFailed, match=r"did not start(.|\n)*no-such-option"):
        server.start()
    assert server.pid is None


def test_a_missing_server_extra_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_local_server, "_NEEDED", ("jax", "no_such_package_at_all"))
    with pytest.raises(ss.ConnectFailed, match=r"no_such_package_at_all missing.*pip install 'shardserve\[server\]'"):
        ss.LocalServer().start()
