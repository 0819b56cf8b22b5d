"""Resident arrays without a server: handles as a client makes them, and replies that keep results."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

import shardserve as ss
from shardserve._array import RemoteArray
from shardserve_proto.frames import PRELUDE_BYTES, decode_header, decode_prelude, encode_frame, encode_header
from shardserve_proto.messages import CallReply, PlacementReport

from .replies import http, report

NOWHERE = "http://127.0.0.1:9"


def placement(shape: tuple[int, ...], dtype: str = "float32") -> PlacementReport:
    return PlacementReport(dtype=dtype, shape=shape, spec=None, padded_shape=shape, shard_shape=shape)


def handle(client: ss.Client, shape: tuple[int, ...] = (4, 3), dtype: str = "float32", **fields: Any) -> RemoteArray:
    """A handle that no server knows."""
    key = fields.pop("key", b"\1" * 16)
    return RemoteArray(client, key, placement(shape, dtype), mesh=(), devices=(0,), **fields)


def kept(*shapes: tuple[int, ...], dtype: str = "float32") -> bytes:
    """The answer to a call whose results stayed."""
    outputs = tuple(placement(shape, dtype) for shape in shapes)
    reply = CallReply(segments=(), report=report().model_copy(update={"outputs": outputs}))
    return http(b"".join(bytes(part) for part in encode_frame(encode_header(reply.model_dump()), [])))


def answer(value: Any) -> bytes:
    """An answer in JSON."""
    return http(json.dumps(value).encode(), kind="application/json")


def header_of(request: bytes) -> dict[str, Any]:
    """The header of a call's request."""
    body = request.partition(b"\r\n\r\n")[2]
    prelude = decode_prelude(body)
    return decode_header(body[PRELUDE_BYTES : PRELUDE_BYTES + prelude.header_bytes])


def ids_of(request: bytes) -> list[str]:
    """The ids of a call, which are its first segment."""
    header = header_of(request)
    body = request.partition(b"\r\n\r\n")[2]
    prelude = decode_prelude(body)
    start = -(-(PRELUDE_BYTES + prelude.header_bytes) // 64) * 64
    assert header["ids"] == 0
    rows = header["segments"][0]["shape"][0]
    return [bytes(row).hex() for row in np.frombuffer(body, np.uint8, rows * 16, start).reshape(rows, 16)]
