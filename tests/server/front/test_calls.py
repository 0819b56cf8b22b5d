"""`POST /v1/call` over a real socket: what comes back, what is refused before it is read, and who goes away."""

from __future__ import annotations

import json
import socket
import threading
import time

import numpy as np
import pytest

from shardserve_proto.errors import from_wire
from shardserve_proto.frames import MEDIA_TYPE, PRELUDE, lay_out
from shardserve_server.link.buffers import BufferPool
from shardserve_server.settings import Settings

from .serving import Served, error_of, eventually, frame, post_head, read_answer, read_one, serving

MIB = 2**20


def usage_returns_to_zero(front: Served) -> None:
    eventually(lambda: front.pool.usage().leases == 0)


@pytest.mark.parametrize("size", [0, 1, 1000, 64 * 1024, 64 * 1024 + 1, 3 * MIB, 20 * MIB])
def test_arrays_of_any_size_come_back_as_they_went(front: Served, size: int) -> None:
    sent = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    answer = front.call("identity", sent)
    assert answer.headers["content-type"] == MEDIA_TYPE
    (received,) = answer.arrays
    np.testing.assert_array_equal(received, sent)
    usage_returns_to_zero(front)


def test_several_arrays_travel_in_one_frame(front: Served) -> None:
    sent = [np.arange(n, dtype=np.float64).reshape(n // 5, 5) for n in (5, 0, 100_000, 5)]
    for received, array in zip(front.call("identity", *sent).arrays, sent, strict=True):
        np.testing.assert_array_equal(received, array)


def test_a_call_without_arrays_is_a_call(front: Served) -> None:
    assert front.call("identity").arrays == []


def test_server_timing_names_the_phases_and_the_totals(front: Served) -> None:
    timing = front.call("identity", np.zeros(3)).headers["server-timing"]
    names = [entry.partition(";")[0] for entry in timing.split(", ")]
    assert names == ["run", "engine", "total"]
    assert "total;dur=" in front.request("GET", "/livez").headers["server-timing"]


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (post_head("/v1/call", None), 411, "length_required"),
        (post_head("/v1/call", None, **{"Transfer-Encoding": "chunked"}), 411, "length_required"),
        (post_head("/v1/call", 10, "application/json"), 415, "unsupported_media_type"),
        (post_head("/v1/call", 10, **{"Content-Encoding": "gzip"}), 415, "unsupported_media_type"),
        (post_head("/v1/call", 2**60), 413, "too_large"),
        (post_head("/v1/call", 16 * 2**30 + 1), 413, "too_large"),
        (post_head("/v1/kernels/identity", MIB + 1, "application/json"), 413, "too_large"),
        (post_head("/v1/kernels/identity", 10, "text/plain"), 415, "unsupported_media_type"),
        (post_head("/v1/kernels/identity", None, "application/json"), 411, "length_required"),
    ],
)
def test_a_body_is_refused_before_a_byte_of_it_is_read(front: Served, head: bytes, status: int, code: str) -> None:
    with socket.create_connection(("127.0.0.1", front.port), timeout=10) as stream:
        stream.sendall(head)
        answer = read_answer(stream)
    assert (answer.status, answer.code) == (status, code)


def test_expect_100_continue_is_answered_only_when_the_body_is_wanted(front: Served) -> None:
    body = frame("identity", np.zeros(MIB))
    with socket.create_connection(("127.0.0.1", front.port), timeout=10) as stream:
        stream.sendall(post_head("/v1/call", len(body), Expect="100-continue"))
        assert stream.recv(100).startswith(b"HTTP/1.1 100 Continue")
        stream.sendall(body)
        assert read_answer(stream).status == 200
        stream.sendall(post_head("/v1/call", 2**60, Expect="100-continue"))
        answer = read_answer(stream)
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        assert stream.recv(1) == b"", "what follows could be taken for another request"


