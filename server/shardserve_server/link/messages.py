"""The messages between front and engine: small, typed, and free of array bytes.

On the socket a message is `[kind, field, field, ...]` in msgpack; the bytes that ride along with it (the payload)
follow it raw. Numbers of calls are chosen by the front and mean nothing beyond one connection.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from shardserve_proto.errors import BY_CODE, InternalError, ShardserveError

#: Spoken by both ends of one installation; a mismatch is a broken installation.
LINK_VERSION = 4

#: The owner of the operator's declared arrays, which everybody may use; no key can have it.
DECLARED = "\0declared"

Kept: TypeAlias = tuple[bytes, dict[str, Any], bool]  # id and description of an array, and whether this call made it
Ranges: TypeAlias = tuple[tuple[int, int], ...]  # (offset, bytes) of each segment, in a buffer or in the payload


@dataclass(frozen=True, slots=True)
class Hello:
    """Engine to front, once it is ready: the wire form of its `EngineInfo`."""

    version: int
    info: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refused:
    """Engine to front: it cannot start with these settings, and a restart would not help."""

    error: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """Front to engine: run a call.

    Attributes:
        header: the bytes of a `CallRequest`.
        segments: where each segment lies.
        lease: the lease that holds the segments, or None when they are the payload.
        buffer, nbytes: the lease's buffer, and how much of it the lease covers.
        ids: of the resident arrays that the call refers to, under its owner.
        streams: whether large outputs may be read window by window.
        deadline: on the monotonic clock, which all processes of a host share.
        receive_s: seconds that the front took to receive the call, for the report.
    """

    call: int
    owner: str
    header: bytes
    segments: Ranges
    lease: int | None
    buffer: int | None
    nbytes: int
    deadline: float | None
    receive_s: float
    ids: tuple[bytes, ...] = ()
    streams: bool = False


@dataclass(frozen=True, slots=True)
class Cancel:
    """Front to engine: nobody waits for this call any more, or for the rest of its stream."""

    call: int


@dataclass(frozen=True, slots=True)
class WantBuffer:
    """Engine to front: the call's outputs take so many bytes."""

    call: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Granted:
    """Front to engine: write the outputs here."""

    call: int
    lease: int
    buffer: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Denied:
    """Front to engine: no buffer for this call, and why."""

    call: int
    error: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """Engine to front: the outputs, in the granted lease, in the payload, or to be read as a stream.

    Attributes:
        windows: of a stream: for each output that is data, the bytes of its windows.
        owner, stored: of each output that the engine keeps under its owner: id, description, and whether it is new.
        adopted: the call's own lease now belongs to an array that is kept; it is released with that array.
    """

    call: int
    header: bytes
    segments: Ranges
    lease: int | None
    windows: tuple[tuple[int, ...], ...] = ()
    owner: str = ""
    stored: tuple[Kept, ...] = ()
    adopted: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """Engine to front: the call ended with this error."""

    call: int
    error: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Released:
    """Engine to front: nothing in the engine refers to this lease any more."""

    lease: int


@dataclass(frozen=True, slots=True)
class Fill:
    """Front to engine: copy one window of a stream into this lease, whose buffer is named first."""

    call: int
    segment: int
    window: int
    lease: int
    buffer: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Filled:
    """Engine to front: the window is in the lease, or why it is not."""

    call: int
    lease: int
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Front to engine: forget these arrays; calls that use them keep them to their end.

    Attributes:
        undo: they were kept by a call of which nobody will know; those that another call has kept as well, stay.
    """

    owner: str
    ids: tuple[bytes, ...]
    undo: bool = False


@dataclass(frozen=True, slots=True)
class DropQueued:
    """Front to engine: the server stops; calls that were not launched yet are refused as `Draining`."""


@dataclass(frozen=True, slots=True)
class AskMemory:
    """Front to engine: what does the ledger say?"""

    call: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Engine to front: the ledger of the devices."""

    call: int
    info: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Forget:
    """Front to engine: the buffer is gone for good; unmap it."""

    buffer: int


Message: TypeAlias = (
    Hello
    | Refused
    | Call
    | Cancel
    | WantBuffer
    | Granted
    | Denied
    | Reply
    | Failed
    | Released
    | Fill
    | Filled
    | Delete
    | AskMemory
    | Memory
    | Forget
    | DropQueued
)
_KINDS: tuple[type[Message], ...] = (
    Hello, Refused, Call, Cancel, WantBuffer, Granted, Denied, Reply, Failed, Released,
    Fill, Filled, Delete, AskMemory, Memory, Forget, DropQueued,
)  # fmt: skip
_NUMBERS: dict[type[Message], int] = {kind: number for number, kind in enumerate(_KINDS)}
_FIELD_NAMES: dict[type[Message], tuple[str, ...]] = {
    kind: tuple(field.name for field in fields(kind)) for kind in _KINDS
}


def to_fields(message: Message) -> tuple[Any, ...]:
    """`(kind, field, ...)`."""
    kind = type(message)
    return (_NUMBERS[kind], *(getattr(message, name) for name in _FIELD_NAMES[kind]))


def from_fields(values: tuple[Any, ...]) -> Message:
    """The message of its fields.

    Raises:
        ValueError: no such kind, or another number of fields.
    """
    try:
        message: Message = _KINDS[values[0]](*values[1:])
        return message
    except (IndexError, TypeError) as error:
        raise ValueError("not a message of the link") from error


def error_to_wire(error: ShardserveError) -> dict[str, Any]:
    """An error as the link carries it: the whole of it, since both ends are ours."""
    wire: dict[str, Any] = error.to_wire()["error"]
    return wire


def error_from_wire(wire: dict[str, Any]) -> ShardserveError:
    """The error of `error_to_wire`."""
    cls = BY_CODE.get(wire.get("code", ""), InternalError)
    return cls(
        wire.get("message", "the engine gave no reason"),
        details=wire.get("details"),
        retry_after_s=wire.get("retry_after_s"),
        error_id=wire.get("id"),
    )
