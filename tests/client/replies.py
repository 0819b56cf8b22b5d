"""Replies as a server makes them, and as a hostile one does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardserve_proto.dtypes import name_of
from shardserve_proto.errors import ShardserveError
from shardserve_proto.frames import MEDIA_TYPE, encode_frame, encode_header
from shardserve_proto.messages import CallReply, PlacementReport, Report, Segment

Array = np.ndarray[Any, Any]


def report(arrays: Sequence[Array] = ()) -> Report:
    """A plausible report."""
    placements = tuple(
        PlacementReport(dtype=name_of(x.dtype), shape=x.shape, spec=None, padded_shape=x.shape, shard_shape=x.shape)
        for x in arrays
    )
    return Report(
        device_kind="cpu", mesh=(), devices=(0,), precision="highest", arguments=(), outputs=placements,
        compiled=False, phases_s={"run": 0.001},
    )  # fmt: skip


def header(arrays: Sequence[Array], **changes: Any) -> dict[str, Any]:
    """The header of a reply; `changes` are lies about the first segment."""
    segments = [Segment(dtype=name_of(x.dtype), shape=x.shape, nbytes=x.nbytes) for x in arrays]
    fields = CallReply(segments=tuple(segments), report=report(arrays)).model_dump()
    if changes:
        fields["segments"][0].update(changes)
    return fields


def frame(*arrays: Array, **changes: Any) -> bytes:
    """A reply with these results."""
    buffers = [memoryview(x.tobytes()) for x in arrays]
    return b"".join(bytes(part) for part in encode_frame(encode_header(header(arrays, **changes)), buffers))


def http(
    body: bytes, *, status: str = "200 OK", kind: str = MEDIA_TYPE, length: int | None = None, more: str = ""
) -> bytes:
    """A whole HTTP answer; `length` may lie."""
    declared = len(body) if length is None else length
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {declared}\r\n{more}\r\n"
    return head.encode() + body


def refusal(error: ShardserveError) -> bytes:
    """An error as the front answers it."""
    body = json.dumps(error.to_wire()).encode()
    return http(body, status=f"{error.status} Error", kind="application/json")