def bad_frames() -> list[tuple[str, bytes, str]]:
    good = frame("identity", np.arange(100.0))
    header_bytes = int.from_bytes(good[8:12], "little")
    segment = lay_out(header_bytes, [800]).offsets[0]
    gap = 16 + header_bytes
    assert gap < segment, "the gap that a case below spoils"
    spoiled = bytearray(good)
    spoiled[gap] = 1
    two = bytearray(frame("identity", np.zeros(1), np.zeros(1)))
    two[-9] = 1  # the gap between both
    return [
        ("empty", b"", "bad_frame"),
        ("short prelude", good[:15], "bad_frame"),
        ("other magic", b"\x00" + good[1:], "bad_frame"),
        ("other version", good[:4] + b"\x02" + good[5:], "bad_frame"),
        ("header over the limit", PRELUDE.pack(b"\x93SSF", 1, 0, 2**31, 0), "too_large"),
        ("header behind the end", PRELUDE.pack(b"\x93SSF", 1, 0, 1000, 0), "bad_frame"),
        ("too many segments", PRELUDE.pack(b"\x93SSF", 1, 0, 1, 2**31) + b"\x80", "bad_frame"),
        ("no map", PRELUDE.pack(b"\x93SSF", 1, 0, 1, 0) + b"\x01", "bad_frame"),
        ("nested bomb", PRELUDE.pack(b"\x93SSF", 1, 0, 15000, 0) + b"\xdd\xff\xff\xff\xff" * 3000, "bad_frame"),
        ("empty map", PRELUDE.pack(b"\x93SSF", 1, 0, 1, 0) + b"\x80", "bad_request"),
        ("segment cut short", good[:-1], "bad_frame"),
        ("bytes behind the end", good + b"\x00", "bad_frame"),
        ("another count of segments", good[:12] + b"\x02\x00\x00\x00" + good[16:], "bad_frame"),
        ("gap behind the header not zero", bytes(spoiled), "bad_frame"),
        ("gap between segments not zero", bytes(two), "bad_frame"),
    ]


@pytest.mark.parametrize(("name", "body", "code"), bad_frames(), ids=[name for name, _, _ in bad_frames()])
def test_a_malformed_frame_is_named_and_the_connection_lives(front: Served, name: str, body: bytes, code: str) -> None:
    with socket.create_connection(("127.0.0.1", front.port), timeout=10) as stream:
        stream.sendall(post_head("/v1/call", len(body)) + body)
        answer = read_answer(stream)
        assert (answer.status in (400, 413), answer.code) == (True, code)
        good = frame("identity", np.arange(3.0))
        stream.sendall(post_head("/v1/call", len(good)) + good)
        np.testing.assert_array_equal(read_answer(stream).arrays[0], [0.0, 1.0, 2.0])
    usage_returns_to_zero(front)


def test_a_frame_longer_than_its_content_length_is_called_truncated(front: Served) -> None:
    body = frame("identity", np.zeros(10_000))
    with socket.create_connection(("127.0.0.1", front.port), timeout=10) as stream:
        stream.sendall(post_head("/v1/call", len(body) - 100) + body[:-100])
        error = error_of(read_answer(stream))
    assert error.code == "bad_frame"
    assert "truncated" in error.message
    usage_returns_to_zero(front)


@pytest.mark.parametrize("sent", [0, 10, 16, 100, 1000, 4 * MIB])
def test_a_body_that_ends_before_its_content_length_is_called_truncated(front: Served, sent: int) -> None:
    body = frame("identity", np.zeros(MIB))
    with socket.create_connection(("127.0.0.1", front.port), timeout=10) as stream:
        stream.sendall(post_head("/v1/call", len(body)) + body[:sent])
        stream.shutdown(socket.SHUT_WR)
        answer = read_answer(stream)
        assert (answer.status, answer.code) == (400, "bad_frame")
        assert "truncated" in answer.json["error"]["message"]
        assert stream.recv(1) == b""
    usage_returns_to_zero(front)


def test_bytes_behind_a_body_are_refused_as_the_request_that_they_are_not(front: Served) -> None:
    body = frame("identity", np.arange(3.0))
    with socket.create_connection(("127.0.0.1", front.port), timeout=10) as stream:
        stream.sendall(post_head("/v1/call", len(body)) + body + b"\x00" * 100)
        assert read_one(stream).status == 200, "the request itself is whole, and has its own answer"
        answer = read_answer(stream)
        assert (answer.status, answer.code, answer.headers["connection"]) == (400, "bad_request", "close")
        assert stream.recv(1) == b""
    assert front.request("GET", "/livez").status == 200


