"""Requests that are no calls: small JSON both ways."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from shardserve_proto.errors import InvalidRequest
from shardserve_proto.handles import HEX_ID, LABEL
from shardserve_proto.messages import ArrayInfo

from ._exchanges import Exchange
from ._listing import Ledger
from ._replies import read_json

R = TypeVar("R")
ARRAYS = "/v1/arrays"
#: The server takes 10,000 ids at once.
MOST_RELEASED = 5000


class Ask(Exchange[R]):
    """A request whose answer is JSON, or nothing that matters.

    Arguments:
        answer: its type; None where any answer of the kind 2xx will do.
        body: sent as JSON.
        epoch: that of the id in the path, where it is that of a handle.
    """

    good = range(200, 300)

    def __init__(
        self,
        method: str,
        path: str,
        answer: type[R] | None,
        timeout_s: float | None,
        body: Any = None,
        *,
        epoch: str = "",
    ) -> None:
        super().__init__()
        self.method = method
        self.path = path
        self.timeout_s = timeout_s
        self.epochs = frozenset({epoch} - {""})
        self._answer = answer
        if body is not None:
            self.buffers = [json.dumps(body).encode()]

    def headers(self) -> dict[str, str]:
        fields = {"Accept": "application/json"}
        if self.buffers:
            fields |= {"Content-Type": "application/json", "Content-Length": str(self.body_bytes)}
        return fields | super().headers()

    def _finish(self) -> R:
        if self._answer is None:
            return None  # type: ignore[return-value]
        return read_json(self._answer, bytes(self._text))


def path_of(key: str) -> str:
    """The path of an array by its id or its name.

    Raises:
        InvalidRequest: neither.
    """
    if not isinstance(key, str) or not (HEX_ID.fullmatch(key) or LABEL.fullmatch(key)):
        raise InvalidRequest(
            "an array is known by its id (32 hex digits) or its name (a letter, then at most 63 letters, digits or any "
            f"of . _ -), not by {key!r}"
        )
    return f"{ARRAYS}/{key}"


def listing(timeout_s: float | None) -> Ask[list[ArrayInfo]]:
    return Ask("GET", ARRAYS, list[ArrayInfo], timeout_s)


def info(key: str, timeout_s: float | None, *, epoch: str = "") -> Ask[ArrayInfo]:
    return Ask("GET", f"{path_of(key)}/info", ArrayInfo, timeout_s, epoch=epoch)


def lease(key: str, wanted: Mapping[str, Any], timeout_s: float | None, *, epoch: str) -> Ask[ArrayInfo]:
    return Ask("PUT", f"{path_of(key)}/lease", ArrayInfo, timeout_s, dict(wanted), epoch=epoch)


def delete(key: str, timeout_s: float | None) -> Ask[None]:
    return Ask("DELETE", path_of(key), None, timeout_s)


def release(keys: Sequence[str], timeout_s: float | None) -> Ask[None]:
    return Ask("POST", f"{ARRAYS}/release", None, timeout_s, {"ids": list(keys)})


def memory(timeout_s: float | None) -> Ask[Ledger]:
    return Ask("GET", "/v1/memory", Ledger, timeout_s)
