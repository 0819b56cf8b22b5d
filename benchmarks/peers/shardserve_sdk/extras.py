"""What only shardserve, and in part JAX in process, can be asked: calls on arrays that stay."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from shardserve import P

from ... import inputs
from ...operations import time_checked
from ...phases import median_phases
from ...rounds import time_calls

Timed = Mapping[str, list[float]]
ROWS = P("devices", None)
WAYS: Mapping[str, dict[str, Any]] = {
    "open": {},
    "one": {"mesh": {"devices": 1}},
    "eight": {"in_shardings": P("devices")},
}


def resident_dot(peer: Any, pids: list[int], *, calls: int, limit_s: float) -> Timed:
    """A dot of two small resident vectors; its result comes back."""
    x, y = inputs.small_vectors()
    handles = peer.client.put(x), peer.client.put(y)
    return time_checked(lambda: peer.client.dot(*handles, keep=False), np.dot(x, y), calls, limit_s)


def matvec(peer: Any, pids: list[int], *, nbytes: int, calls: int, resident: bool) -> Timed:
    """A matrix times a vector; the matrix is resident, or sent again with each call."""
    matrix, vector = inputs.square(nbytes)
    operand = peer.client.put(matrix, ROWS) if resident else matrix
    return time_checked(lambda: peer.client.matmul(operand, vector, keep=False), matrix @ vector, calls)


def kept_product(peer: Any, pids: list[int], *, subscripts: str, calls: int) -> Timed:
    """An einsum of resident arrays, whose result stays; the last one is fetched for the check."""
    operands = inputs.product_operands(subscripts)
    handles = [peer.client.put(operand, P("devices")) for operand in operands]
    kept: deque[Any] = deque(maxlen=1)
    seconds = time_calls(lambda: kept.append(peer.client.einsum(subscripts, *handles, keep=True)), calls)
    inputs.check(kept[0].numpy(), np.einsum(subscripts, *operands, optimize=True))
    return {"call": seconds}


def placed_dot(peer: Any, pids: list[int], *, size: int, way: str, calls: int) -> Timed:
    """A dot of two vectors with the placement left open, or by hand; what the server says that it took."""
    x, y = inputs.vectors(size)
    with peer.client.record() as log:
        timed = time_checked(lambda: peer.client.dot(x, y, **WAYS[way]), np.dot(x, y), calls)
    phases = ("upload", "run", "gather")
    return {**timed, "server": [sum(call.report.phases_s.get(phase, 0.0) for phase in phases) for call in log]}


def normalize(peer: Any, pids: list[int], *, rows: int, calls: int) -> Timed:
    """Rows normalized, uploaded and returned."""
    matrix = inputs.payload(rows * 64 * 4).reshape(rows, 64)
    expected = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    return time_checked(lambda: peer.client.normalize(matrix, norm="l2", axis=1, precision="default"), expected, calls)


def phases(peer: Any, pids: list[int], *, batch: int, calls: int) -> Timed:
    """Where the time of a dot goes, by the server's report."""
    x, y = inputs.batched_vectors(batch) if batch else inputs.small_vectors()
    with peer.client.record() as log:
        for _ in range(calls):
            peer.dot(x, y)
    return {name: [seconds] for name, seconds in median_phases(log).items()}


def open_loop(peer: Any, pids: list[int], *, load: str, rate: float, seconds: float) -> Timed:
    """Small calls at a fixed rate, each timed from when it was due, alone or beside a load from another process."""
    x, y = inputs.small_vectors()
    latencies = []
    with beside(peer, load, seconds):
        begin = time.perf_counter()
        for number in range(int(rate * seconds)):
            due = begin + number / rate
            time.sleep(max(0.0, due - time.perf_counter()))
            result = peer.client.dot(x, y)
            latencies.append(time.perf_counter() - due)
    inputs.check(result, np.dot(x, y))
    return {"latency": latencies}


@contextmanager
def beside(peer: Any, load: str, seconds: float) -> Any:
    """A load in a process of its own, that has begun; "none" is none."""
    if load == "none":
        yield
        return
    command = [sys.executable, "-m", "benchmarks.peers.shardserve_sdk.load", peer.client.url, load, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
            if process.wait(120) != 0:
                raise ValueError(f"the load {load!r} failed")
        finally:
            process.kill()


EXTRAS: Mapping[str, Callable[..., Timed]] = {
    "resident dot": resident_dot,
    "matvec": matvec,
    "kept product": kept_product,
    "placed dot": placed_dot,
    "normalize": normalize,
    "phases": phases,
    "open loop": open_loop,
}
