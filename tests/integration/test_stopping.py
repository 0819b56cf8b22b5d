"""How a server stops: what each signal finishes, refuses and gives up, and the status that the process ends with."""

from __future__ import annotations

import http.client
import io
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from shardserve_proto.frames import MEDIA_TYPE
from shardserve_proto.programs import Program, Step
from tests.server.front.serving import Answer, eventually, frame, post_head, read_answer, request
from tests.server.link.harness import is_alive

from .load import load
from .serving import RunningServer, launch

MIB = 2**20
STOPPED, GAVE_UP, IDLE, QUIT = 0, 3, 4, 131


@contextmanager
def serving(*options: str, **environment: str) -> Iterator[RunningServer]:
    """A server, of which nothing is left when it has stopped."""
    with launch(*options, environment=environment) as server:
        engine = server.engine_pid
        yield server
        server.process.wait(20)
    eventually(lambda: not is_alive(engine), within_s=5.0)


def slow_upload(server: RunningServer, half_sent: threading.Event, nbytes: int, seconds: float) -> Answer:
    """A call whose body takes some seconds to arrive."""
    body = memoryview(frame("sum", np.ones(nbytes // 8)))
    pieces = 40
    step = -(-len(body) // pieces)
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as stream:
        stream.sendall(post_head("/v1/call", len(body)))
        for number in range(pieces):
            stream.sendall(body[number * step : (number + 1) * step])
            if number == pieces // 2:
                half_sent.set()
            time.sleep(seconds / pieces)
        return read_answer(stream)


def slow_download(server: RunningServer, half_read: threading.Event, nbytes: int, seconds: float) -> bytes:
    """An array that is read slowly; the whole answer."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as stream:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        stream.sendall(b"GET /v1/arrays/big HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        received = bytearray()
        pieces = 40
        while piece := stream.recv(nbytes // pieces):
            received += piece
            if len(received) > nbytes // 2:
                half_read.set()
            if half_read.is_set() and len(received) >= nbytes:
                break
            time.sleep(seconds / pieces * len(piece) / (nbytes // pieces))
        return bytes(received)


def keep(server: RunningServer, array: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    file = io.BytesIO()
    np.save(file, array)
    headers = {"Content-Type": "application/x-npy"}
    answer = request(server.port, "POST", "/v1/arrays?name=big", body=file.getvalue(), headers=headers)
    assert answer.status == 201, answer.body


def drain_under_load(nbytes: int, seconds: float) -> str:
    """Promise F1: SIGTERM amid small calls, an upload and a download; nothing that was accepted is lost."""
    big = np.arange(nbytes / 8)
    with serving(SHARDSERVE_DRAIN_DELAY_S="0.5") as server:
        keep(server, big)
        half_sent, half_read = threading.Event(), threading.Event()
        with load(server.port) as made, ThreadPoolExecutor(2) as threads:
            upload = threads.submit(slow_upload, server, half_sent, nbytes, seconds)
            download = threads.submit(slow_download, server, half_read, nbytes, seconds)
            assert half_sent.wait(60)
            assert half_read.wait(60)
            idle = socket.create_connection(("127.0.0.1", server.port))
            assert not upload.done()
            assert not download.done()
            before = made.outcomes["right"]
            server.process.send_signal(signal.SIGTERM)
            told = time.monotonic()
            eventually(lambda: made.first_refusal is not None, within_s=5.0)
            ready, alive = server.request("GET", "/readyz"), server.request("GET", "/livez")
            assert (ready.status, ready.code, ready.headers["connection"]) == (503, "draining", "close")
            assert alive.status == 200
            idle.sendall(b"GET /v1/info HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert read_answer(idle).code == "draining", "an old connection hears it too"
            idle.close()
            answer, received = upload.result(60), download.result(60)
            status = server.process.wait(30)
            took = time.monotonic() - told
        assert answer.status == 200
        assert answer.arrays[0] == nbytes // 8
        sent_array = np.load(io.BytesIO(received[received.index(b"\x93NUMPY") :]))
        np.testing.assert_array_equal(sent_array, big)
        assert status == STOPPED
        assert set(made.outcomes) <= {"right", "refused", "unanswered"}, made.outcomes
        assert before > 0
        assert made.outcomes["refused"] > 0
        return (
            f"upload and download of {nbytes // MIB} MiB in flight, {dict(made.outcomes)} small calls; "
            f"exit status {status} {took:.1f} s after SIGTERM"
        )


def test_sigterm_refuses_what_is_new_and_finishes_what_was_accepted() -> None:
    print(drain_under_load(64 * MIB, 3.0))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_sigterm_with_a_gibibyte_on_its_way() -> None:
    print(drain_under_load(1024 * MIB, 20.0))


@contextmanager
def four_long_calls(server: RunningServer, *, products: int = 40) -> Iterator[list[Future[Answer]]]:
    """One runs, for some seconds; the others wait for it."""
    steps = tuple(Step(kernel="matmul", operands=(n, 0)) for n in range(products))
    program = Program(inputs=1, steps=steps, outputs=(products,))
    body = frame(program, np.zeros((1100, 1100)))
    server.call(program, np.zeros((1100, 1100)))  # so that none of them is compiled
    headers = {"Content-Type": MEDIA_TYPE}
    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(request, server.port, "POST", "/v1/call", body=body, headers=headers) for _ in range(4)]
        time.sleep(0.7)
        yield calls


def codes(calls: list[Future[Answer]]) -> list[str]:
    return sorted("right" if call.result(30).status == 200 else call.result().code for call in calls)


@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGTERM, signal.SIGTERM]])
def test_a_fast_stop_finishes_what_runs_and_refuses_what_waits(signals: list[int]) -> None:
    """Promise F2. An upload that is still on its way is among what waits."""
    with serving() as server, four_long_calls(server) as calls:
        arriving = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        body = frame("sum", np.ones(MIB))
        arriving.sendall(post_head("/v1/call", len(body)) + body[: len(body) // 2])
        time.sleep(0.3)
        for number in signals:
            server.process.send_signal(number)
            time.sleep(0.1)
        found = read_answer(arriving)
        arriving.close()
        assert (found.status, found.code) == (503, "draining")
        assert set(codes(calls)) == {"draining", "right"}
        assert server.process.wait(10) == GAVE_UP


def test_calls_that_take_longer_than_the_grace_are_given_up() -> None:
    with serving(SHARDSERVE_STOP_GRACE_S="0.3") as server, four_long_calls(server, products=120) as calls:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == GAVE_UP
        assert {"draining", "engine_lost"} <= set(codes(calls)) <= {"draining", "engine_lost", "right"}


@pytest.mark.parametrize("signals", [[signal.SIGQUIT], [signal.SIGINT, signal.SIGINT]])
def test_sigquit_and_a_second_interrupt_end_it_at_once(signals: list[int]) -> None:
    with serving() as server, four_long_calls(server) as calls:
        sent = time.monotonic()
        for number in signals:
            server.process.send_signal(number)
            time.sleep(0.1)
        assert server.process.wait(10) == QUIT
        assert time.monotonic() - sent < 2.0
        outcomes = {type(call.exception(10)) if call.exception(10) else call.result().code for call in calls}
        assert outcomes <= {http.client.RemoteDisconnected, ConnectionResetError, "draining"}
        assert outcomes != {"draining"}, "what ran was cut off"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_without_work_stops_at_once_with_status_0(number: int) -> None:
    with (
        serving() as server,
        socket.create_connection(("127.0.0.1", server.port)),
        socket.create_connection(("127.0.0.1", server.port)) as half,
    ):
        half.sendall(b"POST /v1/call HTTP/1.1\r\nHost: ")
        sent = time.monotonic()
        assert server.stop(number) == STOPPED
        assert time.monotonic() - sent < 3.0


def test_sigterm_before_the_engine_is_ready_stops_it_too() -> None:
    with launch(wait=False) as server:
        assert server.stop(signal.SIGTERM) == STOPPED


def test_an_idle_server_ends_with_a_status_of_its_own() -> None:
    """Probes are no use of it; calls are."""
    with serving("--exit-after-idle", "2") as server:
        until = time.monotonic() + 3.0
        while time.monotonic() < until:
            assert server.json("dot", {"arguments": [[1, 2], [3, 4]]}).status == 200
            time.sleep(0.2)
        started = time.monotonic()
        while server.process.poll() is None and time.monotonic() < started + 15:
            with suppress(OSError):
                server.request("GET", "/readyz")
            time.sleep(0.2)
        assert server.process.wait(1) == IDLE
        assert 1.5 < time.monotonic() - started < 10.0


@pytest.mark.parametrize("stderr", ["/dev/full", "a pipe without a reader", "closed"])
def test_a_log_and_an_output_that_nobody_reads_do_not_end_it(stderr: str) -> None:
    """Promise F8, the part of the log: an engine's death and a stop go on without it."""
    reader, writer = os.pipe()
    os.close(reader)
    target = os.open("/dev/full", os.O_WRONLY) if stderr == "/dev/full" else writer
    saved = os.dup(2)
    try:
        os.close(2) if stderr == "closed" else os.dup2(target, 2)
        starting = launch(wait=False)
        server = starting.__enter__()
    finally:
        os.dup2(saved, 2)
    try:
        assert server.process.stdout is not None
        server.process.stdout.close()
        server.wait_ready()
        os.kill(server.engine_pid, signal.SIGKILL)
        eventually(lambda: not server.is_ready())
        server.wait_ready()
        assert server.json("dot", {"arguments": [[1, 2], [3, 4]]}).status == 200
        assert server.stop() == STOPPED
    finally:
        starting.__exit__(None, None, None)
        for descriptor in {saved, writer, target}:
            os.close(descriptor)


def test_a_signal_to_the_whole_group_still_drains() -> None:
    """As systemd sends it, to front and engine both."""
    with serving() as server, four_long_calls(server) as calls:
        for pid in (server.engine_pid, server.pid):
            os.kill(pid, signal.SIGTERM)
        assert codes(calls) == ["right"] * 4
        assert server.process.wait(20) == STOPPED


def test_an_engine_that_dies_during_the_drain_is_told_by_the_status() -> None:
    with serving() as server, four_long_calls(server) as calls:
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        os.kill(server.engine_pid, signal.SIGKILL)
        assert "engine_lost" in codes(calls)
        assert server.process.wait(20) == GAVE_UP


def test_a_server_that_never_has_an_engine_is_idle_too(tmp_path: Path) -> None:
    options = ("--engine-socket", str(tmp_path / "none.sock"), "--exit-after-idle", "0.5")
    with launch(*options, devices=None, wait=False, environment={"SHARDSERVE_ENGINE_START_TIMEOUT_S": "1"}) as server:
        assert server.process.wait(10) == IDLE
