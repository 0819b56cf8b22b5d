"""Every default of the client, in one table; seconds and bytes as their names say."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from importlib.metadata import version
from urllib.parse import urlsplit

from shardserve_proto.errors import InvalidRequest

URL_VARIABLE = "SHARDSERVE_URL"
KEY_VARIABLE = "SHARDSERVE_API_KEY"
DEFAULT_URL = "http://127.0.0.1:8000"

CONNECT_TIMEOUT_S = 10.0
#: Silence of the server. A first compile answers nothing for a while, so this is long.
READ_TIMEOUT_S = 300.0
WRITE_TIMEOUT_S = 60.0
#: How long a call waits for an engine that starts, when it has no timeout of its own.
START_WAIT_S = 300.0
#: A longer wait for the engine is told on stderr.
QUIET_START_S = 3.0
CONNECT_ATTEMPTS = 3
CONNECT_RETRY_S = 0.2
#: How long a call asks again after 429, 503 and a shortage that passes (507), when it has no timeout of its own.
RETRY_WAIT_S = 60.0
#: Between two questions after an answer that names no time.
RETRY_AFTER_S = 1.0
#: Below the server's own limit for idle connections, so that a reused one is alive.
KEEP_ALIVE_S = 30.0
#: Idle connections that a client keeps.
CONNECTIONS = 256

#: A body up to this size goes out as one `bytes`; a larger one as views of the caller's memory.
SMALL_BODY_BYTES = 64 * 1024
#: Most of one send and one receive. httpx copies a larger view again and again on its way into the socket.
PIECE_BYTES = 4 * 1024 * 1024
HTTPX_PIECE_BYTES = 1024 * 1024
#: A larger body waits for the server's word that it will read it, but no longer than EXPECT_WAIT_S.
EXPECT_BYTES = 1024 * 1024
EXPECT_WAIT_S = 1.0
#: Progress is told of bodies over this size, once in so many seconds.
PROGRESS_BYTES = 1024 * 1024
PROGRESS_S = 0.1
#: NumPy's own conversions (`np.asarray(handle)`) download up to this size; what is larger is asked for by `numpy()`.
MAX_IMPLICIT_BYTES = 2**30
#: Largest answer that is JSON: an error, a list of kernels.
JSON_REPLY_BYTES = 4 * 1024 * 1024

#: A NumPy array that a function captures becomes a hidden argument up to this size.
CAPTURED_BYTES = 64 * 1024
TRACES_KEPT = 256
HEADERS_KEPT = 512
HEADERS_OF_A_TRACE = 16

SERVER_START_S = 120.0
SERVER_STOP_S = 15.0


@dataclass(frozen=True)
class Address:
    """Where a server is and how to be let in.

    Attributes:
        url: scheme, host, port and path prefix, without a slash at the end.
        api_key: sent as a bearer token; None sends nothing.
        is_loopback: whether the server is on this host, which no proxy reaches.
    """

    url: str
    api_key: str | None
    is_loopback: bool

    def __repr__(self) -> str:  # a key shows in no log
        return f"Address(url={self.url!r}, has_key={self.api_key is not None})"


def resolve_address(url: str | None, api_key: str | None, *, allow_insecure: bool) -> Address:
    """The address given, or that of the environment, or a server on this host.

    Raises:
        InvalidRequest: no HTTP URL, a key that no header can carry, or a key that would cross a network in the clear.
    """
    url = url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
    api_key = api_key or os.environ.get(KEY_VARIABLE) or None
    return check_address(url, api_key, allow_insecure=allow_insecure)


def check_address(url: str, api_key: str | None, *, allow_insecure: bool) -> Address:
    """The address, checked; nothing is read from the environment."""
    if not isinstance(url, str) or not isinstance(api_key, str | None):
        wrong, value = ("an API key", api_key) if isinstance(url, str) else ("a server's address", url)
        raise InvalidRequest(f"{wrong} is a text, not a {type(value).__name__}")
    scheme, host = _scheme_and_host(url)
    address = Address(url.rstrip("/"), api_key, _is_loopback(host))
    if api_key is not None and not (api_key.isascii() and api_key.isprintable() and " " not in api_key):
        raise InvalidRequest("the API key holds characters that no HTTP header carries; is it cut or quoted?")
    if api_key is not None and scheme == "http" and not address.is_loopback and not allow_insecure:
        raise InvalidRequest(
            f"the API key would cross the network in the clear to {host!r}; use an https:// URL, or "
            "allow_insecure=True on a network that you trust"
        )
    return address


def _scheme_and_host(url: str) -> tuple[str, str]:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # reading the port checks it
    except ValueError:
        parts, host = None, None
    if parts is None or parts.scheme not in ("http", "https") or not host:
        raise InvalidRequest(f"{url!r} is no address of a server; it looks like {DEFAULT_URL!r}")
    if parts.username is not None or parts.query or parts.fragment:
        raise InvalidRequest("the address of a server holds no user, query or fragment; a key is given as api_key=")
    return parts.scheme, host


def request_fields(address: Address) -> dict[str, str]:
    """The header fields of every request to this address."""
    fields = {"User-Agent": f"shardserve-python/{version('shardserve')}", "Accept-Encoding": "identity"}
    if address.api_key is not None:
        fields["Authorization"] = f"Bearer {address.api_key}"
    return fields


def has_proxy(address: Address) -> bool:
    """Whether the environment puts a proxy in between; none stands between two processes of one host."""
    if address.is_loopback:
        return False
    from urllib.request import getproxies, proxy_bypass  # takes a while to import

    parts = urlsplit(address.url)
    return not {parts.scheme, "all"}.isdisjoint(getproxies()) and not proxy_bypass(parts.hostname or "")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
