"""The wire by httpx, and the only file that imports it: for asyncio, and for what is behind a proxy of the environment.

httpx keeps its pool of connections to itself, so the pool here is httpcore's own, with streams that know
`Expect: 100-continue` (see `_expect.py`). Behind a proxy it is httpx's.
"""

from __future__ import annotations

import ssl
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import httpcore
import httpx

from shardserve_proto.errors import BadReply, ConnectFailed

from ._config import (
    CONNECT_TIMEOUT_S,
    CONNECTIONS,
    EXPECT_BYTES,
    KEEP_ALIVE_S,
    READ_TIMEOUT_S,
    WRITE_TIMEOUT_S,
    Address,
    has_proxy,
    request_fields,
)
from ._exchanges import Exchange, pieces, whole_or_pieces
from ._expect import HEADER, AsyncExpectingBackend
from ._patience import Patience

R = TypeVar("R")


class ProxiedTransport:
    """Connections of a blocking client through a proxy; threads share them. Others are in `_direct.py`."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._http = httpx.Client(**_settings(address))
        # With the transport, not with the client: copies share it.
        weakref.finalize(self, self._http.close).atexit = False  # what a program dropped last is still to be released

    def send(self, exchange: Exchange[R], patience: Patience) -> R:
        """One try.

        Raises:
            TransportError: the answer did not come.
            ShardserveError: the answer is an error.
        """
        with _named(self._address, patience), _told(exchange):
            request = self._request(exchange, patience)
            response = self._http.send(request, stream=True)
            try:
                exchange.begin(response.status_code, response.headers)
                for piece in response.iter_raw():
                    exchange.feed(piece)
                    patience.remaining_s()
            finally:
                response.close()
        return exchange.finish()

    def _request(self, exchange: Exchange[Any], patience: Patience) -> httpx.Request:
        body = whole_or_pieces(exchange)
        content: Any = body if isinstance(body, bytes) else _watched(exchange, pieces(body), patience)
        return self._http.build_request(
            exchange.method,
            self._address.url + exchange.path,
            content=content or None,
            headers=_headers(exchange, expects=False),
            timeout=_timeouts(patience),
        )

    def close(self) -> None:
        """Close the connections; calls fail from now on."""
        self._http.close()


class AsyncTransport:
    """Connections of an `AsyncClient`; the tasks of one event loop share them."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._expects = not has_proxy(address)
        pool = _AsyncPool(**_pool_settings(address)) if self._expects else None
        self._http = httpx.AsyncClient(**_settings(address), transport=pool)

    async def send(self, exchange: Exchange[R], patience: Patience) -> R:
        """One try; raises as `Transport.send`."""
        with _named(self._address, patience), _told(exchange):
            request = self._request(exchange, patience)
            response = await self._http.send(request, stream=True)
            try:
                exchange.begin(response.status_code, response.headers)
                async for piece in response.aiter_raw():
                    exchange.feed(piece)
                    patience.remaining_s()
            finally:
                await response.aclose()
        return exchange.finish()

    def _request(self, exchange: Exchange[Any], patience: Patience) -> httpx.Request:
        body = whole_or_pieces(exchange)
        content: Any = body if isinstance(body, bytes) else _async(_watched(exchange, pieces(body), patience))
        return self._http.build_request(
            exchange.method,
            self._address.url + exchange.path,
            content=content or None,
            headers=_headers(exchange, expects=self._expects),
            timeout=_timeouts(patience),
        )

    async def close(self) -> None:
        """Close the connections; calls fail from now on."""
        await self._http.aclose()


def _headers(exchange: Exchange[Any], *, expects: bool) -> dict[str, str]:
    return exchange.headers() | (HEADER if expects and exchange.body_bytes > EXPECT_BYTES else {})


def _settings(address: Address) -> dict[str, Any]:
    limits = httpx.Limits(
        max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS, keepalive_expiry=KEEP_ALIVE_S
    )
    return {
        "headers": request_fields(address),
        "limits": limits,
        "follow_redirects": False,  # the key goes to this host and no other
        "trust_env": has_proxy(address),
    }


def _pool_settings(address: Address) -> dict[str, Any]:
    if address.is_loopback and address.url.startswith("http:"):
        # No TLS here; loading the certificates would take most of a small client's start.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    else:
        context = httpx.create_ssl_context()
    return {
        "ssl_context": context,
        "max_connections": CONNECTIONS,
        "max_keepalive_connections": CONNECTIONS,
        "keepalive_expiry": KEEP_ALIVE_S,
    }


def _timeouts(patience: Patience) -> httpx.Timeout:
    remaining = patience.remaining_s()
    if remaining is None:
        return httpx.Timeout(connect=CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S, write=WRITE_TIMEOUT_S, pool=READ_TIMEOUT_S)
    return httpx.Timeout(remaining, connect=min(CONNECT_TIMEOUT_S, remaining))


def _watched(exchange: Exchange[Any], views: Iterator[memoryview], patience: Patience) -> Iterator[memoryview]:
    exchange.begin_sending()
    for view in views:
        patience.remaining_s()
        yield view
        exchange.sent(len(view))


async def _async(views: Iterator[memoryview]) -> AsyncIterator[memoryview]:
    for view in views:
        yield view


@contextmanager
def _told(exchange: Exchange[Any]) -> Iterator[None]:
    """The exchange learns of its end when no answer came."""
    try:
        yield
    except BaseException:
        exchange.failed()
        raise


@contextmanager
def _named(address: Address, patience: Patience) -> Iterator[None]:
    """httpx's exceptions as ours."""
    try:
        yield
    except httpx.ConnectTimeout as error:
        patience.remaining_s()  # the call's own limit may have been the shorter one
        raise ConnectFailed(f"{address.url} did not accept a connection in {CONNECT_TIMEOUT_S:g} s") from error
    except httpx.ConnectError as error:
        raise ConnectFailed(
            f"no server answers at {address.url} ({error}); is it running, and is the address right?"
        ) from error
    except httpx.WriteTimeout as error:
        raise patience.timed_out(WRITE_TIMEOUT_S) from error
    except httpx.TimeoutException as error:
        raise patience.timed_out() from error
    except httpx.HTTPError as error:
        raise BadReply(f"the connection to {address.url} ended before the answer was complete ({error})") from error
    except RuntimeError as error:
        if "client has been closed" not in str(error):
            raise
        raise ConnectFailed("the client is closed") from error


# --- httpcore's pool under httpx's client ----------------------------------------------------------------------------

_CORE_ERRORS = (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, httpcore.UnsupportedProtocol)


@contextmanager
def _as_httpx() -> Iterator[None]:
    """httpcore's exceptions as httpx's, which have the same names."""
    try:
        yield
    except _CORE_ERRORS as error:
        raise getattr(httpx, type(error).__name__)(str(error)) from error


def _core_request(request: httpx.Request) -> httpcore.Request:
    url = request.url
    return httpcore.Request(
        method=request.method,
        url=httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
        headers=request.headers.raw,
        content=request.stream,
        extensions=request.extensions,
    )


class _AsyncBody(httpx.AsyncByteStream):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_httpx():
            async for piece in self._stream:
                yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class _AsyncPool(httpx.AsyncBaseTransport):
    def __init__(self, **settings: Any) -> None:
        self._pool = httpcore.AsyncConnectionPool(**settings, network_backend=AsyncExpectingBackend())

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        with _as_httpx():
            found = await self._pool.handle_async_request(_core_request(request))
        return httpx.Response(found.status, headers=found.headers, stream=_AsyncBody(found.stream))

    async def aclose(self) -> None:
        await self._pool.aclose()