def test_a_refused_body_is_read_for_a_while_so_that_the_answer_arrives(front: Served) -> None:
    length = 64 * MIB
    with socket.create_connection(("127.0.0.1", front.port), timeout=10) as stream:
        stream.sendall(post_head("/v1/call", length, "text/plain"))
        time.sleep(0.05)
        sent = 0
        try:
            while sent < length:
                sent += stream.send(bytes(65536))
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert sent < 16 * MIB, "a refused body is not read to its end"
        answer = read_answer(stream)
    assert (answer.status, answer.code, answer.headers["connection"]) == (415, "unsupported_media_type", "close")


def test_a_small_refused_body_leaves_the_connection_open(front: Served) -> None:
    with socket.create_connection(("127.0.0.1", front.port), timeout=10) as stream:
        for _ in range(3):
            stream.sendall(post_head("/v1/call", 1000, "text/plain") + bytes(1000))
            assert read_answer(stream).status == 415


def test_a_client_that_leaves_during_its_upload_frees_its_buffer(front: Served) -> None:
    body = frame("identity", np.zeros(4 * MIB))
    stream = socket.create_connection(("127.0.0.1", front.port), timeout=10)
    stream.sendall(post_head("/v1/call", len(body)) + body[: 8 * MIB])
    eventually(lambda: front.pool.usage().leases == 1)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    stream.close()  # a reset, as of a process that was killed
    usage_returns_to_zero(front)


@pytest.mark.parametrize("is_json", [False, True])
def test_a_client_that_leaves_during_its_call_cancels_it(
    front: Served, is_json: bool, log: list[dict[str, object]]
) -> None:
    before = front.engine.cancelled
    stream = socket.create_connection(("127.0.0.1", front.port), timeout=10)
    if is_json:
        body = json.dumps({"arguments": [[1]]}).encode()
        stream.sendall(post_head("/v1/kernels/wait", len(body), "application/json") + body)
    else:
        body = frame("wait", np.zeros(MIB))
        stream.sendall(post_head("/v1/call", len(body)) + body)
    eventually(lambda: front.engine.waiting == 1)
    stream.close()
    eventually(lambda: front.engine.cancelled == before + 1)
    usage_returns_to_zero(front)
    assert log == []


def test_a_client_that_leaves_during_its_download_frees_its_buffer(front: Served) -> None:
    body = frame("identity", np.zeros(8 * MIB))
    stream = socket.create_connection(("127.0.0.1", front.port), timeout=10)
    stream.sendall(post_head("/v1/call", len(body)) + body)
    assert stream.recv(100).startswith(b"HTTP/1.1 200")
    assert front.pool.usage().leases >= 1
    stream.close()
    usage_returns_to_zero(front)


def test_the_deadline_of_a_call_is_answered_with_504(front: Served) -> None:
    started = time.monotonic()
    answer = front.call("wait", np.zeros(3), timeout_s=0.2)
    assert (answer.status, answer.code) == (504, "deadline_exceeded")
    assert time.monotonic() - started < 1.0


def test_the_deadline_counts_from_the_arrival_of_the_request(front: Served) -> None:
    body = frame("identity", np.zeros(MIB), timeout_s=0.3)
    with socket.create_connection(("127.0.0.1", front.port), timeout=10) as stream:
        stream.sendall(post_head("/v1/call", len(body)) + body[:MIB])
        answer = read_answer(stream)
    assert (answer.status, answer.code) == (504, "deadline_exceeded")
    usage_returns_to_zero(front)


def test_a_call_without_a_timeout_gets_the_servers() -> None:
    with serving(settings=Settings(port=0, timeout_s=0.2, stop_grace_s=1)) as front:
        assert front.call("wait", np.zeros(3)).status == 504


def test_the_servers_own_body_limit_is_exact() -> None:
    body = frame("identity", np.zeros(100))
    for limit, status in ((len(body), 200), (len(body) - 1, 413)):
        with serving(settings=Settings(port=0, body_bytes=limit, stop_grace_s=1)) as front:
            assert front.call("identity", np.zeros(100)).status == status


