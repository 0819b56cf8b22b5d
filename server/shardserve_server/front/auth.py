"""Who may call: keys, and for a server without keys the checks that keep web pages out.

A server on loopback without a key is open to every process of the host, and without more to every web page that its
user opens: a page may send requests there, and by DNS rebinding even read the answers. So such a server answers only to
its own names, and to no request that a page made.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import secrets
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from shardserve_proto.errors import Forbidden, Unauthenticated

from ..settings import BadSetting, Settings

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
OPEN_PATHS = frozenset({"/livez", "/readyz"})
KEY_BITS = 128
KEY_NAME = "api-key"
DEFAULT_OWNER = "default"
_HEX = frozenset("0123456789abcdefABCDEF")


@dataclass(frozen=True)
class _Key:
    owner: str
    digest: bytes


class Keys:
    """The keys that the server knows, as digests.

    Arguments:
        pairs: label and key; several keys may share a label, which is their owner.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._keys = tuple(_Key(owner, _digest(key.encode())) for owner, key in pairs)

    def owner_of(self, key: bytes) -> str | None:
        """The owner of a key, found in the same time for any key: each is compared, and each to its last byte."""
        given = _digest(key)
        owner = None
        for known in self._keys:
            if hmac.compare_digest(known.digest, given):
                owner = known.owner
        return owner


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class Gate:
    """Lets a request in or refuses it, before anything of its body is read; plain ASGI.

    Arguments:
        keys: who may call. None: only this host, and no web page.
    """

    def __init__(self, app: ASGIApp, keys: Keys | None) -> None:
        self.app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if self._keys is None:
                check_local(scope["headers"])
                scope["state"]["owner"] = DEFAULT_OWNER
            elif scope["path"] not in OPEN_PATHS:
                scope["state"]["owner"] = authenticate(scope["headers"], self._keys)
        elif scope["type"] == "websocket":
            raise Forbidden("there are no websockets here")
        await self.app(scope, receive, send)


def authenticate(headers: Iterable[tuple[bytes, bytes]], keys: Keys) -> str:
    """The owner of the request's key.

    Raises:
        Unauthenticated: no key, or an unknown one; the text is the same.
    """
    given = [value for name, value in headers if name == b"authorization"]
    scheme, _, key = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
    owner = keys.owner_of(key.strip()) if scheme.lower() == b"bearer" else None
    if owner is None:
        raise Unauthenticated("this server needs a key that it knows, as the header 'Authorization: Bearer KEY'")
    return owner


def check_local(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Hold a request to a server without keys against the two signs of a web page.

    Raises:
        Forbidden: it was sent to another name than this host's own, or by a page.
    """
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) != 1 or _hostname(hosts[0].decode("latin-1")) not in LOCAL_HOSTS:
        raise Forbidden(
            "a server without a key answers only to the hosts localhost, 127.0.0.1 and [::1]; "
            "start it with a key to reach it under another name"
        )
    if any(name == b"origin" for name, _ in headers):
        raise Forbidden("a server without a key answers no web page, and this request has an Origin header")


def _hostname(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()


@dataclass(frozen=True)
class KeyRing:
    """The keys to serve with, and where a new one was stored."""

    keys: Keys | None
    made: str | None = None
    path: Path | None = None


def load_keys(settings: Settings) -> KeyRing:
    """The keys of the settings; a server that others can reach makes its first key itself.

    Raises:
        BadSetting: a key or key file that cannot be used; the server never starts open instead.
    """
    pairs = []
    if settings.api_key is not None:
        pairs.append((DEFAULT_OWNER, _checked(settings.api_key.get_secret_value(), "api_key", "the key")))
    if settings.key_file is not None:
        pairs += read_key_file(settings.key_file, setting="key_file")
    if pairs:
        return KeyRing(Keys(pairs), path=settings.key_file)
    if settings.is_loopback:
        return KeyRing(None)
    return _stored_or_made(settings.state_dir / KEY_NAME)


def read_key_file(path: Path, *, setting: str) -> list[tuple[str, str]]:
    """The labels and keys of a file; blank lines and lines that begin with # are skipped.

    Raises:
        BadSetting: missing, unreadable, empty, readable by everybody, or with a line that is no label and key.
    """
    try:
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(2**20)
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(setting, f"the key file cannot be read ({type(error).__name__})") from None
    if stat.S_IMODE(mode) & 0o007:
        raise BadSetting(setting, "the key file is open to everybody on this host; chmod 600 it")
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), start=1)]
    lines = [(number, words) for number, words in lines if words and not words[0].startswith("#")]
    if not lines:
        raise BadSetting(setting, "the key file holds no key")
    for number, words in lines:
        if len(words) != 2:
            raise BadSetting(setting, f"line {number} of the key file is not a label and a key")
    return [(words[0], _checked(words[1], setting, f"the key of line {number}")) for number, words in lines]


def _checked(key: str, setting: str, what: str) -> str:
    """A key of at least 128 bits, by its length and the alphabet that it seems to be written in."""
    if not key.isascii() or not key.isprintable() or " " in key:
        raise BadSetting(setting, f"{what} is not printable ASCII without spaces")
    bits = len(key) * math.log2(16 if _HEX.issuperset(key) else 64)
    if bits < KEY_BITS or len(set(key)) < 8:
        raise BadSetting(setting, f"{what} is shorter than {KEY_BITS} bits; `openssl rand -base64 24` makes a good one")
    return key


def _stored_or_made(path: Path) -> KeyRing:
    if path.exists() or path.is_symlink():
        return KeyRing(Keys(read_key_file(path, setting="state_dir")), path=path)
    key = secrets.token_urlsafe(32)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{DEFAULT_OWNER} {key}\n")
    except OSError as error:
        raise BadSetting("state_dir", f"the server's key cannot be stored there ({type(error).__name__})") from None
    return KeyRing(Keys([(DEFAULT_OWNER, key)]), made=key, path=path)
