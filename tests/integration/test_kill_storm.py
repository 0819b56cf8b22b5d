"""Promise F3: `kill -9` of front or engine at any moment, under load, with a supervisor and clients that retry."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import shardserve as ss
from tests.server.link.harness import is_alive

from .serving import children

CLIENTS = 4
READY_WITHIN_S = 10.0


@dataclass
class Supervisor:
    """Starts a server on one port again whenever it ends, as systemd and container engines do."""

    port: int
    starts: int = 0
    process: subprocess.Popen[bytes] | None = None
    _is_stopping: bool = False
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        argv = [sys.executable, "-m", "shardserve_server", "serve", "--port", str(self.port), "--devices", "2"]
        own = {name: value for name, value in os.environ.items() if not name.startswith("SHARDSERVE_")}
        while not self._is_stopping:
            with subprocess.Popen(argv, env=own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
                self.process = process
                self.starts += 1
                process.wait()

    def family(self) -> list[int]:
        """The front, and its engine if it has one now."""
        if self.process is None or not is_alive(self.process.pid):
            return []
        try:
            return [self.process.pid, *children(self.process.pid)]
        except FileNotFoundError:
            return []

    def stop(self) -> int:
        self._is_stopping = True
        assert self.process is not None
        self.process.terminate()
        self._thread.join(30)
        status = self.process.poll()
        if status is None:
            self.process.kill()
        assert status is not None, "it does not stop"
        return status


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


@contextmanager
def clients(port: int) -> Iterator[Counter[str]]:
    """Clients that call, and put and use an array, again and again; what came of it."""
    outcomes: Counter[str] = Counter()
    stop = threading.Event()
    lock = threading.Lock()

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        with ss.Client(f"http://127.0.0.1:{port}", timeout=30) as client:
            while not stop.is_set():
                outcome = one_turn(client, rng)
                with lock:
                    outcomes[outcome] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield outcomes
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a call hangs"


def one_turn(client: ss.Client, rng: np.random.Generator) -> str:
    """One call by value and one on a resident array: right, or an error with a name."""
    a = rng.random((400, 400))  # large enough for shared buffers
    try:
        product = client.matmul(a, a)
        handle = client.put(a)
        doubled = client.matmul(handle, np.eye(400) * 2.0, keep=False)
        handle.delete()
    except ss.ShardserveError as error:
        return type(error).__name__
    is_right = np.allclose(product, a @ a, rtol=1e-12) and np.allclose(doubled, a * 2.0, rtol=1e-12)
    return "right" if is_right else "wrong"


def seconds_until_ready(probe: ss.Client) -> float:
    started = time.monotonic()
    while time.monotonic() - started < 30:
        with suppress(ss.ShardserveError):
            assert probe.dot([1.0, 2.0], [3.0, 4.0]) == 11.0
            break
    return time.monotonic() - started


def shared_memory_bytes() -> int:
    """What the host has as shared memory, whoever holds it."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Shmem:"))


def storm(rounds: int, seed: int) -> str:
    """Kill one of the two at a random moment, so many times; everybody gets an answer, and nothing is left."""
    rng = random.Random(seed)  # noqa: S311 - the same moments each time
    before = shared_memory_bytes()
    supervisor = Supervisor(free_port())
    try:
        found = strike(supervisor, rounds, rng)
    finally:
        status = supervisor.stop()
    assert status == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", supervisor.port)).close()
    assert shared_memory_bytes() - before < 64 * 2**20
    return found


def strike(supervisor: Supervisor, rounds: int, rng: random.Random) -> str:
    seen: set[int] = set()
    slowest, engine_deaths = 0.0, 0
    killed: Counter[str] = Counter()
    with ss.Client(f"http://127.0.0.1:{supervisor.port}", timeout=60) as probe, clients(supervisor.port) as outcomes:
        seconds_until_ready(probe)
        stale = probe.put(np.ones(1000))
        for _ in range(rounds):
            time.sleep(rng.uniform(0.2, 1.2))
            family = supervisor.family()
            seen.update(family)
            if not family:
                continue
            # The third death of an engine within a minute keeps it down, as it should: then it is the front's turn.
            victim = 0 if engine_deaths == 2 else rng.randrange(len(family))
            engine_deaths = engine_deaths + 1 if victim else 0
            os.kill(family[victim], signal.SIGKILL)
            killed["engine" if victim else "front"] += 1
            slowest = max(slowest, seconds_until_ready(probe))
        with pytest.raises(ss.Expired):
            stale.numpy()
    assert slowest < READY_WITHIN_S
    assert outcomes["wrong"] == 0
    assert outcomes["right"] > rounds
    assert not set(outcomes) - {
        "right", "EngineLost", "EngineStarting", "ConnectFailed", "BadReply", "Expired", "TimedOut",
    }, outcomes  # fmt: skip
    left = [pid for pid in seen - set(supervisor.family()) if is_alive(pid)]
    deadline = time.monotonic() + 5.0
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = [pid for pid in left if is_alive(pid)]
    assert not left
    return json.dumps({"killed": killed, "outcomes": outcomes, "starts": supervisor.starts, "slowest_s": slowest})


@pytest.mark.timeout(180)
def test_every_call_is_right_or_has_a_named_error_and_nothing_is_left() -> None:
    print(storm(6, seed=1))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_fifty_kills() -> None:
    print(storm(50, seed=2))
