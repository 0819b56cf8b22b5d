"""Requests that two servers could read in two ways: here each is refused, or is one request and nothing else."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from shardserve_server.settings import Settings

from .serving import Answer, Served, read_one, serving

HOST = b"Host: 127.0.0.1\r\n"
MARKER = b"GET /marker HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
HIDDEN = b"GET /smuggled HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


@pytest.fixture(scope="module", params=["uvloop", "asyncio"])
def strict(request: pytest.FixtureRequest) -> Iterator[Served]:
    settings = Settings(
        port=0, stop_grace_s=1, head_timeout_s=0.3, body_grace_s=0.3, keep_alive_s=1, event_loop=request.param
    )
    with serving(settings=settings) as served:
        yield served


def post(fields: bytes, body: bytes = b"", line: bytes = b"POST /v1/call HTTP/1.1\r\n") -> bytes:
    return line + HOST + fields + b"\r\n" + body


def get(fields: bytes = b"", line: bytes = b"GET /livez HTTP/1.1\r\n") -> bytes:
    return line + HOST + fields + b"\r\n"


#: Lengths that contradict each other, or that not everybody reads as the same number.
LENGTHS = {
    "length and chunked": post(b"Content-Length: 5\r\n" + CHUNKED, b"0\r\n\r\n" + HIDDEN),
    "chunked and length": post(CHUNKED + b"Content-Length: 50\r\n", b"0\r\n\r\n" + HIDDEN),
    "two lengths": post(b"Content-Length: 0\r\nContent-Length: 44\r\n", HIDDEN),
    "two lengths reversed": post(b"Content-Length: 44\r\nContent-Length: 0\r\n", HIDDEN),
    "two equal lengths": post(b"Content-Length: 0\r\nContent-Length: 0\r\n"),
    "a list of lengths": post(b"Content-Length: 0, 44\r\n", HIDDEN),
    "a list of equal lengths": post(b"Content-Length: 0, 0\r\n"),
    "plus": post(b"Content-Length: +44\r\n", HIDDEN),
    "minus": post(b"Content-Length: -1\r\n", HIDDEN),
    "minus zero": post(b"Content-Length: -0\r\n", HIDDEN),
    "hexadecimal": post(b"Content-Length: 0x2c\r\n", HIDDEN),
    "exponent": post(b"Content-Length: 1e1\r\n", HIDDEN),
    "point": post(b"Content-Length: 44.0\r\n", HIDDEN),
    "digits apart": post(b"Content-Length: 4 4\r\n", HIDDEN),
    "underscore": post(b"Content-Length: 4_4\r\n", HIDDEN),
    "no digits": post(b"Content-Length: \r\n", HIDDEN),
    "other digits": post("Content-Length: ٤\r\n".encode(), HIDDEN),
    "over 64 bits": post(b"Content-Length: 18446744073709551660\r\n", HIDDEN),
    "space before the colon": post(b"Content-Length : 44\r\n", HIDDEN),
    "tab before the colon": post(b"Content-Length\t: 44\r\n", HIDDEN),
    "a line end within the name": post(b"Content-\r\nLength: 44\r\n", HIDDEN),
    "a NUL in the name": post(b"Content-Length\0: 44\r\n", HIDDEN),
    "a length behind a NUL": post(b"X: a\0Content-Length: 44\r\n", HIDDEN),
    "a get with a hidden request": get(b"Content-Length: 44\r\n") + HIDDEN.ljust(44),
}
#: Chunked in other words, and chunks that are none.
CODINGS = {
    "chunked": post(CHUNKED, b"0\r\n\r\n"),
    "chunked get": get(CHUNKED) + b"2c\r\n" + HIDDEN.ljust(44) + b"\r\n0\r\n\r\n",
    "xchunked": post(b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n" + HIDDEN),
    "chunked, identity": post(b"Transfer-Encoding: chunked, identity\r\n", b"0\r\n\r\n" + HIDDEN),
    "identity, chunked": post(b"Transfer-Encoding: identity, chunked\r\n", b"0\r\n\r\n" + HIDDEN),
    "gzip, chunked": post(b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n" + HIDDEN),
    "identity": post(b"Transfer-Encoding: identity\r\nContent-Length: 0\r\n", HIDDEN),
    "twice": post(CHUNKED + CHUNKED, b"0\r\n\r\n" + HIDDEN),
    "two codings": post(CHUNKED + b"Transfer-Encoding: identity\r\n", b"0\r\n\r\n" + HIDDEN),
    "quoted": post(b'Transfer-Encoding: "chunked"\r\n', b"0\r\n\r\n" + HIDDEN),
    "capitals": post(b"TRANSFER-ENCODING: CHUNKED\r\n", b"0\r\n\r\n" + HIDDEN),
    "vertical tab": post(b"Transfer-Encoding: \x0bchunked\r\nContent-Length: 44\r\n", HIDDEN),
    "tab": post(b"Transfer-Encoding:\tchunked\r\nContent-Length: 44\r\n", HIDDEN),
    "empty": post(b"Transfer-Encoding: \r\nContent-Length: 44\r\n", HIDDEN),
    "space before the colon": post(b"Transfer-Encoding : chunked\r\nContent-Length: 44\r\n", HIDDEN),
    "folded": post(b"Transfer-Encoding:\r\n chunked\r\nContent-Length: 44\r\n", HIDDEN),
    "a chunk without size": post(CHUNKED, b"\r\n" + HIDDEN),
    "a chunk size in words": post(CHUNKED, b"zz\r\n" + HIDDEN),
    "a negative chunk": post(CHUNKED, b"-1\r\n" + HIDDEN),
    "a chunk with 0x": post(CHUNKED, b"0x2c\r\n" + HIDDEN),
    "a chunk over 64 bits": post(CHUNKED, b"1000000000000002c\r\n" + HIDDEN),
    "a chunk longer than it says": post(CHUNKED, b"1\r\nxx" + HIDDEN),
    "a chunk that ends in LF": post(CHUNKED, b"1\nx\n0\n\n" + HIDDEN),
    "chunk extensions": post(CHUNKED, b"0;a=\n" + HIDDEN),
    "a trailer with a length": post(CHUNKED, b"0\r\nContent-Length: 44\r\n\r\n" + HIDDEN),
    "chunked in HTTP/1.0": post(CHUNKED, b"0\r\n\r\n" + HIDDEN, line=b"POST /v1/call HTTP/1.0\r\n"),
}
#: Lines that end, begin or continue in another way.
LINES = {
    "folded field": get(b"X: a\r\n b\r\n"),
    "folded request": get(b" GET /smuggled HTTP/1.1\r\n"),
    "bare LF": get().replace(b"\r\n", b"\n"),
    "bare LF in a field": get(b"X: a\nContent-Length: 44\r\n") + HIDDEN,
    "bare CR": get(b"X: a\rContent-Length: 44\r\n") + HIDDEN,
    "LF LF": b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\n\n" + HIDDEN,
    "CR CR LF": b"GET /livez HTTP/1.1\r\r\n" + HOST + b"\r\n",
    "NUL in the path": get(line=b"GET /livez\0/smuggled HTTP/1.1\r\n"),
    "NUL in a value": get(b"X: a\0b\r\n"),
    "no colon": get(b"X\r\n"),
    "no name": get(b": a\r\n"),
    "space in a name": get(b"X y: a\r\n"),
    "no path": get(line=b"GET  HTTP/1.1\r\n"),
    "two spaces": get(line=b"GET  /livez HTTP/1.1\r\n"),
    "tab for a space": get(line=b"GET\t/livez\tHTTP/1.1\r\n"),
    "a path with a space": get(line=b"GET /livez /smuggled HTTP/1.1\r\n"),
    "a path with bytes over ASCII": get(line=b"GET /livez\xff HTTP/1.1\r\n"),
    "another version": get(line=b"GET /livez HTTP/1.2\r\n"),
    "HTTP/0.9": b"GET /smuggled\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "another protocol": get(line=b"GET /livez RTSP/1.0\r\n"),
    "lower-case method": get(line=b"get /livez HTTP/1.1\r\n"),
    "no host": b"GET /livez HTTP/1.1\r\n\r\n",
    "two hosts": get(b"Host: elsewhere\r\n"),
}
#: Requests that are whole, in forms that are rare.
FORMS = {
    "absolute form": get(line=b"GET http://elsewhere/livez HTTP/1.1\r\n"),
    "absolute form of nothing": get(line=b"GET http:// HTTP/1.1\r\n"),
    "asterisk": get(line=b"OPTIONS * HTTP/1.1\r\n"),
    "CONNECT": b"CONNECT 127.0.0.1:80 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + HIDDEN,
    "an upgrade": get(b"Connection: Upgrade\r\nUpgrade: websocket\r\n") + HIDDEN,
    "an upgrade to HTTP/2": get(b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n")
    + HIDDEN,
    "an upgrade with a body": post(b"Connection: Upgrade\r\nUpgrade: x\r\nContent-Length: 44\r\n", HIDDEN.ljust(44))
    + HIDDEN,
    "bytes behind close": get(b"Connection: close\r\n") + HIDDEN,
    "bytes behind HTTP/1.0": get(line=b"GET /livez HTTP/1.0\r\n") + HIDDEN,
    "a refused body": post(b"Content-Type: text/plain\r\nContent-Length: 44\r\n", HIDDEN.ljust(44)),
    "a body that waits for 100": post(b"Expect: 100-continue\r\nContent-Length: 44\r\n", HIDDEN.ljust(44)),
}
VECTORS = {
    f"{group}: {name}": vector
    for group, vectors in {"length": LENGTHS, "coding": CODINGS, "line": LINES, "form": FORMS}.items()
    for name, vector in vectors.items()
}
#: Whether the connection goes on depends on whether the body was here before its refusal.
TIMELY = {"form: a body that waits for 100"}


def answers(front: Served, sent: bytes, piece: int) -> list[Answer]:
    """Everything that comes back on one connection until the server closes it."""
    received: list[Answer] = []
    with front.connect() as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for start in range(0, len(sent), piece):
                stream.sendall(sent[start : start + piece])
        with contextlib.suppress(EOFError, ConnectionResetError):
            while True:
                received.append(read_one(stream))
    return received


@pytest.mark.parametrize("name", VECTORS)
def test_a_request_that_can_be_read_in_two_ways_never_becomes_two(strict: Served, name: str) -> None:
    """A7: the marker behind it is answered as itself and last, or not at all; in whatever pieces the bytes come."""
    seen = set()
    for piece in (10**9, 7, 1):
        received = answers(strict, VECTORS[name] + MARKER, piece)
        assert 1 <= len(received) <= 2, received
        for answer in received:
            assert answer.status < 500
            assert b"smuggled" not in answer.body
        markers = [b"/marker" in answer.body for answer in received]
        assert markers in ([False], [False, True]), received
        seen.add(tuple((answer.status, answer.body) for answer in received))
    assert len(seen) == 1 or name in TIMELY, "the same answer however the bytes were cut"


def test_there_are_enough_vectors() -> None:
    assert len(VECTORS) >= 60


def test_requests_in_a_row_are_answered_in_a_row(strict: Served) -> None:
    """A7: pipelining, up to a number of requests; what is beyond it is refused."""
    for count, answered in ((2, 2), (16, 16), (100, 17)):
        sent = b"".join(get(line=b"GET /n%d HTTP/1.1\r\n" % n) for n in range(count))
        received = answers(strict, sent, 10**9)
        assert [f"/n{n}'" in answer.body.decode() for n, answer in enumerate(received[:answered])] == [True] * answered
        assert [answer.code for answer in received[answered:]] == (["overloaded"] if count > answered else [])


def test_a_bad_request_behind_a_call_that_runs_waits_for_its_answer(strict: Served) -> None:
    """A7: and is then refused with an answer of its own."""
    for bad in (b"\0\0\0\0", get(b"X y: 1\r\n"), get(CHUNKED)):
        received = answers(strict, get(line=b"GET /first HTTP/1.1\r\n") + bad, 10**9)
        assert b"/first" in received[0].body
        assert len(received) == 2
