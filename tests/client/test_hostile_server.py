"""A client in the hands of a server that lies: named errors, little memory, and the key goes nowhere else."""

from __future__ import annotations

import socket
import threading
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import shardserve as ss

from .conftest import RawServer
from .replies import frame, http, refusal

KEY = "k3y-that-must-not-travel-0123456789"
X = np.arange(3.0)
Start = Callable[..., RawServer]


def _flood(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 500 Oops\r\ncontent-type: application/json\r\n\r\n")
    try:
        while True:
            connection.sendall(b"x" * 65536)
    except OSError:
        return


GOOD = http(frame(X))
ANSWERS: dict[str, Any] = {
    "no HTTP": b"\x00\x01\x02 nonsense\r\n\r\n",
    "hangs up": None,
    "half a head": lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-le"),
    "a body that ends early": lambda connection: connection.sendall(http(frame(X), length=len(frame(X)) + 100)),
    "a body cut in the header": lambda connection: connection.sendall(http(frame(X)[:30], length=len(frame(X)))),
    "a short body": http(frame(X)[:-8]),
    "a huge claim": http(frame(X, shape=(2**33,), nbytes=2**36)),
    "a length of an exabyte": lambda connection: connection.sendall(http(frame(X), length=2**60)),
    "another dtype": http(frame(X.astype(np.float32))),
    "another shape": http(frame(X.reshape(3, 1))),
    "an object dtype": http(frame(X, dtype="O")),
    "JSON for a frame": http(b"[1, 2]", kind="application/json"),
    "HTML with status 200": http(b"<html>", kind="text/html"),
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "a gzip bomb": http(b"\x1f\x8b" + b"\0" * 1000, more="content-encoding: gzip\r\n"),
    "endless headers": b"HTTP/1.1 200 OK\r\n" + b"x-a: " + b"a" * 200_000 + b"\r\n\r\n",
    "an error without a body": http(b"", status="500 Oops"),
    "an endless error": _flood,
    "a redirect": http(b"", status="307 Temporary Redirect", more="location: http://127.0.0.1:1/\r\n"),
    "chunks after the end": b"HTTP/1.1 200 OK\r\ncontent-type: application/vnd.shardserve.frame\r\n"
    b"transfer-encoding: chunked\r\n\r\n" + b"%x\r\n" % (len(frame(X)) + 64) + frame(X) + b"\0" * 64 + b"\r\n0\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_a_lying_server_gets_a_bad_reply_within_little_memory(raw_server: Start, name: str) -> None:
    """Promise B6."""
    server = raw_server(ANSWERS[name])
    with ss.Client(server.url, timeout=20) as client:
        tracemalloc.start()
        try:
            with pytest.raises(ss.BadReply):
                client.identity(X)
            assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
        finally:
            tracemalloc.stop()
    assert len(server.requests) == 1  # whatever it was, the call is not sent again


def test_a_truthful_answer_of_the_same_server_is_read(raw_server: Start) -> None:
    server = raw_server(GOOD)
    with ss.Client(server.url) as client:
        np.testing.assert_array_equal(client.identity(X), X)
        np.testing.assert_array_equal(client.identity(X), X)
    assert server.connections == 1  # which is used again


def test_a_chunked_answer_is_read_too(raw_server: Start) -> None:
    data = frame(X)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/vnd.shardserve.frame\r\ntransfer-encoding: chunked\r\n\r\n"
    server = raw_server(head + b"%x\r\n" % len(data) + data + b"\r\n0\r\n\r\n")
    with ss.Client(server.url) as client:
        np.testing.assert_array_equal(client.identity(X), X)


def test_a_redirect_is_not_followed_and_the_key_goes_to_one_host_only(raw_server: Start) -> None:
    other = raw_server(GOOD)
    for status in ("301 Moved", "302 Found", "307 Temporary", "308 Permanent"):
        server = raw_server(http(b"", status=status, more=f"location: {other.url}/v1/call\r\n"))
        with ss.Client(server.url, KEY) as client:
            with pytest.raises(ss.BadReply, match="redirect"):
                client.identity(X)
            with pytest.raises(ss.BadReply, match="redirect"):
                client.devices()
        assert KEY.encode() in server.requests[0]
    assert other.connections == 0


def test_the_key_is_a_bearer_token_and_shows_in_no_text(raw_server: Start) -> None:
    server = raw_server(None)
    with ss.Client(server.url, KEY) as client:
        with pytest.raises(ss.BadReply) as caught:
            client.identity(X)
        assert b"authorization: bearer " + KEY.encode() in server.requests[0].lower().replace(
            KEY.lower().encode(), KEY.encode()
        )
        assert KEY not in repr(client)
        assert KEY not in repr(client._address)
        assert KEY not in str(caught.value)


def test_a_proxy_of_the_environment_is_not_used_for_loopback(
    raw_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, server = raw_server(GOOD), raw_server(GOOD)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy.url)
    with ss.Client(server.url, KEY) as client:
        client.identity(X)
    assert (proxy.connections, server.connections) == (0, 1)


def _refuse_early(listener: socket.socket) -> None:
    """Answer 413 after the first bytes, read on for a second, hang up."""
    connection, _ = listener.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(refusal(ss.TooLarge("the body has many bytes")))
        connection.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline and connection.recv(65536):
            pass


def test_an_early_answer_to_a_large_body_is_read_and_no_broken_pipe() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_refuse_early, args=(listener,))
        thread.start()
        client = ss.Client(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=30)
        with client, pytest.raises(ss.TooLarge, match="many bytes"):
            client.identity(np.zeros(64 * 2**20, np.uint8))
        thread.join(10)
