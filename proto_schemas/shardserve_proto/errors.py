"""Every error of shardserve: one table of code, class and HTTP status, used by the client, the front and the engine.

    ShardserveError
    ├── InvalidRequest (ValueError)              bad_request           400
    │   └── BadFrame                             bad_frame             400
    ├── Unauthenticated (PermissionError)        unauthenticated       401
    ├── Forbidden (PermissionError)              forbidden             403
    ├── NotFound (LookupError)                   not_found             404
    ├── MethodNotAllowed (ValueError)            method_not_allowed    405
    ├── TooSlow (TimeoutError)                   too_slow              408
    ├── NameTaken (ValueError)                   name_taken            409
    ├── Expired (LookupError)                    expired               410
    ├── LengthRequired (ValueError)              length_required       411
    ├── TooLarge (ValueError)                    too_large             413
    ├── UnsupportedMediaType (ValueError)        unsupported_media_type 415
    ├── ShapeError (ValueError)                  shape_error           422
    ├── DTypeError (TypeError)                   dtype_error           422
    ├── ShardingError (ValueError)               sharding_error        422
    ├── AxisError (ValueError)                   axis_error            422
    ├── ProgramError (ValueError)                program_error         422
    ├── CompileFailed (RuntimeError)             compile_failed        422
    ├── QuotaExceeded (RuntimeError)             quota_exceeded        429
    ├── HeadTooLarge (ValueError)                head_too_large        431
    ├── InternalError (RuntimeError)             internal_error        500
    ├── Unavailable (ConnectionError)
    │   ├── Overloaded                           overloaded            503
    │   ├── Draining                             draining              503
    │   ├── EngineStarting                       engine_starting       503
    │   └── EngineLost                           engine_lost           503
    ├── DeadlineExceeded (TimeoutError)          deadline_exceeded     504
    ├── CompileTimeout (TimeoutError)            compile_timeout       504
    ├── OutOfMemory (MemoryError)                out_of_memory         507
    ├── TransportError (ConnectionError)         raised in the client only, as are all below
    │   ├── ConnectFailed                        connect_failed
    │   ├── TimedOut (TimeoutError)              timed_out
    │   └── BadReply                             bad_reply
    ├── UnsupportedArray (TypeError)             unsupported_array
    └── UntraceableFunction (TypeError)          untraceable_function

The code is the contract, the sentence is for people: what was wrong, what was given, what would work.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

#: Characters of a message on the wire.
MESSAGE_LENGTH = 2000


class ShardserveError(Exception):
    """Any failure that shardserve names; `code` is stable, the text is for people.

    Arguments:
        message: one sentence: what was wrong, what was given, what would work.
        details: values a program may read (plain numbers, texts and lists).
        retry_after_s: seconds after which the same request may succeed.
        error_id: the id that finds the line in the server's log (5xx only).
    """

    code: ClassVar[str] = ""
    status: ClassVar[int | None] = None

    def __init__(
        self,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        retry_after_s: float | None = None,
        error_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.details = dict(details or {})
        self.retry_after_s = retry_after_s
        self.error_id = error_id

    def __str__(self) -> str:
        suffix = f" (error id {self.error_id})" if self.error_id else ""
        return self.message + suffix

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.details, self.retry_after_s, self.error_id)

    def to_wire(self) -> dict[str, Any]:
        """The body of an error reply: `{"error": {"code", "message", "details", ...}}`."""
        body: dict[str, Any] = {"code": self.code, "message": _cut(self.message), "details": self.details}
        if self.retry_after_s is not None:
            body["retry_after_s"] = self.retry_after_s
        if self.error_id is not None:
            body["id"] = self.error_id
        return {"error": body}


def _cut(message: str) -> str:
    """A message that echoes a very long name stays a sentence."""
    return message if len(message) <= MESSAGE_LENGTH else message[: MESSAGE_LENGTH - 1] + "…"


def _rebuild(
    cls: type[ShardserveError], message: str, details: dict[str, Any], retry_after_s: float | None, error_id: str | None
) -> ShardserveError:
    return cls(message, details=details, retry_after_s=retry_after_s, error_id=error_id)


class InvalidRequest(ShardserveError, ValueError):
    """The request is well framed but its fields are not what the protocol asks for."""

    code, status = "bad_request", 400


class BadFrame(InvalidRequest):
    """The bytes are no frame: wrong magic, a broken header, segments that do not add up."""

    code = "bad_frame"


class Unauthenticated(ShardserveError, PermissionError):
    """No key, or a key that the server does not know."""

    code, status = "unauthenticated", 401


class Forbidden(ShardserveError, PermissionError):
    """The request may not be made from here, or not with this key."""

    code, status = "forbidden", 403


class NotFound(ShardserveError, LookupError):
    """An unknown kernel, mesh, route or array, or somebody else's: the same answer."""

    code, status = "not_found", 404


class MethodNotAllowed(ShardserveError, ValueError):
    """The route has no such method; `details` has those that it has."""

    code, status = "method_not_allowed", 405


