"""What a small call costs: a dot of two 1 KiB vectors, beside an echo of the same bytes and JAX on its own."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import shardserve as ss
from shardserve._config import check_address
from shardserve._direct import DirectTransport
from shardserve._exchanges import Exchange
from shardserve._patience import Patience
from shardserve_proto.frames import MEDIA_TYPE, Buffer

from .children import LocalJax
from .inputs import check, fingerprint, small_vectors
from .phases import median_phases
from .rounds import Contender, Rounds, interleave, time_calls

OURS, ECHO, RAW, JAX, NUMPY = "shardserve", "bare echo", "shardserve, same bytes unread", "local JAX", "NumPy"


class RawExchange(Exchange[int]):
    """The frame of a call, sent as it is; of the reply only the bytes are counted."""

    method = "POST"
    path = "/v1/call"

    def __init__(self, buffers: list[Buffer]) -> None:
        super().__init__()
        self.buffers = buffers
        self._received_bytes = 0

    def headers(self) -> dict[str, str]:
        return {"Accept": MEDIA_TYPE, "Content-Type": MEDIA_TYPE, "Content-Length": str(self.body_bytes)}

    def _feed(self, piece: bytes | memoryview) -> None:
        self._received_bytes += len(piece)

    def _finish(self) -> int:
        return self._received_bytes


@dataclass(frozen=True)
class SmallDot:
    """The result: seconds of every call, and the server's own phases."""

    rounds: Rounds
    phases_s: Mapping[str, float]


def measure(client: ss.Client, echo_url: str, jax: LocalJax, *, rounds: int, calls: int) -> SmallDot:
    """Interleaved rounds of all contenders; every answer is checked."""
    x, y = small_vectors()
    expected = fingerprint(np.dot(x, y))
    frame = client._outgoing_kernel("dot", (x, y), {}, {}).frame()
    echo, server = DirectTransport(check_address(echo_url, None, allow_insecure=False)), client._transport

    def ours() -> list[float]:
        check(fingerprint(client.dot(x, y)), expected, OURS)
        return time_calls(lambda: client.dot(x, y), calls)

    def raw(transport: Any) -> list[float]:
        return time_calls(lambda: transport.send(RawExchange(frame), Patience(None)), calls)

    def local() -> list[float]:
        seconds, found = jax.run("small", calls)
        check(found, expected, JAX)
        return seconds

    contenders: dict[str, Contender] = {
        OURS: ours,
        RAW: functools.partial(raw, server),
        ECHO: functools.partial(raw, echo),
        JAX: local,
        NUMPY: lambda: time_calls(lambda: np.dot(x, y), calls),
    }
    measured = interleave(contenders, rounds=rounds)
    with client.record() as log:
        ours()
    echo.close()
    return SmallDot(measured, median_phases(log))
