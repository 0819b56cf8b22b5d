"""Processes that die: the engine under a call, three times, the front under its engine, and both in good order."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time

import numpy as np
import pytest

from shardserve_proto.programs import Program, Step
from tests.server.front.serving import Answer, eventually, frame, post_head, request
from tests.server.link.harness import is_alive

from .serving import RunningServer, launch


def long_program() -> Program:
    """Some seconds of matrix products on two cores."""
    steps = tuple(Step(kernel="matmul", operands=(n, 0)) for n in range(60))
    return Program(inputs=1, steps=steps, outputs=(60,))


def call_in_thread(server: RunningServer) -> tuple[threading.Thread, list[tuple[float, Answer]]]:
    """A call that takes long; the thread, and when which answer came."""
    body = frame(long_program(), np.zeros((1500, 1500)))
    answers: list[tuple[float, Answer]] = []

    def work() -> None:
        answer = request(
            server.port, "POST", "/v1/call", body=body, headers={"Content-Type": "application/vnd.shardserve.frame"}
        )
        answers.append((time.monotonic(), answer))

    thread = threading.Thread(target=work)
    thread.start()
    return thread, answers


def kill_engine(server: RunningServer) -> float:
    os.kill(server.engine_pid, signal.SIGKILL)
    return time.monotonic()


def test_a_killed_engine_is_a_typed_error_at_once_and_the_next_call_works() -> None:
    with launch() as server:
        assert server.call("exp", np.zeros(10)).arrays[0].tolist() == [1.0] * 10
        front, first_engine = server.pid, server.engine_pid
        thread, answers = call_in_thread(server)
        time.sleep(1.0)
        assert not answers, "the call was to be running when the engine is killed"
        killed = kill_engine(server)
        thread.join(10)
        ((answered, answer),) = answers
        assert answered - killed < 1.0
        assert (answer.status, answer.code) == (503, "engine_lost")
        assert int(answer.headers["retry-after"]) >= 1
        assert server.request("GET", "/livez").status == 200

        refused = server.call("exp", np.zeros(10))
        assert (refused.status, refused.code) == (503, "engine_starting")
        server.wait_ready()
        assert server.call("exp", np.zeros(10)).arrays[0].tolist() == [1.0] * 10
        assert server.call("exp", np.zeros(300_000)).arrays[0].sum() == 300_000
        assert server.process.poll() is None
        assert (server.pid, is_alive(front)) == (front, True)
        assert server.engine_pid != first_engine


def test_three_deaths_in_a_minute_keep_it_down_and_readyz_says_why() -> None:
    with launch(devices=1) as server:
        for deaths in range(3):
            kill_engine(server)
            eventually(lambda: not server.is_ready())
            if deaths < 2:
                server.wait_ready()
        eventually(lambda: "stays down" in server.request("GET", "/readyz").json["error"]["message"])
        ready = server.request("GET", "/readyz")
        assert (ready.status, ready.code) == (503, "engine_lost")
        assert "died 3 times within 60 s (last: signal 9)" in ready.json["error"]["message"]
        assert server.call("exp", np.zeros(3)).code == "engine_lost"
        assert server.request("GET", "/livez").status == 200
        assert server.stop() == 0


def test_a_killed_front_takes_its_engine_with_it() -> None:
    with launch(devices=1) as server:
        engine = server.engine_pid
        server.process.kill()
        killed = time.monotonic()
        server.process.wait()
        eventually(lambda: not is_alive(engine), within_s=5.0)
        assert time.monotonic() - killed < 5.0


def test_a_front_killed_while_its_engine_loads_takes_it_along_too() -> None:
    with launch(devices=1, wait=False) as server:
        engine = server.engine_pid
        server.process.kill()
        server.process.wait()
        eventually(lambda: not is_alive(engine), within_s=5.0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_front_and_engine_in_good_order(number: int) -> None:
    with launch(devices=1) as server:
        engine = server.engine_pid
        assert server.stop(number) == 0
        eventually(lambda: not is_alive(engine), within_s=1.0)


def test_a_signal_stops_a_server_whose_engine_still_loads() -> None:
    with launch(devices=1, wait=False) as server:
        assert server.stop() == 0


def test_a_call_that_runs_when_the_signal_comes_is_answered() -> None:
    with launch() as server:
        server.call("matmul", np.ones((600, 600)), np.ones((600, 600)))
        body = frame("matmul", np.ones((600, 600)), np.ones((600, 600)))
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as stream:
            stream.sendall(post_head("/v1/call", len(body)) + body)
            time.sleep(0.02)
            server.process.send_signal(signal.SIGTERM)
            assert stream.recv(100).startswith(b"HTTP/1.1 200")
            while stream.recv(2**20):
                pass
        assert server.process.wait(20) == 0


def test_the_server_stops_with_the_program_that_holds_its_standard_input() -> None:
    with launch("--stop-at-eof", devices=1, wait=False, stdin=True) as server:
        assert server.process.stdin is not None
        server.process.stdin.close()
        assert server.process.wait(20) == 0
