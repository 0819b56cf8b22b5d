"""Calls to an engine in this process, as the wire carries them."""

from __future__ import annotations

from collections.abc import Mapping as MappingABC
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardserve_proto.dtypes import dtype_named, name_of, to_wire_order
from shardserve_proto.frames import decode_header, encode_header
from shardserve_proto.messages import Argument, CallReply, CallRequest, Report, Segment, SegmentArgument
from shardserve_proto.programs import Constant, Mapping, Program, validate
from shardserve_proto.specs import Axes, parse_axes, parse_resources
from shardserve_server.engine.engine import Engine

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Result:
    """What a call gave."""

    values: list[Array]
    report: Report

    @property
    def value(self) -> Array:
        (only,) = self.values
        return only


def encode(
    program: str | Program, *arguments: Any, params: dict[str, Any] | None = None, **fields: Any
) -> tuple[bytes, list[Array]]:
    """The header and the segments of a call; Python scalars stay weak."""
    if isinstance(program, str):
        program = Program.of_kernel(program, operands=len(arguments), params=params)
    segments: list[Array] = []
    described: list[Segment] = []
    given: list[Argument] = []
    for argument in arguments:
        if isinstance(argument, bool | int | float | complex) and not isinstance(argument, np.generic):
            given.append(Constant.of(argument))
            continue
        array = to_wire_order(np.asarray(argument))
        given.append(SegmentArgument(segment=len(segments)))
        described.append(Segment(dtype=name_of(array.dtype), shape=array.shape, nbytes=array.nbytes))
        segments.append(np.frombuffer(array.tobytes(), np.uint8))
    request = CallRequest(program=program, arguments=tuple(given), segments=tuple(described), **fields)
    return encode_header(request.to_wire()), segments


def run(engine: Engine, program: str | Program, *arguments: Any, timeout_s: float = 50, **fields: Any) -> Result:
    """One call, waited for."""
    header, segments = encode(program, *arguments, **fields)
    reply = engine.submit(header, segments).result(timeout_s)
    found = validate(CallReply, decode_header(reply.header))
    values = [
        np.frombuffer(memory, np.uint8).view(dtype_named(segment.dtype)).reshape(segment.shape)
        for memory, segment in zip(reply.segments, found.segments, strict=True)
    ]
    return Result(values, found.report)


def mapping(
    in_axes: list[Any],
    out_axes: list[Any],
    axis_resources: MappingABC[str, Any] | None = None,
    axis_sizes: MappingABC[str, int] | None = None,
) -> Mapping:
    """A mapping in the human forms."""
    return Mapping(
        in_axes=tuple(_axes(axes) for axes in in_axes),
        out_axes=tuple(_axes(axes) for axes in out_axes),
        axis_resources=parse_resources(axis_resources or {}),
        axis_sizes=tuple((axis_sizes or {}).items()),
    )


def _axes(value: Any) -> Axes:
    return parse_axes(value)
