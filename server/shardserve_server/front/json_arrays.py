"""Arrays in JSON: nested lists, or `{"dtype", "shape", "data"}`; NaN and infinities are texts, complex ones pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from shardserve_proto.dtypes import DTYPES, DType, dtype_named, is_supported, name_of
from shardserve_proto.errors import DTypeError, InvalidRequest, ShapeError, nearest
from shardserve_proto.limits import LIMITS
from shardserve_proto.specs import check_shape

Array = np.ndarray[Any, DType]
Number = bool | int | float
NOT_FINITE: dict[str, float] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_FIELDS = ("dtype", "shape", "data")
_RESIDENT = "array"
_INT64_MIN, _UINT64_MAX = -(2**63), 2**64 - 1


@dataclass(frozen=True)
class Resident:
    """An argument that is on the devices already, by its id or name: `{"array": "catalogue"}`."""

    text: str


def read_argument(value: Any, what: str) -> Array | Number | Resident:
    """An argument of a JSON call: an array, a resident one, or a number, which adapts to the arrays it meets as in
    Python.

    Raises:
        InvalidRequest: neither.
        ShapeError: ragged lists, or data that do not fill the shape.
        DTypeError: numbers that the dtype cannot hold.
    """
    if isinstance(value, list):
        return _from_lists(value, None, None, what)
    if isinstance(value, dict) and _RESIDENT in value:
        return _resident(value, what)
    if isinstance(value, dict):
        return _from_fields(value, what)
    number = _number(value, what)
    if isinstance(number, int) and not _INT64_MIN <= number <= _UINT64_MAX:
        raise DTypeError(f"{what}: {str(number)[:24]}… does not fit into 64 bits")
    return number


def write_array(array: Array) -> dict[str, Any]:
    """The JSON form of a result."""
    return {"dtype": name_of(array.dtype), "shape": list(array.shape), "data": _to_lists(array)}


def _resident(value: dict[str, Any], what: str) -> Resident:
    text = value[_RESIDENT]
    if len(value) > 1 or not isinstance(text, str):
        raise InvalidRequest(f'{what}: a resident array is {{"array": id or name}}, and nothing else')
    return Resident(text)


def _from_fields(value: dict[str, Any], what: str) -> Array:
    for field in value:
        if field not in _FIELDS:
            raise InvalidRequest(f"{what}: unknown field {field[:64]!r} of an array{nearest(field[:64], _FIELDS)}")
    if "data" not in value:
        raise InvalidRequest(f'{what}: an array is a nested list, or an object with "data", "dtype" and "shape"')
    dtype, shape = value.get("dtype"), value.get("shape")
    if dtype is not None and not isinstance(dtype, str):
        raise InvalidRequest(f"{what}: dtype is the name of a dtype")
    if shape is not None and not (isinstance(shape, list) and all(type(size) is int for size in shape)):
        raise InvalidRequest(f"{what}: shape is a list of integers")
    return _from_lists(value["data"], None if dtype is None else dtype_named(dtype), shape, what)


def _from_lists(data: Any, dtype: DType | None, shape: list[int] | None, what: str) -> Array:
    nested, leaves = _flatten(data, what)
    if dtype is not None and dtype.kind == "c" and leaves:
        if not nested or nested[-1] != 2:
            raise ShapeError(f"{what}: a complex number is a pair [re, im]")
        nested = nested[:-1]
    if shape is None:
        shape = nested
    check_shape(shape, what=what)
    is_flat = len(nested) == 1 or not leaves  # lists of no numbers cannot spell every shape
    if math.prod(shape) != math.prod(nested) or not (is_flat or nested == shape or not nested):
        raise ShapeError(f"{what}: data of shape {tuple(nested)} do not fill the shape {tuple(shape)}")
    numbers = [_number(leaf, what) for leaf in leaves]
    return _cast(numbers, dtype, what).reshape(shape)


def _flatten(data: Any, what: str) -> tuple[list[int], list[Any]]:
    """The shape of nested lists, and their leaves in order."""
    shape: list[int] = []
    level = [data]
    while level and all(isinstance(item, list) for item in level):
        if len({len(item) for item in level}) > 1:
            raise ShapeError(f"{what}: the lists at depth {len(shape) + 1} have different lengths")
        shape.append(len(level[0]))
        level = [leaf for item in level for leaf in item]
    if any(isinstance(item, list) for item in level):
        raise ShapeError(f"{what}: numbers and lists are mixed at depth {len(shape)}")
    if len(shape) > LIMITS.rank + 1:  # one more for the pairs of complex numbers
        raise ShapeError(f"{what}: at most {LIMITS.rank} dimensions are supported")
    return shape, level


def _number(leaf: Any, what: str) -> Number:
    if isinstance(leaf, bool | int | float):
        return leaf
    if isinstance(leaf, str) and leaf in NOT_FINITE:
        return NOT_FINITE[leaf]
    shown = "null" if leaf is None else f"{type(leaf).__name__} {str(leaf)[:40]!r}"
    raise InvalidRequest(f'{what}: a number is expected (or "NaN", "Infinity", "-Infinity"), not {shown}')


def _cast(numbers: Sequence[Number], dtype: DType | None, what: str) -> Array:
    """A flat array of the numbers; none of them is bent to fit."""
    try:
        if dtype is None:
            array: Array = np.array(numbers)
            if not is_supported(array.dtype):
                raise OverflowError
            return array
        return _caster(dtype)(numbers, dtype)
    except (OverflowError, TypeError) as error:
        wanted = "a 64-bit integer" if dtype is None else name_of(dtype)
        raise DTypeError(f"{what}: the numbers do not fit into {wanted}") from error


def _caster(dtype: DType) -> Callable[[Sequence[Number], DType], Array]:
    if dtype == DTYPES["bool"]:
        return _bools
    if dtype.kind in "iu" or dtype in (DTYPES["int4"], DTYPES["uint4"]):
        return _integers
    return _complexes if dtype.kind == "c" else _floats


def _bools(numbers: Sequence[Number], dtype: DType) -> Array:
    if not all(isinstance(number, bool) for number in numbers):
        raise TypeError("true and false only")
    return np.array(numbers, dtype)


def _integers(numbers: Sequence[Number], dtype: DType) -> Array:
    bounds = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    if not all(type(number) is int and bounds.min <= number <= bounds.max for number in numbers):
        raise OverflowError("integers in range only")
    return np.array(numbers, np.uint64 if bounds.min == 0 else np.int64).astype(dtype)


def _floats(numbers: Sequence[Number], dtype: DType) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):  # 1e300 as float32 is infinite, as in NumPy
        return np.array([float(number) for number in numbers], np.float64).astype(dtype)


def _complexes(numbers: Sequence[Number], dtype: DType) -> Array:
    with np.errstate(over="ignore"):
        return _floats(numbers, DTYPES["float64"]).view(np.complex128).astype(dtype)


def _to_lists(array: Array) -> Any:
    if array.dtype.kind == "c":
        parts = np.stack([array.real, array.imag], axis=-1)
        return _to_lists(parts)
    if array.dtype.kind in "biu":
        return array.tolist()
    if array.dtype in (DTYPES["int4"], DTYPES["uint4"]):
        return array.astype(np.int8).tolist()
    return _floats_to_lists(array if array.dtype.kind == "f" else array.astype(np.float32))


def _floats_to_lists(array: Array) -> Any:
    if np.isfinite(array).all():
        return array.tolist()
    values = array.astype(object)
    values[np.isnan(array)] = "NaN"
    values[array == math.inf] = "Infinity"
    values[array == -math.inf] = "-Infinity"
    return values.tolist()
