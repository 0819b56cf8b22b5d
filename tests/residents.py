"""Resident arrays in an engine of this process: put, call and get, as the wire carries them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardserve_proto.dtypes import dtype_named, name_of
from shardserve_proto.frames import decode_header, encode_header
from shardserve_proto.handles import ID_BYTES
from shardserve_proto.messages import (
    ArrayArgument,
    CallReply,
    CallRequest,
    Keep,
    Report,
    Segment,
    SegmentArgument,
    check_call,
    ids_segment,
)
from shardserve_proto.programs import Program, validate
from shardserve_server.engine.engine import CallResult, Engine

Array = np.ndarray[Any, np.dtype[Any]]
TRANSFER = Program(inputs=1, outputs=(0,))


@dataclass(frozen=True)
class Handle:
    """A resident array of a test."""

    id: bytes


@dataclass(frozen=True)
class Outcome:
    """What a call gave: data, handles, and the reply itself."""

    values: list[Array]
    report: Report
    reply: CallResult


def aligned(array: Array) -> Array:
    """The array's bytes as a segment in memory of its own that begins on a 64-byte boundary, as buffers do."""
    raw = np.empty(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    raw[start : start + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    return raw[start : start + array.nbytes]


def run(
    engine: Engine,
    program: Program,
    *arguments: Array | Handle,
    keep: Sequence[bytes] = (),
    owner: str = "",
    streams: bool = False,
    **fields: Any,
) -> Outcome:
    """One call; with `keep` each output stays under its id."""
    ids = [argument.id for argument in arguments if isinstance(argument, Handle)] + list(keep)
    arrays = [argument for argument in arguments if not isinstance(argument, Handle)]
    numbers, rows = iter(range(len(arrays))), iter(range(len(ids)))
    request = CallRequest(
        program=program,
        arguments=tuple(
            ArrayArgument(array=next(rows)) if isinstance(argument, Handle) else SegmentArgument(segment=next(numbers))
            for argument in arguments
        ),
        segments=(
            *(Segment(dtype=name_of(array.dtype), shape=array.shape, nbytes=array.nbytes) for array in arrays),
            ids_segment(len(ids)),
        ),
        ids=len(arrays),
        results=tuple(Keep(array=next(rows)) for _ in keep) or None,
        **fields,
    )
    check_call(request)
    segments = [aligned(array) for array in arrays]
    reply = engine.submit(encode_header(request.to_wire()), segments, owner=owner, ids=ids, streams=streams).result(50)
    found = validate(CallReply, decode_header(reply.header))
    described = zip(reply.segments, found.segments, strict=False)
    values = [np.frombuffer(m, np.uint8).view(dtype_named(s.dtype)).reshape(s.shape) for m, s in described]
    return Outcome(values, found.report, reply)


def put(engine: Engine, array: Array, *, owner: str = "", **fields: Any) -> Handle:
    """Keep an array."""
    handle = Handle(secrets.token_bytes(ID_BYTES))
    run(engine, TRANSFER, array, keep=[handle.id], owner=owner, **fields)
    return handle


def get(engine: Engine, handle: Handle, *, owner: str = "", **fields: Any) -> Array:
    """An array that was kept."""
    (value,) = run(engine, TRANSFER, handle, owner=owner, **fields).values
    return value
