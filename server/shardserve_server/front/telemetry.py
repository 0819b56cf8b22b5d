"""What the server says of itself: one line of log for each fault, and the time of each phase on each reply."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import structlog

from shardserve_proto.errors import InternalError, ShardserveError

#: A probe that hears "not yet" has its answer; the engine's own changes of state are in the log already.
PROBES = frozenset({"/livez", "/readyz"})


def named_error(error: Exception, *, method: str, path: str) -> ShardserveError:
    """The error that goes out for any exception; each 5xx has an id and one log line with the cause."""
    named = error if isinstance(error, ShardserveError) and error.status is not None else _unforeseen()
    if named.status is not None and named.status >= 500 and path not in PROBES:
        if named.error_id is None:
            named.error_id = uuid.uuid4().hex[:12]
        log = structlog.get_logger("shardserve.front")
        write = log.error if named.status == 500 else log.warning
        write(
            "request failed",
            error_id=named.error_id,
            code=named.code,
            reason=named.message,
            method=method,
            path=path[:200],
            exc_info=None if error is named else error,
        )
    return named


def _unforeseen() -> InternalError:
    return InternalError("the server failed in a way that it did not foresee")


def server_timing(phases_s: Mapping[str, float]) -> bytes:
    """The `Server-Timing` header of phases in seconds."""
    return ", ".join(f"{phase};dur={seconds * 1e3:.3f}" for phase, seconds in phases_s.items()).encode()