class TooSlow(ShardserveError, TimeoutError):
    """The request did not arrive within the server's receive deadline."""

    code, status = "too_slow", 408


class NameTaken(ShardserveError, ValueError):
    """The name is in use; `replace=True` moves it."""

    code, status = "name_taken", 409


class Expired(ShardserveError, LookupError):
    """The lease is over, or the array was lost with its engine or server."""

    code, status = "expired", 410


class LengthRequired(ShardserveError, ValueError):
    """A body without a Content-Length."""

    code, status = "length_required", 411


class TooLarge(ShardserveError, ValueError):
    """It can never fit: over a limit of the server, or over its whole memory."""

    code, status = "too_large", 413


class UnsupportedMediaType(ShardserveError, ValueError):
    """The body's Content-Type is not one that the route reads."""

    code, status = "unsupported_media_type", 415


class ShapeError(ShardserveError, ValueError):
    """Shapes that do not fit each other or the kernel."""

    code, status = "shape_error", 422


class DTypeError(ShardserveError, TypeError):
    """A dtype, or a mix of them, that the kernel does not compute with."""

    code, status = "dtype_error", 422


class ShardingError(ShardserveError, ValueError):
    """A spec that the mesh or the array's rank does not allow."""

    code, status = "sharding_error", 422


class AxisError(ShardserveError, ValueError):
    """Named axes that are unknown, in conflict, or of unequal size."""

    code, status = "axis_error", 422


class ProgramError(ShardserveError, ValueError):
    """A program that is not well formed; the step is named."""

    code, status = "program_error", 422


class CompileFailed(ShardserveError, RuntimeError):
    """The compiler refused the program."""

    code, status = "compile_failed", 422


class QuotaExceeded(ShardserveError, RuntimeError):
    """The key's quota is used up for now."""

    code, status = "quota_exceeded", 429


class HeadTooLarge(ShardserveError, ValueError):
    """The HTTP head is over the server's limit."""

    code, status = "head_too_large", 431


class InternalError(ShardserveError, RuntimeError):
    """A fault of the server; `error_id` finds its log line."""

    code, status = "internal_error", 500


class Unavailable(ShardserveError, ConnectionError):
    """The server cannot take the call now; `retry_after_s` says when to ask again."""


class Overloaded(Unavailable):
    """The queue is full."""

    code, status = "overloaded", 503


class Draining(Unavailable):
    """The server is about to stop and takes no new calls."""

    code, status = "draining", 503


class EngineStarting(Unavailable):
    """The engine is loading; the front is up."""

    code, status = "engine_starting", 503


class EngineLost(Unavailable):
    """The engine died during the call; it is started again, but this call is not repeated."""

    code, status = "engine_lost", 503


class DeadlineExceeded(ShardserveError, TimeoutError):
    """The call was not done when its deadline passed."""

    code, status = "deadline_exceeded", 504


class CompileTimeout(ShardserveError, TimeoutError):
    """Compiling took longer than the deadline; a later call may find it done."""

    code, status = "compile_timeout", 504


class OutOfMemory(ShardserveError, MemoryError):
    """No room now; `details` says how much is needed and how much is free."""

    code, status = "out_of_memory", 507


class TransportError(ShardserveError, ConnectionError):
    """The client and the server did not reach or did not understand each other."""


class ConnectFailed(TransportError):
    """Nobody answers at the address, or the connection broke before the request was sent."""

    code = "connect_failed"


class TimedOut(TransportError, TimeoutError):
    """The client's own timeout passed; the text names the setting."""

    code = "timed_out"


class BadReply(TransportError):
    """The reply is not what the protocol promises."""

    code = "bad_reply"


class UnsupportedArray(ShardserveError, TypeError):
    """An array that cannot be carried; refused before a byte is sent."""

    code = "unsupported_array"


class UntraceableFunction(ShardserveError, TypeError):
    """A function that needs values while it is traced; the line is named."""

    code = "untraceable_function"


def _all_classes(root: type[ShardserveError]) -> Iterable[type[ShardserveError]]:
    for cls in root.__subclasses__():
        yield cls
        yield from _all_classes(cls)


BY_CODE: dict[str, type[ShardserveError]] = {cls.code: cls for cls in _all_classes(ShardserveError) if cls.code}


def from_wire(body: Any, *, status: int) -> ShardserveError:
    """The error that a reply's body describes; another shape, or a code of the client's own, makes it a `BadReply`."""
    error = body.get("error") if isinstance(body, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    cls = BY_CODE.get(code) if isinstance(code, str) else None
    if not isinstance(error, dict) or cls is None or cls.status is None or not isinstance(error.get("message"), str):
        return BadReply(f"the server answered with HTTP {status} and a body that is no shardserve error")
    details = error.get("details")
    error_id = error.get("id")
    return cls(
        error["message"],
        details=details if isinstance(details, dict) else None,
        retry_after_s=_seconds(error.get("retry_after_s")),
        error_id=error_id if isinstance(error_id, str) else None,
    )


def _seconds(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < 1e9 else None


def nearest(given: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the closest known word, or nothing."""
    close = difflib.get_close_matches(given, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""
