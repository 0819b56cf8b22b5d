"""The wire under the client: the only file that imports httpx.

httpx goes on to read after a failed send, so an early answer (413, 401) is seen as what it is, not as a broken pipe. It
does not wait for `100 Continue`, so that header is not sent.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, TypeVar

import httpx

from shardserve_proto.errors import BadReply, ConnectFailed

from ._config import CONNECT_TIMEOUT_S, CONNECTIONS, KEEP_ALIVE_S, READ_TIMEOUT_S, WRITE_TIMEOUT_S, Address
from ._exchanges import Exchange, pieces, whole_or_pieces
from ._patience import Patience

R = TypeVar("R")


class Transport:
    """Connections of a blocking client; threads share them."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._http = httpx.Client(**_settings(address))

    def send(self, exchange: Exchange[R], patience: Patience) -> R:
        """One try.

        Raises:
            TransportError: the answer did not come.
            ShardserveError: the answer is an error.
        """
        with _named(self._address, patience):
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
        content: Any = body if isinstance(body, bytes) else _watched(pieces(body), patience)
        return self._http.build_request(
            exchange.method,
            self._address.url + exchange.path,
            content=content or None,
            headers=exchange.headers(),
            timeout=_timeouts(patience),
        )

    def close(self) -> None:
        """Close the connections; calls fail from now on."""
        self._http.close()


class AsyncTransport:
    """Connections of an `AsyncClient`; the tasks of one event loop share them."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._http = httpx.AsyncClient(**_settings(address))

    async def send(self, exchange: Exchange[R], patience: Patience) -> R:
        """One try; raises as `Transport.send`."""
        with _named(self._address, patience):
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
        content: Any = body if isinstance(body, bytes) else _async(_watched(pieces(body), patience))
        return self._http.build_request(
            exchange.method,
            self._address.url + exchange.path,
            content=content or None,
            headers=exchange.headers(),
            timeout=_timeouts(patience),
        )

    async def close(self) -> None:
        """Close the connections; calls fail from now on."""
        await self._http.aclose()


def _settings(address: Address) -> dict[str, Any]:
    headers = {"User-Agent": f"shardserve-python/{version('shardserve')}", "Accept-Encoding": "identity"}
    if address.api_key is not None:
        headers["Authorization"] = f"Bearer {address.api_key}"
    settings: dict[str, Any] = {
        "headers": headers,
        "limits": httpx.Limits(
            max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS, keepalive_expiry=KEEP_ALIVE_S
        ),
        "follow_redirects": False,  # the key goes to this host and no other
        "trust_env": not address.is_loopback,  # no proxy stands between two processes of one host
    }
    if address.is_loopback and address.url.startswith("http:"):
        # No TLS here; loading the certificates would take most of a small client's start.
        settings["verify"] = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return settings


def _timeouts(patience: Patience) -> httpx.Timeout:
    remaining = patience.remaining_s()
    if remaining is None:
        return httpx.Timeout(connect=CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S, write=WRITE_TIMEOUT_S, pool=READ_TIMEOUT_S)
    return httpx.Timeout(remaining, connect=min(CONNECT_TIMEOUT_S, remaining))


def _watched(views: Iterator[memoryview], patience: Patience) -> Iterator[memoryview]:
    for view in views:
        patience.remaining_s()
        yield view


async def _async(views: Iterator[memoryview]) -> AsyncIterator[memoryview]:
    for view in views:
        yield view


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
    except httpx.TimeoutException as error:
        raise patience.timed_out() from error
    except httpx.HTTPError as error:
        raise BadReply(f"the connection to {address.url} ended before the answer was complete ({error})") from error
    except RuntimeError as error:
        if "closed" not in str(error):
            raise
        raise ConnectFailed("the client is closed") from error
