"""What an agent can be asked to time, the same for all peers. Each answer is checked, outside of the time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from . import inputs
from .cpu import Watched, cpu_s
from .peers.base import Array, Peer
from .rounds import time_calls

#: Seconds of each call, by what was timed.
Timed = Mapping[str, list[float]]
Operation = Callable[..., Timed]


def transfer(peer: Peer, pids: list[int], *, nbytes: int, calls: int, fresh: bool) -> Timed:
    """An array to the server until it can be used, and back, into touched memory or, if `fresh`, into new memory."""
    payload = inputs.payload(nbytes)
    out = None if fresh else _touched(payload)
    timed: dict[str, list[float]] = {name: [] for name in ("up", "down", "up CPU", "down CPU")}
    for _ in range(calls):
        handle = _clocked(lambda: peer.put(payload), pids, timed, "up")
        result = _clocked(lambda handle=handle: peer.get(handle, out), pids, timed, "down")  # type: ignore[misc]
        inputs.check(result, payload, exactly=True)
        peer.drop(handle)
        del handle, result
        if out is not None:
            out.fill(0)
    return timed


def dot(peer: Peer, pids: list[int], *, batch: int, calls: int, limit_s: float) -> Timed:
    """Dots there and back: of two 1 KiB vectors, or of `batch` pairs of 3-vectors."""
    x, y = inputs.batched_vectors(batch) if batch else inputs.small_vectors()
    expected = np.einsum("ki,ki->i", x, y) if batch else np.dot(x, y)
    before = cpu_s(pids)
    timed = time_checked(lambda: peer.dot(x, y), expected, calls, limit_s)
    return {**timed, "call CPU": [(cpu_s(pids) - before) / len(timed["call"])]}


def memory(peer: Peer, pids: list[int], *, nbytes: int) -> Timed:
    """Bytes that both sides take at most beyond what they had, while an array goes up and while it comes down.

    The caller's own array, and the one that the download goes into, were there before.
    """
    payload = inputs.payload(nbytes)
    out = _touched(payload)
    with Watched(pids) as up:
        handle = peer.put(payload)
    with Watched(pids) as down:
        result = peer.get(handle, out)
    inputs.check(result, payload, exactly=True)
    peer.drop(handle)
    return {"up": [up.extra_bytes / nbytes], "down": [down.extra_bytes / nbytes]}


def matvec(peer: Peer, pids: list[int], *, nbytes: int, calls: int, resident: bool) -> Timed:
    """A matrix times a vector, where both are sent with each call."""
    matrix, vector = inputs.square(nbytes)
    return time_checked(lambda: peer.dot(matrix, vector), matrix @ vector, calls)


OPERATIONS: Mapping[str, Operation] = {"transfer": transfer, "dot": dot, "memory": memory, "matvec": matvec}


def time_checked(call: Callable[[], Any], expected: Any, calls: int, limit_s: float = float("inf")) -> Timed:
    """The seconds of each call, with the last answer held against the right one."""
    answers: deque[Any] = deque(maxlen=1)
    seconds = time_calls(lambda: answers.append(call()), calls, limit_s=limit_s)
    inputs.check(np.asarray(answers[0]), expected)
    return {"call": seconds}


def _touched(like: Array) -> Array:
    out = np.empty_like(like)
    out.fill(0)
    return out


def _clocked(call: Callable[[], Any], pids: list[int], timed: dict[str, list[float]], name: str) -> Any:
    before, started = cpu_s(pids), time.perf_counter()
    result = call()
    timed[name].append(time.perf_counter() - started)
    timed[f"{name} CPU"].append(cpu_s(pids) - before)
    return result