def test_room_that_is_not_there_is_507_and_room_that_never_will_be_is_413() -> None:
    pool = BufferPool(kind="memfd", limit_bytes=4 * MIB, spare_bytes=0)
    with serving(pool=pool) as front:
        held = pool.lease(3 * MIB)
        answer = front.call("identity", np.zeros(MIB + 1, np.uint8))
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (507, "out_of_memory", "1")
        assert answer.json["error"]["details"]["free_bytes"] == MIB
        assert answer.json["error"]["id"]
        held.release()
        with socket.create_connection(("127.0.0.1", front.port), timeout=10) as stream:
            body = frame("identity", np.zeros(5 * MIB, np.uint8))
            stream.sendall(post_head("/v1/call", len(body)) + body[:1000])
            assert read_answer(stream).code == "too_large"
        assert front.call("identity", np.zeros(MIB, np.uint8)).status == 200


@pytest.mark.parametrize(
    ("state", "code", "retry"), [("starting", "engine_starting", "3"), ("down", "engine_lost", "60")]
)
def test_an_engine_that_is_not_there_is_503_before_the_body_is_read(
    front: Served, state: str, code: str, retry: str
) -> None:
    front.engine.state, front.engine.reason = state, "it died 3 times"  # type: ignore[assignment]
    try:
        with socket.create_connection(("127.0.0.1", front.port), timeout=10) as stream:
            stream.sendall(post_head("/v1/call", 2**30))
            answer = read_answer(stream)
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, code, retry)
        ready = front.request("GET", "/readyz")
        assert (ready.status, ready.code) == (503, code)
        if state == "down":
            assert ready.json["error"]["message"] == "it died 3 times"
        assert front.request("GET", "/livez").status == 200
        assert front.request("GET", "/v1/info").status == 200, "what the engine told last stays true"
    finally:
        front.engine.state = "ready"


def test_a_fault_is_a_500_with_an_id_that_finds_one_line_and_tells_nothing_else(
    front: Served, log: list[dict[str, object]]
) -> None:
    answer = front.call("fault", np.zeros(3))
    assert (answer.status, answer.code) == (500, "internal_error")
    assert b"secret" not in answer.body
    assert b"KeyError" not in answer.body
    (line,) = log
    assert line["error_id"] == answer.json["error"]["id"]
    assert isinstance(line["exc_info"], KeyError)


def test_an_id_that_the_engine_gave_is_kept(front: Served, log: list[dict[str, object]]) -> None:
    answer = front.call("crash", np.zeros(3))
    assert answer.json["error"]["id"] == "abc123"
    assert [line["error_id"] for line in log] == ["abc123"]


def test_identical_headers_are_read_once(front: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    monkeypatch.setattr("shardserve_server.front.calls.check_call", lambda _: read.append(1))
    for value in range(5):
        assert front.call("identity", np.full(77, float(value))).arrays[0][0] == value
    assert len(read) == 1


def test_many_connections_at_once_do_not_mix(front: Served) -> None:
    def work(n: int) -> None:
        for size in (10, 50_000, 300_000):
            sent = np.full(size, n, np.uint8)
            np.testing.assert_array_equal(front.call("identity", sent).arrays[0], sent)
        done.append(n)

    done: list[int] = []
    threads = [threading.Thread(target=work, args=(n,)) for n in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == list(range(24))
    usage_returns_to_zero(front)


def test_pipelined_calls_are_answered_in_order(front: Served) -> None:
    sent = [np.full(n, n, np.float64) for n in (3, 40_000, 5)]
    bodies = [frame("identity", array) for array in sent]
    with socket.create_connection(("127.0.0.1", front.port), timeout=10) as stream:
        stream.sendall(b"".join(post_head("/v1/call", len(body)) + body for body in bodies))
        stream_file = stream
        for array in sent:
            np.testing.assert_array_equal(read_one(stream_file).arrays[0], array)


def test_an_error_can_be_read_back_as_its_class(front: Served) -> None:
    answer = front.request("GET", "/v1/kernels/identify")
    error = from_wire(answer.json, status=answer.status)
    assert type(error).__name__ == "NotFound"
    assert "did you mean 'identity'" in error.message
