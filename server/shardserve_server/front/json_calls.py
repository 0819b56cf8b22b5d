"""A JSON call becomes the same `CallRequest` as a frame: the human forms are read here, and nothing is executed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardserve_proto.dtypes import name_of, to_wire_order
from shardserve_proto.errors import InvalidRequest, nearest
from shardserve_proto.frames import encode_header
from shardserve_proto.limits import LIMITS
from shardserve_proto.messages import CallRequest
from shardserve_proto.programs import validate
from shardserve_proto.specs import Axes, parse_axes, parse_resources

from .json_arrays import Array, Number, read_argument

_MAPPING_FIELDS = ("in_axes", "out_axes", "axis_sizes", "axis_resources")
_PLAIN_FIELDS = ("precision", "timeout_s")
FIELDS = ("arguments", "params", "mesh", *_MAPPING_FIELDS, "in_shardings", "out_shardings", *_PLAIN_FIELDS)


@dataclass(frozen=True)
class JsonCall:
    """A call that came as JSON: the header it would have had as a frame, and its arrays."""

    header: bytes
    arrays: tuple[Array, ...]


def read_call(kernel: str, body: Any) -> JsonCall:
    """Read the body of `POST /v1/kernels/{name}`.

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
    arrays = tuple(to_wire_order(argument) for argument in arguments if not isinstance(argument, Number))
    wire = _program(kernel, arguments, _object(body.get("params") or {}, "params"), arrays) | _options(body, arguments)
    return JsonCall(encode_header(validate(CallRequest, _tuples(wire)).to_wire()), arrays)


def _program(
    kernel: str, arguments: Sequence[Array | Number], params: Mapping[str, Any], arrays: Sequence[Array]
) -> dict[str, Any]:
    count = len(arguments)
    step = {"kernel": kernel, "operands": list(range(count)), "params": params}
    numbers = iter(range(len(arrays)))
    return {
        "program": {"inputs": count, "steps": [step], "outputs": [count]},
        "arguments": [
            {"value": argument} if isinstance(argument, Number) else {"segment": next(numbers)}
            for argument in arguments
        ],
        "segments": [
            {"dtype": name_of(array.dtype), "shape": list(array.shape), "nbytes": array.nbytes} for array in arrays
        ],
    }


def _options(body: Mapping[str, Any], arguments: Sequence[Array | Number]) -> dict[str, Any]:
    options = {field: body[field] for field in _PLAIN_FIELDS if body.get(field) is not None}
    if isinstance(options.get("timeout_s"), int) and not isinstance(options["timeout_s"], bool):
        options["timeout_s"] = float(options["timeout_s"])
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


def _mapping(body: Mapping[str, Any], arguments: Sequence[Array | Number]) -> dict[str, Any]:
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


def _tuples(value: Any) -> Any:
    """Lists as tuples, which the messages are made of."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value
