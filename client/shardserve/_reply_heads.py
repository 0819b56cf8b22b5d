"""Headers of replies, checked once and remembered: those of equal calls differ in the report's seconds alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from shardserve_proto.abstract import Aval
from shardserve_proto.dtypes import dtype_named
from shardserve_proto.errors import BadReply
from shardserve_proto.frames import Layout, decode_header
from shardserve_proto.limits import LIMITS
from shardserve_proto.messages import CallReply, Report, Segment, frame_layout
from shardserve_proto.programs import validate

from ._config import HEADERS_KEPT
from ._lru import Remembered

#: The report's last key; what is behind it is its seconds and the end of the header.
_MARK = b"\xa8phases_s"
_KEPT_BYTES = 4096
_SECONDS_BYTES = 1024


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """What a reply's header says, checked.

    Attributes:
        arrays: shape and dtype of each result.
        expected: the abstract results that they were held against.
        is_split: whether the header ends with the report's seconds, so that those may be another's.
    """

    layout: Layout
    arrays: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
    report: Report
    expected: Sequence[Aval] | None
    is_split: bool


_known: Remembered[ReplyHead] = Remembered(HEADERS_KEPT)


def read_reply_head(header: bytes, *, declared: int, expected: Sequence[Aval] | None) -> tuple[ReplyHead, Report]:
    """Read the header of a reply.

    Arguments:
        declared: the segment count of the prelude.
        expected: abstract results, where the client knows them.

    Returns: the head, and the report of this call.

    Raises:
        BadReply: the results are not those expected.
        ShardserveError: the header is not what the protocol promises.
    """
    end = header.rfind(_MARK) + len(_MARK)
    if end < len(_MARK) or len(header) > _KEPT_BYTES:
        head = _read(header, end, declared, expected)
        return head, head.report
    # Behind equal bytes stands an equal value: msgpack is read from left to right.
    head = _known.get((header[:end], len(header), declared), lambda: _read(header, end, declared, expected))
    seconds = _seconds(header[end:]) if head.is_split else None
    if seconds is None:
        head = _read(header, end, declared, expected)
        return head, head.report
    if expected is not None and expected is not head.expected:
        _check_expected(head.arrays, expected)
    return head, head.report.model_copy(update={"phases_s": seconds})


def _read(header: bytes, end: int, declared: int, expected: Sequence[Aval] | None) -> ReplyHead:
    reply = validate(CallReply, decode_header(header))
    layout = frame_layout(len(header), reply.segments, declared=declared, body_bytes=LIMITS.body_bytes)
    arrays = tuple(map(_form, reply.segments))
    if expected is not None:
        _check_expected(arrays, expected)
    is_split = _seconds(header[end:]) == reply.report.phases_s
    return ReplyHead(layout, arrays, reply.report, expected, is_split)


def _form(segment: Segment) -> tuple[tuple[int, ...], np.dtype[Any]]:
    return segment.shape, dtype_named(segment.dtype)


def _seconds(tail: bytes) -> dict[str, float] | None:
    """The end of a header as names and floats; None where it is anything else."""
    if len(tail) > _SECONDS_BYTES:
        return None
    try:
        found = msgpack.unpackb(tail, raw=False, max_array_len=0, max_bin_len=0, max_ext_len=0)
    except (ValueError, msgpack.UnpackException):
        return None
    if type(found) is not dict or not all(type(name) is str and type(s) is float for name, s in found.items()):
        return None
    return found


def _check_expected(arrays: Sequence[tuple[tuple[int, ...], np.dtype[Any]]], expected: Sequence[Aval]) -> None:
    if len(arrays) != len(expected):
        raise BadReply(f"the server answers with {len(arrays)} arrays, the program has {len(expected)} results")
    for index, ((shape, dtype), aval) in enumerate(zip(arrays, expected, strict=True)):
        if shape != aval.shape or dtype != aval.strong_dtype:
            raise BadReply(f"result {index} of the server is {dtype}{list(shape)}, but the program gives {aval}")
