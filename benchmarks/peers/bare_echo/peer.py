"""The bytes of a small call, by shardserve's own client, to a bare uvicorn that sends them back."""

from __future__ import annotations

from typing import Any

import shardserve as ss
from shardserve._exchanges import Exchange
from shardserve._patience import Patience
from shardserve_proto.frames import MEDIA_TYPE, Buffer

from ..base import Plain, ServerProcess


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


class Contender(Plain):
    """Its "dot" computes nothing: it is the way there and back."""

    def start(self) -> None:
        self._server = ServerProcess("benchmarks.peers.bare_echo.server")
        self._client = ss.Client(f"http://127.0.0.1:{self._server.announced()['port']}")
        self.extras = {"echo": self._echo}

    def stop(self) -> None:
        self._client.close()
        self._server.stop()

    def server_pid(self) -> int | None:
        return self._server.pid

    def _echo(self, peer: Any, pids: list[int], *, calls: int, limit_s: float) -> dict[str, list[float]]:
        from ...inputs import small_vectors
        from ...rounds import time_calls

        frame = self._client._outgoing_kernel("dot", small_vectors(), {}, {}).frame()
        sent = sum(map(len, frame))

        def echo() -> None:
            received = self._client._connections.here().send(RawExchange(frame), Patience(None))
            if received != sent:
                raise ValueError(f"the echo gave {received} bytes of {sent}")

        return {"call": time_calls(echo, calls, limit_s=limit_s)}
