"""The limits of a connection: heads, bodies, idle and slow clients, and how many there may be."""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from shardserve_proto.frames import MEDIA_TYPE
from shardserve_server.link.buffers import BufferPool
from shardserve_server.settings import Settings

from .serving import Answer, Served, eventually, frame, post_head, read_answer, read_one, serving

MIB = 2**20
GET = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
HEAD_BYTES = 32 * 1024


def settings(**more: Any) -> Settings:
    return Settings(port=0, stop_grace_s=1, **more)


@pytest.fixture(scope="module")
def hasty() -> Iterator[Served]:
    """A front whose deadlines are short."""
    with serving(settings=settings(head_timeout_s=0.3, body_grace_s=0.5, keep_alive_s=1)) as served:
        yield served


def get(padding: int = 0, *, fields: int = 1, path: str = "/livez") -> bytes:
    """A request with so many header fields, whose head is padded to so many bytes."""
    lines = ["Host: 127.0.0.1", *(f"x-{n}: 1" for n in range(fields - 1))]
    head = "\r\n".join([f"GET {path} HTTP/1.1", *lines, "", ""])
    if padding:
        head = head[:-4] + "\r\nx-pad: " + "x" * (padding - len(head) - 9) + "\r\n\r\n"
        assert len(head) == padding
    return head.encode()


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def flood(stream: socket.socket, piece: bytes, times: int) -> int:
    """Send until the other end has had enough; the bytes that went."""
    sent = 0
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for _ in range(times):
            stream.sendall(piece)
            sent += len(piece)
    return sent


def is_closed(stream: socket.socket) -> bool:
    with contextlib.suppress(ConnectionResetError):
        return stream.recv(1) == b""
    return True


