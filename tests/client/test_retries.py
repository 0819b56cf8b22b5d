"""A call is sent again only where that cannot run it twice, and it waits no longer than it was told to."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import shardserve as ss
from shardserve import _patience
from shardserve._arrays import buffers_of
from shardserve._config import EXPECT_WAIT_S
from shardserve._patience import Patience
from shardserve._requests import Outgoing
from shardserve_proto.frames import encode_frame

from .conftest import RawServer
from .replies import frame, http, refusal

X = np.arange(3.0)
GOOD = http(frame(X))
Start = Callable[..., RawServer]


@pytest.mark.parametrize(
    "error",
    [
        ss.Overloaded("full", retry_after_s=0.01),
        ss.Draining("stopping", retry_after_s=0.01),
        ss.QuotaExceeded("used up", retry_after_s=0.01),
        ss.EngineStarting("loading", retry_after_s=0.01),
        ss.OutOfMemory("others use it now", details={"is_transient": True}, retry_after_s=0.01),
    ],
    ids=lambda error: error.code,
)
def test_a_server_that_asks_to_come_again_is_asked_again(raw_server: Start, error: ss.ShardserveError) -> None:
    server = raw_server(refusal(error), refusal(error), GOOD)
    with ss.Client(server.url) as client:
        np.testing.assert_array_equal(client.identity(X), X)
    assert len(server.requests) == 3
    assert len({request.partition(b"\r\n\r\n")[2] for request in server.requests}) == 1  # byte for byte the same


@pytest.mark.parametrize(
    "error",
    [
        ss.EngineLost("died during the call", retry_after_s=0.01),
        ss.Overloaded("full, and no time named"),
        ss.InternalError("a fault", error_id="abc"),
        ss.DeadlineExceeded("too late"),
        ss.CompileTimeout("too late"),
        ss.OutOfMemory("arrays that stay take it", details={"is_transient": False}, retry_after_s=0.01),
        ss.TooLarge("too large"),
        ss.ShapeError("no"),
        ss.Unauthenticated("no key"),
        ss.NotFound("no such kernel"),
    ],
    ids=lambda error: error.code,
)
def test_every_other_error_comes_back_at_once(raw_server: Start, error: ss.ShardserveError) -> None:
    server = raw_server(refusal(error), GOOD)
    with ss.Client(server.url) as client, pytest.raises(type(error), match=error.message):
        client.identity(X)
    assert len(server.requests) == 1


def test_a_call_whose_answer_never_came_is_not_sent_again(raw_server: Start) -> None:
    server = raw_server(None, GOOD)
    with ss.Client(server.url) as client, pytest.raises(ss.BadReply, match="ended before the answer"):
        client.identity(X)
    assert len(server.requests) == 1


def test_retry_after_of_the_header_counts_too(raw_server: Start) -> None:
    body = b'{"error": {"code": "overloaded", "message": "full", "details": {}}}'
    busy = http(body, status="503 Busy", kind="application/json", more="retry-after: 1\r\n")
    server = raw_server(busy, GOOD)
    with ss.Client(server.url) as client:
        started = time.monotonic()
        client.identity(X)
    assert 1.0 <= time.monotonic() - started < 5


def test_a_wait_that_the_timeout_does_not_allow_ends_with_the_server_s_error(raw_server: Start) -> None:
    server = raw_server(refusal(ss.Overloaded("full", retry_after_s=30)))
    with ss.Client(server.url) as client:
        started = time.monotonic()
        with pytest.raises(ss.Overloaded):
            client.identity(X, timeout=2)
        assert time.monotonic() - started < 1
    assert len(server.requests) == 1


def test_a_silent_server_ends_in_a_timeout_that_names_the_setting(raw_server: Start) -> None:
    """B59."""
    server = raw_server(lambda _: time.sleep(1.5))
    with ss.Client(server.url) as client:
        started = time.monotonic()
        with pytest.raises(ss.TimedOut, match="timeout=0.3 s; a larger timeout= allows more") as caught:
            client.identity(X, timeout=0.3)
        assert 0.3 <= time.monotonic() - started < 1.5
    assert isinstance(caught.value, TimeoutError)


def test_a_server_that_drips_does_not_stretch_the_timeout(raw_server: Start) -> None:
    def drip(connection: socket.socket) -> None:
        try:
            for byte in http(frame(np.zeros(1000)), length=len(frame(np.zeros(1000)))):
                connection.sendall(bytes([byte]))
                time.sleep(0.02)
        except OSError:
            return

    server = raw_server(drip)
    with ss.Client(server.url, timeout=0.5) as client:
        started = time.monotonic()
        with pytest.raises(ss.TimedOut):
            client.identity(np.zeros(1000))
        assert time.monotonic() - started < 3


def test_a_server_that_reads_nothing_ends_in_a_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with ss.Client(url, timeout=0.5) as client, pytest.raises(ss.TimedOut):
            client.identity(np.zeros(64 * 2**20, np.uint8))


def test_the_time_to_gather_an_array_s_bytes_counts(raw_server: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(outgoing: Outgoing) -> list[Any]:
        time.sleep(0.3)
        return encode_frame(outgoing.header, buffers_of(outgoing.leaves))

    monkeypatch.setattr(Outgoing, "frame", slowly)
    server = raw_server(GOOD)
    with ss.Client(server.url) as client, pytest.raises(ss.TimedOut):
        client.identity(X, timeout=0.2)
    assert server.requests == []


def test_a_short_timeout_holds_for_the_server_s_word_before_a_large_body_too() -> None:
    async def use(url: str) -> None:
        async with ss.AsyncClient(url, timeout=0.2) as client:
            with pytest.raises(ss.TimedOut):
                await client.identity(np.zeros(2 * 2**20, np.uint8))

    with socket.create_server(("127.0.0.1", 0)) as listener:  # which says nothing
        started = time.monotonic()
        asyncio.run(use(f"http://127.0.0.1:{listener.getsockname()[1]}"))
        assert time.monotonic() - started < EXPECT_WAIT_S


def test_nobody_at_the_address_is_told_after_a_few_quick_tries() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with ss.Client(f"http://127.0.0.1:{port}") as client:
        started = time.monotonic()
        with pytest.raises(ss.ConnectFailed, match=f"no server answers at http://127.0.0.1:{port}.*is it running"):
            client.devices()
        assert time.monotonic() - started < 5


def test_a_server_that_comes_up_meanwhile_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    answer = http(b"[]", kind="application/json")

    def come_up() -> None:
        time.sleep(0.15)
        with socket.create_server(("127.0.0.1", port)) as late:
            connection, _ = late.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

    thread = threading.Thread(target=come_up)
    thread.start()
    with ss.Client(f"http://127.0.0.1:{port}") as client:
        assert client.devices() == []
    thread.join(10)


def test_a_server_that_is_started_again_is_waited_for_and_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_patience, "QUIET_START_S", 0.5)
    answer = http(b"[]", kind="application/json")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        gone = threading.Event()

        def serve(listener: socket.socket) -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        def serve_twice() -> None:
            serve(listener)
            listener.close()
            gone.set()
            time.sleep(1.3)  # longer than three quick tries
            with socket.create_server(("127.0.0.1", port)) as again:
                serve(again)

        thread = threading.Thread(target=serve_twice)
        thread.start()
        with ss.Client(f"http://127.0.0.1:{port}") as client:
            assert client.devices() == []
            gone.wait(10)
            assert client.devices() == []
        thread.join(10)
    assert "shardserve: waiting for the server (no server answers" in capsys.readouterr().err


def test_a_long_start_of_the_engine_is_told_once(
    raw_server: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_patience, "QUIET_START_S", 0.2)
    starting = refusal(ss.EngineStarting("the engine is loading", retry_after_s=0.1))
    server = raw_server(*[starting] * 6, GOOD)
    with ss.Client(server.url) as client:
        client.identity(X)
    assert capsys.readouterr().err == "shardserve: waiting for the server's engine (the engine is loading)\n"
    assert server.connections == 1


def test_a_short_start_is_not_worth_a_word(raw_server: Start, capsys: pytest.CaptureFixture[str]) -> None:
    server = raw_server(refusal(ss.EngineStarting("loading", retry_after_s=0.05)), GOOD)
    with ss.Client(server.url) as client:
        client.identity(X)
    assert capsys.readouterr().err == ""


def test_the_async_client_asks_again_in_the_same_way(raw_server: Start) -> None:
    server = raw_server(refusal(ss.Overloaded("full", retry_after_s=0.01)), GOOD, refusal(ss.EngineLost("died")))

    async def use() -> None:
        async with ss.AsyncClient(server.url) as client:
            np.testing.assert_array_equal(await client.identity(X), X)
            with pytest.raises(ss.EngineLost):
                await client.identity(X)

    asyncio.run(use())
    assert len(server.requests) == 3


def test_a_closed_client_says_so(raw_server: Start) -> None:
    server = raw_server(GOOD)
    client = ss.Client(server.url)
    client.identity(X)
    client.close()
    with pytest.raises(ss.ConnectFailed, match="the client is closed"):
        client.identity(X)
    assert len(server.requests) == 1


def test_closing_a_copy_leaves_the_connections_open(raw_server: Start) -> None:
    server = raw_server(GOOD)
    with ss.Client(server.url) as client:
        with client.with_options(precision="high") as copy:
            copy.identity(X)
        client.identity(X)
    assert server.connections == 1


def test_pauses_are_spread_and_never_shorter_than_asked() -> None:
    pauses = [Patience(None).pause_after(ss.Overloaded("full", retry_after_s=4)) for _ in range(200)]
    assert all(4 <= pause <= 5 for pause in pauses)
    assert len({round(pause, 3) for pause in pauses}) > 50


@pytest.mark.parametrize("error", [ss.EngineLost("x", retry_after_s=1), ss.BadReply("x"), ss.TimedOut("x")])
def test_there_is_no_pause_after_what_may_have_run(error: ss.ShardserveError) -> None:
    with pytest.raises(type(error)):
        Patience(None).pause_after(error)


def test_large_bodies_go_out_as_views_of_at_most_1_mib() -> None:
    from shardserve._exchanges import CallExchange, pieces, whole_or_pieces
    from shardserve._options import Defaults
    from shardserve._requests import kernel_call

    x = np.arange(3 * 2**20, dtype=np.uint8)
    large = CallExchange(kernel_call("identity", [x], {}, {}, Defaults()))
    body: Any = whole_or_pieces(large)
    views = list(pieces(body))
    assert all(isinstance(view, memoryview) and view.nbytes <= 2**20 for view in views)
    assert sum(view.nbytes for view in views) == large.body_bytes == int(large.headers()["Content-Length"])
    assert np.shares_memory(np.frombuffer(views[-1], np.uint8), x)
    small = CallExchange(kernel_call("identity", [x[:1000]], {}, {}, Defaults()))
    assert type(whole_or_pieces(small)) is bytes
