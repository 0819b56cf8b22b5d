"""The calls behind the routes of arrays: a put, a download and a slice are calls like any other."""

from __future__ import annotations

import json
import re
from typing import Any

from shardserve_proto.errors import InvalidRequest
from shardserve_proto.frames import encode_header
from shardserve_proto.messages import ArrayArgument, CallRequest, Keep, Segment, ids_segment
from shardserve_proto.programs import Param, Program, Step, validate

from .index import Slice
from .json_calls import as_tuples

TRANSFER = Program(inputs=1, outputs=(0,))
_AXIS = re.compile(r" *([^=, ]+) *= *(-?[0-9]{1,9}) *")


def put_header(segment: Segment, keep: Keep, *, spec: str | None, mesh: str | None) -> bytes:
    """The header of a put: the array is segment 0, its id segment 1.

    Arguments:
        spec: JSON: a list, null (replicated) or "auto"; None leaves it open.
        mesh: a name, or `x=4,y=2`.

    Raises:
        ShardserveError: naming the field that is wrong.
    """
    wire: dict[str, Any] = {
        "program": TRANSFER.to_wire(),
        "arguments": [{"segment": 0}],
        "segments": [segment.model_dump(), ids_segment().model_dump()],
        "ids": 1,
        "results": [keep.model_dump()],
    }
    if spec is not None:
        wire["out_shardings"] = [_spec(spec)]
    if mesh is not None:
        wire["mesh"] = _mesh(mesh)
    return encode_header(validate(CallRequest, as_tuples(wire)).to_wire())


def get_header(wanted: Slice | None = None) -> bytes:
    """The header of a download: the array's id is segment 0."""
    program = TRANSFER if wanted is None else _slicing(wanted)
    arguments = (ArrayArgument(array=0),)
    request = CallRequest(program=program, arguments=arguments, segments=(ids_segment(),), ids=0)
    return encode_header(request.to_wire())


def _slicing(wanted: Slice) -> Program:
    bounds: dict[str, Param] = {"starts": wanted.starts, "stops": wanted.stops, "steps": wanted.steps}
    steps = [Step(kernel="slice", operands=(0,), params=bounds)]
    if len(wanted.shape) < len(wanted.starts):
        steps.append(Step(kernel="reshape", operands=(1,), params={"shape": wanted.shape}))
    return Program(inputs=1, steps=tuple(steps), outputs=(len(steps),))


def _spec(text: str) -> Any:
    if text == "auto":
        return "auto"
    try:
        value = json.loads(text) if len(text) <= 4096 else ...
    except (ValueError, RecursionError):
        value = ...
    if value is None or value == "auto" or isinstance(value, list):
        return value
    raise InvalidRequest(
        f"spec={text[:80]!r} is no spec; it is JSON: a list with a mesh axis or null for each dimension, such as "
        '["devices",null], null (replicated) or "auto"'
    )


def _mesh(text: str) -> Any:
    if "=" not in text:
        return text
    axes = [_AXIS.fullmatch(part) for part in text.split(",")]
    if None in axes:
        raise InvalidRequest(f"mesh={text[:80]!r} is neither the name of a mesh nor of the form x=4,y=2")
    return [(match.group(1), int(match.group(2))) for match in axes if match is not None]
