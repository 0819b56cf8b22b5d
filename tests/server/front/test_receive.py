"""Large bodies: they arrive in shared memory directly, on every loop and over TLS, and the ordinary way elsewhere."""

from __future__ import annotations

import asyncio
import gc
import shutil
import socket
import ssl
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import uvicorn
from starlette.types import Message

from shardserve_server.front import protocol
from shardserve_server.front.body import BodyReader
from shardserve_server.front.connection import EXTENSION, Connection, _cannot_fill
from shardserve_server.front.receive import BULK_BYTES, BulkReceiver
from shardserve_server.link.buffers import BufferPool
from shardserve_server.settings import Settings

from .serving import Served, eventually, frame, post_head, read_answer, read_one, serving

MIB = 2**20
GET = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def settings(**more: Any) -> Settings:
    return Settings(port=0, stop_grace_s=1, **more)


@pytest.fixture(params=["uvloop", "asyncio"], scope="module")
def bulk(request: pytest.FixtureRequest) -> Iterator[Served]:
    with serving(settings=settings(event_loop=request.param)) as served:
        yield served


@pytest.fixture
def fills(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of each piece of memory that a connection fills."""
    sizes: list[int] = []

    class Counted(BulkReceiver):
        def __init__(self, home: Any, target: memoryview, received: Callable[[int, int], None]) -> None:
            sizes.append(len(target))
            super().__init__(home, target, received)

    monkeypatch.setattr(protocol, "BulkReceiver", Counted)
    return sizes


def random_bytes(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(size).integers(0, 256, size, np.uint8)


def call_bytes(array: np.ndarray[Any, Any]) -> tuple[bytes, bytes]:
    body = frame("identity", array)
    return post_head("/v1/call", len(body)), body


@pytest.mark.parametrize("size", [BULK_BYTES - 1, BULK_BYTES, BULK_BYTES + 1, 3 * MIB + 17, 20 * MIB])
@pytest.mark.parametrize("first", [0, 1, 100, 70_000, 10**9])
def test_bytes_arrive_as_they_went_however_they_are_cut(bulk: Served, size: int, first: int) -> None:
    sent = random_bytes(size)
    head, body = call_bytes(sent)
    with bulk.connect() as stream:
        stream.sendall(head + body[:first])
        time.sleep(0.01)
        stream.sendall(body[first:])
        np.testing.assert_array_equal(read_answer(stream).arrays[0], sent)


def test_what_follows_a_large_body_is_the_next_request_and_never_part_of_it(bulk: Served, fills: list[int]) -> None:
    sent = random_bytes(2 * MIB)
    head, body = call_bytes(sent)
    with bulk.connect() as stream:
        stream.sendall((head + body + GET) * 3 + head + body)
        for _ in range(3):
            np.testing.assert_array_equal(read_one(stream).arrays[0], sent)
            assert read_one(stream).json == bulk.request("GET", "/livez").json
        np.testing.assert_array_equal(read_one(stream).arrays[0], sent)
    assert fills
    assert sum(fills) < 4 * len(body)


def test_one_connection_takes_large_and_small_bodies_in_turn(bulk: Served, fills: list[int]) -> None:
    with bulk.connect() as stream:
        for size in (MIB, 10, 5 * MIB, 0, 300_000):
            head, body = call_bytes(random_bytes(size))
            stream.sendall(head)
            stream.sendall(body)
            np.testing.assert_array_equal(read_one(stream).arrays[0], random_bytes(size))
    assert len(fills) >= 2


def test_a_body_that_came_whole_while_the_route_did_something_else_is_read_the_ordinary_way() -> None:
    """The next request may be here as well by then, and the connection's news are of that one."""
    connection = Connection.__new__(Connection)
    connection.fill = _cannot_fill
    sent = random_bytes(BULK_BYTES)

    async def receive() -> Message:
        return {"type": "http.request", "body": sent.tobytes(), "more_body": False}

    body = BodyReader(receive, length=len(sent), scope={"extensions": {EXTENSION: connection}})
    assert asyncio.run(body.read_all()) == sent.tobytes()


@pytest.mark.skipif(sys.platform != "linux", reason="the low-water mark is used on Linux")
def test_a_connection_wakes_up_for_each_byte_again_once_its_body_is_here(bulk: Served) -> None:
    sent = random_bytes(4 * MIB)
    head, body = call_bytes(sent)
    for size in (len(body), len(body) - 1, 2 * MIB):
        with bulk.connect() as stream:
            stream.sendall(head)
            for start in range(0, len(body), size):
                stream.sendall(body[start : start + size])
                time.sleep(0.02)
            np.testing.assert_array_equal(read_one(stream).arrays[0], sent)
            for byte in GET:
                stream.sendall(bytes([byte]))
            assert read_one(stream).status == 200
        eventually(lambda: not bulk.connections)


def test_the_server_says_continue_before_a_large_body_once(bulk: Served) -> None:
    sent = random_bytes(3 * MIB)
    body = frame("identity", sent)
    with bulk.connect() as stream:
        stream.sendall(post_head("/v1/call", len(body), Expect="100-continue"))
        assert stream.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        stream.sendall(body)
        np.testing.assert_array_equal(read_answer(stream).arrays[0], sent)


def test_a_client_that_goes_away_while_its_body_arrives_leaves_nothing_behind(bulk: Served, fills: list[int]) -> None:
    head, body = call_bytes(random_bytes(4 * MIB))
    for is_reset in (False, True):
        with bulk.connect() as stream:
            stream.sendall(head + body[: 2 * MIB])
            eventually(lambda: bulk.pool.usage().leases == 1)
            if is_reset:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                stream.close()
        eventually(lambda: bulk.pool.usage().leases == 0)
    assert len(fills) == 2


def test_a_large_body_that_ends_early_is_told_so(bulk: Served) -> None:
    head, body = call_bytes(random_bytes(4 * MIB))
    with bulk.connect() as stream:
        stream.sendall(head + body[: 2 * MIB])
        stream.shutdown(socket.SHUT_WR)
        answer = read_answer(stream)
        assert (answer.status, answer.code) == (400, "bad_frame")
        assert "truncated" in answer.json["error"]["message"]
        assert stream.recv(1) == b""
    eventually(lambda: bulk.pool.usage().leases == 0)


def test_a_call_whose_time_is_over_gives_the_connection_up_and_not_its_memory(bulk: Served) -> None:
    body = frame("identity", random_bytes(4 * MIB), timeout_s=0.2)
    with bulk.connect() as stream:
        stream.sendall(post_head("/v1/call", len(body)) + body[: 2 * MIB])
        answer = read_answer(stream)
        assert (answer.status, answer.code, answer.headers["connection"]) == (504, "deadline_exceeded", "close")
        assert bulk.pool.usage().leases == 0
        stream.sendall(bytes(100_000))
        assert stream.recv(1) == b""


def test_the_rest_of_a_body_that_was_given_up_is_not_the_next_request(bulk: Served) -> None:
    body = frame("identity", random_bytes(MIB), timeout_s=0.2)
    head = post_head("/v1/call", len(body))
    with bulk.connect() as stream:
        stream.sendall(head + body[: MIB // 2])
        assert read_one(stream).code == "deadline_exceeded"
        stream.sendall(body[MIB // 2 :] + GET)
        assert read_one(stream).status == 200


def test_slow_uploads_are_refused_and_cost_the_others_nothing() -> None:
    """A2: a body must finish in the grace and the time of the lowest rate; the large and the small one alike."""
    limits = settings(body_grace_s=0.4, body_min_rate=100 * MIB)
    with serving(settings=limits) as front:
        for size in (10_000, 4 * MIB):
            head, body = call_bytes(random_bytes(size))
            slow = [front.connect() for _ in range(10)]
            for stream in slow:
                stream.sendall(head + body[: size // 2])
            assert all(front.call("identity", random_bytes(MIB)).status == 200 for _ in range(10))
            for stream in slow:
                stream.sendall(b"x")
                answer = read_answer(stream)
                assert (answer.status, answer.code, answer.headers["connection"]) == (408, "too_slow", "close")
                stream.close()
            eventually(lambda: front.pool.usage().leases == 0)
        eventually(lambda: not front.connections)


def test_a_body_that_nobody_reads_is_not_waited_for_either() -> None:
    """A2: also when the answer is out already."""
    with serving(settings=settings(body_grace_s=0.2)) as front, front.connect() as stream:
        stream.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\nx")
        assert read_one(stream).status == 200
        assert stream.recv(1) == b""


def test_another_parser_of_uvicorn_serves_the_app_too() -> None:
    """Without the front's own protocol everything works, only slower."""
    sent = random_bytes(3 * MIB)
    for http in ("h11", "httptools"):
        with serving(settings=settings(), configure=lambda config: setattr(config, "http", http)) as front:  # noqa: B023
            np.testing.assert_array_equal(front.call("identity", sent).arrays[0], sent)
            assert front.request("POST", "/v1/call", body=b"").code == "unsupported_media_type"
            eventually(lambda: front.pool.usage().leases == 0)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl command to make a certificate with")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    subprocess.run([*command, "-keyout", str(path), "-out", f"{path}.crt"], check=True, capture_output=True)
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_large_bodies_arrive_over_tls(certificate: Path, loop: Literal["uvloop", "asyncio"], fills: list[int]) -> None:
    def encrypted(config: uvicorn.Config) -> None:
        config.ssl_certfile = config.ssl_keyfile = str(certificate)

    sent = random_bytes(5 * MIB)
    head, body = call_bytes(sent)
    context = ssl.create_default_context(cafile=f"{certificate}.crt")
    context.check_hostname = False
    with serving(settings=settings(event_loop=loop), configure=encrypted) as front:
        with context.wrap_socket(front.connect()) as stream:
            for _ in range(2):
                stream.sendall(head)
                stream.sendall(body + GET)
                np.testing.assert_array_equal(read_one(stream).arrays[0], sent)
                assert read_one(stream).status == 200
            stream.sendall(head + body[: 2 * MIB])
            eventually(lambda: front.pool.usage().leases == 1)
        eventually(lambda: front.pool.usage().leases == 0)
    assert len(fills) == 3


def test_a_body_that_has_no_room_is_refused_before_it_is_asked_for() -> None:
    """`100 Continue` is said after admission: a client that waits for it never sends a byte of what is refused."""
    pool = BufferPool(kind="memfd", limit_bytes=4 * MIB, spare_bytes=0)
    with serving(pool=pool) as front:
        held = pool.lease(3 * MIB)
        for length, status in ((2 * MIB, 507), (8 * MIB, 413), (2**40, 413)):
            with socket.create_connection(("127.0.0.1", front.port), timeout=10) as stream:
                stream.sendall(post_head("/v1/call", length, Expect="100-continue"))
                answer = read_answer(stream)
            assert answer.status == status
        held.release()


def memory_files() -> int:
    """Open descriptors of shared buffers in this process."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found += descriptor.readlink().name.startswith("memfd:")
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("part", [0.0, 0.5, 0.9])
def test_an_upload_that_breaks_off_gives_its_memory_back_without_the_collector(part: float) -> None:
    """D3: an error that holds the frames which wait for a body would keep it mapped until Python collects garbage."""
    pool = BufferPool(kind="memfd", limit_bytes=2**28, spare_bytes=0)
    with serving(settings=settings(), pool=pool) as served:
        head, body = call_bytes(random_bytes(8 * MIB))
        gc.collect()
        gc.disable()
        try:
            before = memory_files()
            with served.connect() as stream:
                stream.sendall(head + body[: max(2000, int(len(body) * part))])
                eventually(lambda: pool.usage().leases == 1)
            eventually(lambda: pool.usage().leases == 0)
            eventually(lambda: memory_files() == before, within_s=3)
        finally:
            gc.enable()


def test_an_idle_connection_keeps_no_memory_of_the_body_that_it_brought(front: Served) -> None:
    """uvloop remembers the last buffered protocol of a connection, and that one its buffer."""
    if front.settings.event_loop != "uvloop":
        pytest.skip("asyncio remembers nothing")
    x = np.zeros(8 * MIB, np.uint8)
    body = frame("identity", x)
    with socket.create_connection(("127.0.0.1", front.port), timeout=20) as stream:
        stream.sendall(post_head("/v1/call", len(body)) + body)
        assert read_answer(stream).status == 200
        views = [weakref.ref(buffer.view.obj) for spare in front.pool._spare.values() for buffer in spare]
        assert any(view() is not None for view in views)
        front.pool._trim(0)
        eventually(lambda: gc.collect() >= 0 and all(view() is None for view in views))
