"""A JSON call becomes the same `CallRequest` as a frame: the human forms are read here, and nothing is executed."""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardserve_proto.dtypes import name_of, to_wire_order
from shardserve_proto.errors import InvalidRequest, nearest
from shardserve_proto.frames import encode_header
from shardserve_proto.handles import HEX_ID, ID_BYTES
from shardserve_proto.limits import LIMITS
from shardserve_proto.messages import CallRequest
from shardserve_proto.programs import validate
from shardserve_proto.specs import Axes, parse_axes, parse_resources

from .json_arrays import Array, Number, Resident, read_argument

_MAPPING_FIELDS = ("in_axes", "out_axes", "axis_sizes", "axis_resources")
_PLAIN_FIELDS = ("precision", "timeout_s")
FIELDS = ("arguments", "params", "mesh", *_MAPPING_FIELDS, "in_shardings", "out_shardings", *_PLAIN_FIELDS, "keep")
_KEEP_FIELDS = ("id", "name", "replace", "ttl_s", "pinned")
Argument = Array | Number | Resident


@dataclass(frozen=True)
class JsonCall:
    """A call that came as JSON: the header it would have had as a frame, and its segments.

    Attributes:
        kept: the id of the result, when it stays on the devices.
    """

    header: bytes
    arrays: tuple[Array, ...]
    kept: bytes | None = None


def residents(body: Any) -> list[str]:
    """The resident arrays that a body names, each once; whether it is a call is seen later."""
    given = body.get("arguments") if isinstance(body, dict) else None
    if not isinstance(given, list):
        return []
    named = [value["array"] for value in given if isinstance(value, dict) and set(value) == {"array"}]
    return list(dict.fromkeys(text for text in named if isinstance(text, str)))


def read_call(kernel: str, body: Any, known: Mapping[str, bytes]) -> JsonCall:
    """Read the body of `POST /v1/kernels/{name}`.

    Arguments:
        known: the ids of the resident arrays that it names.

    Raises:
        ShardserveError: naming the field that is wrong.
    """
    if not isinstance(body, dict):
        raise InvalidRequest('the body is an object, for example {"arguments": [[1, 2], [3, 4]]}')
    for field in body:
        if field not in FIELDS:
            raise InvalidRequest(f"unknown field {field[:64]!r}{nearest(field[:64], FIELDS)}")
    given = _list(body.get("arguments", []), "arguments")
    if len(given) > LIMITS.segments:
        raise InvalidRequest(f"{len(given)} arguments are given, at most {LIMITS.segments} are allowed")
    arguments = [read_argument(value, f"argument {index}") for index, value in enumerate(given)]
    keep, kept = _keep(body.get("keep"))
    ids = [known[argument.text] for argument in arguments if isinstance(argument, Resident)]
    arrays = [to_wire_order(argument) for argument in arguments if isinstance(argument, np.ndarray)]
    wire = _program(kernel, arguments, _object(body.get("params") or {}, "params")) | _options(body, arguments)
    if keep is not None and kept is not None:
        wire["results"] = [keep | {"array": len(ids)}]
        ids.append(kept)
    if ids:
        wire["ids"] = len(arrays)
        arrays.append(np.frombuffer(b"".join(ids), np.uint8).reshape(len(ids), ID_BYTES))
    wire["segments"] = [
        {"dtype": name_of(array.dtype), "shape": list(array.shape), "nbytes": array.nbytes} for array in arrays
    ]
    return JsonCall(encode_header(validate(CallRequest, as_tuples(wire)).to_wire()), tuple(arrays), kept)


def _program(kernel: str, arguments: Sequence[Argument], params: Mapping[str, Any]) -> dict[str, Any]:
    count = len(arguments)
    step = {"kernel": kernel, "operands": list(range(count)), "params": params}
    segments, rows = itertools.count(), itertools.count()
    wire: list[dict[str, Any]] = []
    for argument in arguments:
        if isinstance(argument, Number):
            wire.append({"value": argument})
        elif isinstance(argument, Resident):
            wire.append({"array": next(rows)})
        else:
            wire.append({"segment": next(segments)})
    return {"program": {"inputs": count, "steps": [step], "outputs": [count]}, "arguments": wire}


