"""The blocking client's own transport, against scripted servers: what goes out, what comes in, which connection."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Any

import numpy as np
import pytest

import shardserve as ss
from shardserve import _connection, _progress
from shardserve._config import check_address
from shardserve._direct import DirectTransport

from .conftest import RawServer, read_request
from .replies import frame, http, refusal
from .scripted import CONTINUE, GOOD, LARGE, X, is_ended, read_body, read_head, scripted

# --- requests --------------------------------------------------------------------------------------------------------


def test_a_small_call_is_one_send_and_one_receive(raw_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"send": 0, "recv": 0}

    class Counted(socket.socket):
        def send(self, *args: Any) -> int:
            counts["send"] += 1
            return super().send(*args)

        def recv(self, *args: Any) -> bytes:
            counts["recv"] += 1
            return super().recv(*args)

    monkeypatch.setattr(socket, "socket", Counted)
    with ss.Client(raw_server(GOOD).url) as client:
        client.identity(X)
        counts.update(send=0, recv=0)
        client.identity(X)
    # The server's threads count as well: it receives the request once and sends by sendall.
    assert counts["send"] == 1
    assert counts["recv"] <= 3


def test_a_large_body_waits_for_the_word_and_arrives_whole() -> None:
    def script(connection: socket.socket) -> bytes:
        head = read_head(connection)
        assert b"\r\nexpect: 100-continue\r\n" in head.lower()
        connection.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(5)
        for part in (b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 1", b"00 Continue\r\n", b"\r\n"):
            connection.sendall(part)
            time.sleep(0.02)
        body = read_body(connection, head)
        connection.sendall(http(frame(LARGE)))
        return body

    with scripted(script) as (client, results):
        np.testing.assert_array_equal(client.identity(LARGE), LARGE)
    assert results[0].endswith(LARGE.tobytes())


def test_a_server_that_does_not_know_the_header_gets_the_body_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_connection, "EXPECT_WAIT_S", 0.1)

    def script(connection: socket.socket) -> None:
        read_body(connection, read_head(connection))
        connection.sendall(CONTINUE)  # a late word does no harm
        connection.sendall(http(frame(LARGE)))

    with scripted(script) as (client, _):
        np.testing.assert_array_equal(client.identity(LARGE), LARGE)


def test_a_late_word_while_the_body_is_on_its_way_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_connection, "EXPECT_WAIT_S", 0.05)

    def script(connection: socket.socket) -> None:
        head = read_head(connection)
        time.sleep(0.2)  # the client's buffers are full by now, and it waits
        connection.sendall(CONTINUE)
        time.sleep(0.1)
        read_body(connection, head)
        connection.sendall(http(frame(LARGE)))

    with scripted(script) as (client, _):
        np.testing.assert_array_equal(client.identity(LARGE), LARGE)


@pytest.mark.parametrize("word", [b"", CONTINUE])
def test_an_answer_before_or_within_a_large_body_stops_it(word: bytes) -> None:
    """The connection, of which half a request was sent, is not used again."""
    big = np.zeros(64 * 2**20, np.uint8)

    def script(connection: socket.socket) -> bool:
        read_head(connection)
        connection.sendall(word)
        time.sleep(0.1)
        connection.sendall(refusal(ss.TooLarge("the body has many bytes")))
        return is_ended(connection)

    def other(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(GOOD)

    with scripted(script, other) as (client, results):
        started = time.monotonic()
        with pytest.raises(ss.TooLarge, match="many bytes"):
            client.identity(big)
        assert time.monotonic() - started < 5
        np.testing.assert_array_equal(client.identity(X), X)
    assert results[0]


def test_an_answer_in_front_of_a_reset_is_read() -> None:
    def script(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(CONTINUE)
        connection.recv(65536)
        connection.sendall(refusal(ss.Unauthenticated("no key")))  # and closes with bytes unread: a reset

    with scripted(script) as (client, _), pytest.raises(ss.Unauthenticated):
        client.identity(np.zeros(64 * 2**20, np.uint8))


def test_a_path_that_would_end_the_request_line_is_refused() -> None:
    from shardserve._asks import Ask
    from shardserve._patience import Patience

    transport = DirectTransport(check_address("http://127.0.0.1:9", None, allow_insecure=False))
    for path in ("/a b", "/a\r\nx: y", "/ä"):
        with pytest.raises(ss.InvalidRequest, match="no path"):
            transport.send(Ask("GET", path, str, None), Patience(None))


def test_the_host_and_the_prefix_of_the_address_are_used(raw_server: Any) -> None:
    server = raw_server(http(b"[]", kind="application/json"))
    with ss.Client(server.url + "/behind/a%20prefix/") as client:
        client.devices()
    head = server.requests[0]
    assert head.startswith(b"GET /behind/a%20prefix/v1/devices HTTP/1.1\r\n")
    assert f"\r\nHost: {server.url[7:]}\r\n".encode() in head


# --- connections -----------------------------------------------------------------------------------------------------


def test_an_idle_connection_that_the_server_closed_is_not_used() -> None:
    def once(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(GOOD)

    with scripted(once, once, once) as (client, _):
        for _ in range(3):
            np.testing.assert_array_equal(client.identity(X), X)
            time.sleep(0.05)


def test_a_connection_with_bytes_behind_its_answer_is_not_used_again(raw_server: Any) -> None:
    server: RawServer = raw_server(GOOD + b"HTTP/1.1 200 OK\r\n", GOOD)
    with ss.Client(server.url) as client:
        client.identity(X)
        np.testing.assert_array_equal(client.identity(X), X)
    assert server.connections == 2


@pytest.mark.parametrize("field", ["connection: close\r\n", "connection: keep-alive, Close\r\n"])
def test_a_connection_that_the_server_will_close_is_not_used_again(raw_server: Any, field: str) -> None:
    server: RawServer = raw_server(http(frame(X), more=field), GOOD)
    with ss.Client(server.url) as client:
        client.identity(X)
        client.identity(X)
    assert server.connections == 2


def test_an_error_leaves_the_connection_usable(raw_server: Any) -> None:
    server: RawServer = raw_server(refusal(ss.ShapeError("no")), GOOD)
    with ss.Client(server.url) as client:
        with pytest.raises(ss.ShapeError):
            client.identity(X)
        client.identity(X)
    assert server.connections == 1


def test_a_connection_idle_for_too_long_is_not_used(raw_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_connection, "KEEP_ALIVE_S", 0.05)
    server: RawServer = raw_server(GOOD)
    with ss.Client(server.url) as client:
        client.identity(X)
        time.sleep(0.1)
        client.identity(X)
    assert server.connections == 2


def test_the_connection_used_last_is_used_next_and_threads_have_their_own(raw_server: Any) -> None:
    barrier = threading.Barrier(4)

    def together(connection: socket.socket) -> None:
        barrier.wait(5)
        connection.sendall(GOOD)
        while read_request(connection):
            connection.sendall(GOOD)

    server: RawServer = raw_server(together)
    with ss.Client(server.url) as client:
        threads = [threading.Thread(target=client.identity, args=(X,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        idle = client._connections.here()._pool._idle
        assert len(idle) == server.connections == 4
        newest = idle[-1]
        client.identity(X)
        assert idle[-1] is newest


@pytest.mark.parametrize("direction", ["sent", "received"])
def test_an_interrupt_leaves_no_half_used_connection(
    raw_server: Any, monkeypatch: pytest.MonkeyPatch, direction: str
) -> None:
    monkeypatch.setattr(_progress, "PROGRESS_S", 0.0)

    def interrupt(progress: ss.Progress) -> None:
        if progress.direction == direction:
            raise KeyboardInterrupt

    server: RawServer = raw_server(*([http(frame(LARGE))] if direction == "received" else []), GOOD)
    with ss.Client(server.url) as client:
        with pytest.raises(KeyboardInterrupt):
            client.identity(LARGE, progress=interrupt)
        assert not client._connections.here()._pool._idle
        np.testing.assert_array_equal(client.identity(X), X)


def test_a_forked_child_leaves_its_parent_s_connections_alone(raw_server: Any) -> None:
    server: RawServer = raw_server(GOOD)
    with ss.Client(server.url) as client:
        client.identity(X)
        pool = client._connections.here()._pool
        pool._process = os.getpid() + 1  # as a child finds it
        client.identity(X)
    assert server.connections == 2


def test_a_client_that_is_dropped_closes_its_connections() -> None:
    def once(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            read_request(connection)
            connection.sendall(GOOD)
            is_ended(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = ss.Client(f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread = threading.Thread(target=once, args=(listener,))
        thread.start()
        client.identity(X)
        del client
        thread.join(4)
        assert not thread.is_alive()


# --- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 7, 100])
def test_an_answer_may_come_in_any_pieces(raw_server: Any, step: int) -> None:
    def drip(connection: socket.socket) -> None:
        for start in range(0, len(GOOD), step):
            connection.sendall(GOOD[start : start + step])

    with ss.Client(raw_server(drip).url) as client:
        np.testing.assert_array_equal(client.identity(X), X)


def test_a_large_answer_is_received_into_the_result_itself(raw_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[int] = []

    class Counted(socket.socket):
        def recv_into(self, buffer: Any, *args: Any) -> int:
            received.append(super().recv_into(buffer, *args))
            return received[-1]

    monkeypatch.setattr(socket, "socket", Counted)
    results = (LARGE, X, LARGE[:1000], LARGE)
    with ss.Client(raw_server(http(frame(*results))).url) as client:
        found = client._send(_call(client)).value
    for array, wanted in zip(found, results, strict=True):
        np.testing.assert_array_equal(array, wanted)
    assert sum(received) > 2 * LARGE.nbytes - 4 * 65536


def _call(client: ss.Client) -> Any:
    from shardserve._exchanges import CallExchange

    class Values(CallExchange):
        def _finish(self) -> Any:
            self.value = super()._finish()[0]
            return self

    return Values(client._outgoing_call("own_kernel", (X,), {}))


@pytest.mark.parametrize("length", [0, 1, 100, LARGE.nbytes // 2])
def test_a_server_that_closes_within_its_answer_makes_a_bad_reply(raw_server: Any, length: int) -> None:
    answer = http(frame(LARGE))
    server = raw_server(lambda connection: connection.sendall(answer[:length]))
    with ss.Client(server.url) as client, pytest.raises(ss.BadReply, match="ended before the answer was complete"):
        client.identity(LARGE[:10] if length < 2 else LARGE)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "flood",
    [CONTINUE * 1000, b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 100, b"HTTP/1.1 101 Switching\r\n\r\n"],
    ids=["100", "103", "101"],
)
def test_a_flood_of_words_before_the_answer_ends(raw_server: Any, flood: bytes) -> None:
    with ss.Client(raw_server(flood).url, timeout=10) as client:
        for array in (X, LARGE):
            with pytest.raises(ss.BadReply, match="does not come to its answer"):
                client.identity(array)


def test_some_words_before_the_answer_are_passed_over(raw_server: Any) -> None:
    words = CONTINUE + b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
    with ss.Client(raw_server(words + GOOD).url) as client:
        np.testing.assert_array_equal(client.identity(X), X)


def test_an_answer_that_ends_with_its_connection_is_read(raw_server: Any) -> None:
    answer = b"HTTP/1.0 200 OK\r\ncontent-type: application/vnd.shardserve.frame\r\n\r\n" + frame(X)
    server: RawServer = raw_server(lambda connection: connection.sendall(answer))
    with ss.Client(server.url) as client:
        np.testing.assert_array_equal(client.identity(X), X)
        np.testing.assert_array_equal(client.identity(X), X)
    assert server.connections == 2
