"""The blocking client's own HTTP/1.1, over sockets: for servers that no proxy stands in front of.

Small calls are one send and, mostly, one receive. Large arrays leave from the caller's memory and arrive in that of the
result. A request is never sent a second time: whether an idle connection is still alive is looked at before it is used.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import time
import weakref
from collections import deque
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from shardserve_proto.errors import ConnectFailed, InvalidRequest

from ._config import (
    CONNECT_TIMEOUT_S,
    CONNECTIONS,
    EXPECT_BYTES,
    Address,
    request_fields,
)
from ._connection import Connection
from ._exchanges import Exchange
from ._patience import Patience
from ._sockets import tune

R = TypeVar("R")

_TARGET = re.compile(r"[!-~]+")


class DirectTransport:
    """Connections of a blocking client to one server; threads share them."""

    def __init__(self, address: Address) -> None:
        parts = urlsplit(address.url)
        self._url = address.url
        self._host = (parts.hostname or "").encode("ascii" if (parts.hostname or "").isascii() else "idna").decode()
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._is_tls = parts.scheme == "https"
        self._context: ssl.SSLContext | None = None
        self._prefix = quote(parts.path, safe="/%:@!$&'()*+,;=~")
        self._fields = _lines({"Host": _authority(self._host, parts.port)} | request_fields(address))
        self._pool = _Pool()
        # With the transport, not with the client: copies share it.
        weakref.finalize(self, self._pool.close).atexit = False  # what a program dropped last is still to be released

    def send(self, exchange: Exchange[R], patience: Patience) -> R:
        """One try.

        Raises:
            TransportError: the answer did not come.
            ShardserveError: the answer is an error.
        """
        head = self._head(exchange)
        connection = self._pool.take() or self._connect(patience)
        try:
            is_reusable = connection.run(head, exchange, patience)
        except BaseException:  # an interrupt, too, leaves no half-used connection behind
            connection.close()
            exchange.failed()
            raise
        if is_reusable:
            self._pool.put(connection)
        else:
            connection.close()
        return exchange.finish()

    def close(self) -> None:
        """Close the connections; calls fail from now on."""
        self._pool.close()

    def _head(self, exchange: Exchange[Any]) -> bytes:
        target = self._prefix + exchange.path
        if not _TARGET.fullmatch(target):
            raise InvalidRequest(f"{target[:200]!r} is no path that a request can have")
        expects = "Expect: 100-continue\r\n" if exchange.body_bytes > EXPECT_BYTES else ""
        lines = self._fields + _lines(exchange.headers()) + expects
        return f"{exchange.method} {target} HTTP/1.1\r\n{lines}\r\n".encode("ascii")

    def _connect(self, patience: Patience) -> Connection:
        remaining = patience.remaining_s()
        limit_s = CONNECT_TIMEOUT_S if remaining is None else min(CONNECT_TIMEOUT_S, remaining)
        connected: socket.socket | None = None
        try:
            connected = socket.create_connection((self._host, self._port), limit_s)
            tune(connected)
            connected = self._secured(connected)
        except BaseException as error:
            if connected is not None:
                connected.close()
            if not isinstance(error, OSError | UnicodeError):
                raise
            raise self._connect_failed(error, patience) from error
        return Connection(connected, self._url)

    def _secured(self, connected: socket.socket) -> socket.socket:
        if not self._is_tls:
            return connected
        if self._context is None:
            self._context = ssl.create_default_context()
            self._context.set_alpn_protocols(["http/1.1"])
        return self._context.wrap_socket(connected, server_hostname=self._host)

    def _connect_failed(self, error: Exception, patience: Patience) -> ConnectFailed:
        if isinstance(error, TimeoutError):
            patience.remaining_s()  # the call's own limit may have been the shorter one
            return ConnectFailed(f"{self._url} did not accept a connection in {CONNECT_TIMEOUT_S:g} s")
        return ConnectFailed(f"no server answers at {self._url} ({error}); is it running, and is the address right?")


def _lines(fields: dict[str, str]) -> str:
    return "".join([f"{name}: {value}\r\n" for name, value in fields.items()])


def _authority(host: str, port: int | None) -> str:
    host = f"[{host}]" if ":" in host else host
    return host if port is None else f"{host}:{port}"


class _Pool:
    """Idle connections; the one used last is used next. Its operations are single ones of a deque, so no lock."""

    def __init__(self) -> None:
        self._idle: deque[Connection] = deque()
        self._is_closed = False
        self._process = os.getpid()

    def take(self) -> Connection | None:
        """A connection that is alive; None when there is none.

        Raises:
            ConnectFailed: the client is closed.
        """
        if self._is_closed:
            raise ConnectFailed("the client is closed")
        if self._process != os.getpid():  # a fork: these connections are the parent's
            self._process = os.getpid()
            self._drop()
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.is_usable():
                return connection
            connection.close()

    def put(self, connection: Connection) -> None:
        connection.idle_since = time.monotonic()
        self._idle.append(connection)
        if len(self._idle) > CONNECTIONS:
            self._close_oldest()
        if self._is_closed:
            self._drop()

    def close(self) -> None:
        self._is_closed = True
        self._drop()

    def _drop(self) -> None:
        while self._idle:
            self._close_oldest()

    def _close_oldest(self) -> None:
        with contextlib.suppress(IndexError):
            self._idle.popleft().close()