def assert_memory_stays_flat(attack: Callable[[], object], *, times: int, batch_bytes: int = MIB // 2) -> None:
    """Memory may grow while caches fill; what grows in every batch leaks."""
    growth = []
    for _ in range(6):
        before = resident_bytes()
        for _ in range(times):
            attack()
        growth.append(resident_bytes() - before)
        if growth[-1] < batch_bytes:
            return
    raise AssertionError(growth)


def test_memory_that_leaks_is_seen() -> None:
    """The control of the tests that hold memory to be flat."""
    leak: list[mmap.mmap] = []

    def attack() -> None:
        leak.append(mmap.mmap(-1, MIB))  # memory that nothing else has used before
        leak[-1].write(b"x" * MIB)

    with pytest.raises(AssertionError):
        assert_memory_stays_flat(attack, times=2)


# ---- A1


@pytest.mark.parametrize("beginning", [b"", b"\r\n", b"G", b"GET /livez HTTP/1.1\r\nHost: 127", GET[:-1]])
def test_a_head_that_does_not_arrive_whole_is_refused_in_time(hasty: Served, beginning: bytes) -> None:
    """A1: from the first byte on, or from the connection's start."""
    with hasty.connect() as stream:
        stream.sendall(beginning)
        answer = read_answer(stream)
        assert (answer.status, answer.code, answer.headers["connection"]) == (408, "too_slow", "close")
        assert is_closed(stream)


def test_a_head_that_trickles_in_is_refused_in_time(hasty: Served) -> None:
    """A1: each byte does not begin the time anew; nor on a connection that was used before."""
    for beginning in (b"", GET):
        with hasty.connect() as stream:
            stream.sendall(beginning)
            if beginning:
                assert read_one(stream).status == 200
            started = time.monotonic()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for byte in GET[:20]:
                    stream.sendall(bytes([byte]))
                    time.sleep(0.05)
            assert read_answer(stream).code == "too_slow"
            assert time.monotonic() - started < 2


def test_line_ends_do_not_keep_an_idle_connection_open(hasty: Served) -> None:
    """A1, A5: what precedes a request is not a request."""
    with hasty.connect() as stream:
        stream.sendall(GET)
        assert read_one(stream).status == 200
        stream.sendall(b"\r\n")
        assert is_closed(stream), "after keep_alive_s"


def test_a_head_may_come_in_any_pieces(hasty: Served) -> None:
    """A1: split at every byte."""
    with hasty.connect() as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for cut in range(1, len(GET)):
            stream.sendall(GET[:cut])
            time.sleep(0.001)
            stream.sendall(GET[cut:])
            assert read_one(stream).status == 200


@pytest.mark.parametrize("excess", [-1, 0, 1])
@pytest.mark.parametrize("piece", [100, 10**9])
def test_the_size_of_a_head_is_limited_exactly(hasty: Served, excess: int, piece: int) -> None:
    """A1, A3: 32 KiB, however it is cut, also on a connection in use."""
    head = get(HEAD_BYTES + excess)
    with hasty.connect() as stream:
        for _ in range(2):
            for start in range(0, len(head), piece):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    stream.sendall(head[start : start + piece])
            if excess > 0:
                answer = read_answer(stream)
                assert (answer.status, answer.code, answer.headers["connection"]) == (431, "head_too_large", "close")
                break
            assert read_one(stream).status == 200


def test_a_body_behind_a_head_does_not_count_as_head(hasty: Served) -> None:
    """A3: the limit is the head's own."""
    body = frame("identity", np.zeros(HEAD_BYTES, np.uint8))
    with hasty.connect() as stream:
        stream.sendall(post_head("/v1/call", len(body)) + body)
        assert read_answer(stream).status == 200


@pytest.mark.parametrize(("fields", "status"), [(99, 200), (100, 200), (101, 431), (3000, 431)])
def test_the_fields_of_a_head_are_limited_exactly(hasty: Served, fields: int, status: int) -> None:
    """A1, A3: 100 fields."""
    with hasty.connect() as stream:
        stream.sendall(get(fields=fields))
        answer = read_answer(stream)
    assert answer.status == status
    if status != 200:
        assert answer.code == "head_too_large"


def test_a_second_head_behind_a_request_has_the_same_limit(hasty: Served) -> None:
    """A1: also when both came at once; the first request has its own answer before."""
    with hasty.connect() as stream:
        stream.sendall(GET + get(HEAD_BYTES + 1))
        assert read_one(stream).status == 200
        assert read_answer(stream).code == "head_too_large"


def test_floods_of_header_bytes_are_cut_off_and_leave_no_memory_behind(hasty: Served) -> None:
    """A1: 8 MiB in one field, and 20,000 fields, 200 times; less than 2 MiB stays."""
    floods = [(b"x: " + b"y" * 65533, 128), (b"x-field: some value\r\n" * 1000, 20)]

    def attack() -> None:
        for piece, times in floods:
            with hasty.connect() as stream:
                stream.sendall(GET[:-2])
                assert flood(stream, piece, times) < 8 * MIB
                with contextlib.suppress(ConnectionResetError):
                    assert read_answer(stream).code == "head_too_large"

    assert_memory_stays_flat(attack, times=40)
    eventually(lambda: not hasty.connections)


# ---- A3


@pytest.mark.parametrize("excess", [-1, 0, 1])
def test_the_size_of_a_body_is_limited_exactly_and_before_it_is_read(excess: int) -> None:
    """A3: limit - 1, limit, limit + 1."""
    body = frame("identity", np.zeros(1000, np.uint8))
    with serving(settings=settings(body_bytes=len(body) - excess, json_bytes=1000)) as front:
        with front.connect() as stream:
            stream.sendall(post_head("/v1/call", len(body)))
            if excess <= 0:
                stream.sendall(body)
            answer = read_answer(stream)
            assert (answer.status, excess) in ((200, excess), (413, 1))
        text = b'{"arguments": [[1.0]]}'
        text += b" " * (1000 + excess - len(text))
        assert front.json("/v1/kernels/identity", text).status == (413 if excess > 0 else 200)


@pytest.mark.parametrize("error", [-1, 1, 1000])
def test_a_content_length_that_lies_is_found_out(hasty: Served, error: int) -> None:
    """A3: too short, the frame is not whole; too long, bytes are missing, or they are too many."""
    body = frame("identity", np.zeros(100_000, np.uint8))
    with hasty.connect() as stream:
        stream.sendall(post_head("/v1/call", len(body) + error) + body)
        answer = read_answer(stream)
    assert (answer.status, answer.code) == (400, "bad_frame")


# ---- A4


@pytest.mark.parametrize("path", ["/v1/call", "/livez"])
@pytest.mark.parametrize("chunk", [b"1\r\nx\r\n", b"1;" + b"e" * 200 + b"\r\nx\r\n", b"0\r\n" + b"x: y\r\n" * 10])
def test_floods_of_chunks_cost_nothing(hasty: Served, path: str, chunk: bytes) -> None:
    """A4: a chunked body is refused or ignored at its head; chunks, extensions and trailers are never collected."""

    piece = chunk * (65_536 // len(chunk))

    def attack(chunks: int) -> Answer:
        with hasty.connect() as stream:
            headers = {"Transfer-Encoding": "chunked"}
            method = b"POST" if path == "/v1/call" else b"GET"
            stream.sendall(post_head(path, None, MEDIA_TYPE, **headers).replace(b"POST", method, 1))
            flood(stream, piece, chunks * len(chunk) // len(piece))
            return read_one(stream)

    answer = attack(65_536)
    assert answer.status == (411 if path == "/v1/call" else 200)
    assert_memory_stays_flat(lambda: attack(1_000_000), times=3)
    eventually(lambda: not hasty.connections)


# ---- A5


def test_idle_and_half_open_connections_do_not_crowd_out_work() -> None:
    """A5: all good requests succeed, and afterwards the idle ones are gone."""
    with serving(settings=settings(head_timeout_s=2)) as front:
        before = len(os.listdir("/proc/self/fd"))
        idle = [front.connect() for _ in range(250)]
        for stream in idle[:50]:
            stream.sendall(GET[:30])
        for _ in range(20):
            assert front.call("identity", np.arange(3.0)).status == 200
        eventually(lambda: not front.connections)
        for stream in idle:
            stream.close()
        assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_a_connection_too_many_takes_the_place_of_an_idle_one() -> None:
    """A5: first of one that never asked for anything."""
    with serving(settings=settings(connections=8)) as front, contextlib.ExitStack() as stack:
        used = stack.enter_context(front.connect())
        used.sendall(GET)
        assert read_one(used).status == 200
        idle = [stack.enter_context(front.connect()) for _ in range(20)]
        assert front.request("GET", "/livez").status == 200
        assert is_closed(idle[0])
        used.sendall(GET)
        assert read_one(used).status == 200
        assert len(front.connections) <= 8


def test_when_every_connection_is_busy_a_new_one_is_told_so() -> None:
    """A5: with the code to try again on."""
    with serving(settings=settings(connections=2)) as front, contextlib.ExitStack() as stack:
        body = frame("wait", np.zeros(1))
        for _ in range(2):
            stack.enter_context(front.connect()).sendall(post_head("/v1/call", len(body)) + body)
        eventually(lambda: front.engine.waiting == 2)
        answer = read_answer(stack.enter_context(front.connect()))
        assert (answer.status, answer.code) == (503, "overloaded")


# ---- A6


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_client_that_stops_reading_is_cut_off_and_its_result_let_go(loop: str) -> None:
    """A6: and the others are served meanwhile."""
    size = 24 * MIB
    body = frame("identity", np.zeros(size, np.uint8))
    pool = BufferPool(kind="memfd", limit_bytes=2**29, spare_bytes=2**28)
    with serving(settings=settings(send_timeout_s=0.5, event_loop=loop), pool=pool) as front:
        stopped = [front.connect(SO_RCVBUF=65536) for _ in range(4)]
        for stream in stopped:
            stream.sendall(post_head("/v1/call", len(body)) + body)
        for _ in range(10):
            assert front.call("identity", np.arange(1000.0)).status == 200
        eventually(lambda: not front.connections)
        eventually(lambda: pool.usage().leases == 0)
        for stream in stopped:
            stream.close()


def test_a_slow_reader_that_goes_on_reading_gets_everything() -> None:
    """A6: more slowly than the deadline, but never too slowly."""
    size = 8 * MIB
    sent = np.random.default_rng(1).integers(0, 256, size, np.uint8)
    body = frame("identity", sent)
    with serving(settings=settings(send_timeout_s=0.3)) as front, front.connect(SO_RCVBUF=65536) as stream:
        stream.sendall(post_head("/v1/call", len(body)) + body)
        received = b""
        started = time.monotonic()
        while len(received) < size:
            piece = stream.recv(256 * 1024)
            assert piece
            received += piece
            time.sleep(0.02)
        assert time.monotonic() - started > 0.3
        assert received.endswith(sent[-1000:].tobytes())


def test_a_client_that_asks_and_never_reads_small_answers_is_cut_off_too() -> None:
    """A6: answers below the write buffer's limit count as well."""
    limits = settings(send_timeout_s=0.5, keep_alive_s=30)
    with serving(settings=limits) as front, front.connect(SO_RCVBUF=4096) as stream:
        stream.settimeout(0.2)
        with contextlib.suppress(TimeoutError, BrokenPipeError, ConnectionResetError):
            for _ in range(2000):
                stream.sendall(GET.replace(b"/livez", b"/openapi.json"))
        eventually(lambda: not front.connections)