def _keep(value: Any) -> tuple[dict[str, Any] | None, bytes | None]:
    """What to keep of the result, and its id: the caller's own, or a random one."""
    if value is None:
        return None, None
    wanted = dict(_object(value, "keep"))
    for field in wanted:
        if field not in _KEEP_FIELDS:
            raise InvalidRequest(f"keep: unknown field {field[:64]!r}{nearest(field[:64], _KEEP_FIELDS)}")
    given = wanted.pop("id", None)
    if given is not None and not (isinstance(given, str) and HEX_ID.fullmatch(given)):
        raise InvalidRequest("keep: an id is 32 hex digits, drawn at random")
    if "ttl_s" in wanted:
        wanted["ttl_s"] = as_seconds(wanted["ttl_s"])
    return wanted, secrets.token_bytes(ID_BYTES) if given is None else bytes.fromhex(given)


def as_seconds(value: Any) -> Any:
    """JSON has one kind of numbers; the messages want a float, and refuse what is not finite."""
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _options(body: Mapping[str, Any], arguments: Sequence[Argument]) -> dict[str, Any]:
    options = {field: body[field] for field in _PLAIN_FIELDS if body.get(field) is not None}
    if "timeout_s" in options:
        options["timeout_s"] = as_seconds(options["timeout_s"])
    mesh = body.get("mesh")
    if mesh is not None:
        options["mesh"] = list(mesh.items()) if isinstance(mesh, dict) else mesh
    for field, count in (("in_shardings", len(arguments)), ("out_shardings", 1)):
        if field in body:
            options[field] = _specs(body[field], count)
    if any(body.get(field) is not None for field in _MAPPING_FIELDS):
        options["mapping"] = _mapping(body, arguments)
    return options


def _specs(value: Any, count: int) -> Any:
    """One spec for each array; null (replicated) or "auto" alone stand for all."""
    return [value] * count if value is None or value == "auto" else value


def _mapping(body: Mapping[str, Any], arguments: Sequence[Argument]) -> dict[str, Any]:
    is_array = [not isinstance(argument, Number) for argument in arguments]
    in_axes = _axes(body.get("in_axes"), "in_axes", is_array)
    out_axes = _axes(body.get("out_axes"), "out_axes", [True])
    sizes = _object(body.get("axis_sizes") or {}, "axis_sizes")
    resources = _object(body.get("axis_resources") or {}, "axis_resources")
    for name, axes in resources.items():
        if not isinstance(axes, str | list):
            raise InvalidRequest(f"axis_resources of {name!r} are a mesh axis or a list of them")
    return {
        "in_axes": [axes.model_dump() for axes in in_axes],
        "out_axes": [axes.model_dump() for axes in out_axes],
        "axis_sizes": list(sizes.items()),
        "axis_resources": parse_resources(resources),
    }


def _axes(value: Any, what: str, is_array: Sequence[bool]) -> list[Axes]:
    """One specification for each array: a list of them, or a single one that stands for all."""
    if value is None:
        return [Axes()] * len(is_array)
    if isinstance(value, dict) or not any(isinstance(entry, dict | list) for entry in _list(value, what)):
        single = parse_axes(value, what=what)
        return [single if named else Axes() for named in is_array]
    return [
        Axes() if entry is None else parse_axes(entry, what=f"{what}[{index}]") for index, entry in enumerate(value)
    ]


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidRequest(f"{what} is a list, not {type(value).__name__}")
    return value


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{what} is an object, not {type(value).__name__}")
    return value


def as_tuples(value: Any) -> Any:
    """Lists as tuples, which the messages are made of."""
    if isinstance(value, dict):
        return {key: as_tuples(item) for key, item in value.items()}
    return tuple(map(as_tuples, value)) if isinstance(value, list | tuple) else value
