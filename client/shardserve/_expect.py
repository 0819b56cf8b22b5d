"""`Expect: 100-continue` under httpx for asyncio, which sends that header but does not wait.

Streams of its pool are wrapped: behind a head with the header the first write of the body waits for the server's word.
An answer that comes instead (401, 413, 503) is kept for the next read, and the write fails, which makes httpcore go on
to read. So a large body that nobody wants is not sent, and its error is not a broken pipe.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable
from typing import Any

import httpcore

from ._config import EXPECT_WAIT_S

HEADER = {"Expect": "100-continue"}
_READ_BYTES = 65536
#: Enough of a status line to tell 100 from the rest.
_ENOUGH = len(b"HTTP/1.1 1")


def asks(head: bytes) -> bool:
    """Whether these bytes are a head that asks the server before its body is sent."""
    return len(head) < _READ_BYTES and head.startswith(b"POST ") and b"\r\nexpect: 100-continue\r\n" in head.lower()


def refuses(answer: bytes) -> bool:
    """Whether the server's first bytes are its answer already, or the end of the connection."""
    return not answer.startswith(b"HTTP/1.1 1")


class _AsyncStream(httpcore.AsyncNetworkStream):
    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._early = b""
        self._has_asked = False

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._early:
            data, self._early = self._early[:max_bytes], self._early[max_bytes:]
            return data
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self._has_asked:
            self._has_asked = False
            await self._wait(EXPECT_WAIT_S if timeout is None else min(EXPECT_WAIT_S, timeout))
        await self._stream.write(buffer, timeout)
        self._has_asked = asks(buffer)

    async def _wait(self, wait_s: float) -> None:
        until = time.monotonic() + wait_s
        try:
            while len(self._early) < _ENOUGH:
                piece = await self._stream.read(_READ_BYTES, max(until - time.monotonic(), 0.001))
                self._early += piece
                if not piece:
                    break
        except httpcore.ReadTimeout:
            return  # a server, or something in between, that does not know the header
        if refuses(self._early):
            raise httpcore.WriteError("the server answered before the body was sent")

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return _AsyncStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class AsyncExpectingBackend(httpcore.AnyIOBackend):
    """Connections that wait for the server's word before a large body."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return _AsyncStream(await super().connect_tcp(host, port, timeout, local_address, socket_options))
