"""Static parameters as NumPy users write them, in the form that a program carries."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from shardserve_proto.dtypes import DTYPES, dtype_named, is_supported, name_of
from shardserve_proto.errors import DTypeError, ProgramError
from shardserve_proto.programs import Param
from shardserve_proto.signatures import BUILTIN

from ._axes import is_position


def dtype_name(dtype: Any) -> str:
    """The wire name of a dtype in any form that NumPy knows: `np.float32`, `"bfloat16"`, `float`.

    Raises:
        DTypeError: not one that can be carried.
    """
    if isinstance(dtype, str):
        return dtype if dtype in DTYPES else name_of(_numpy_dtype(dtype))
    return name_of(_numpy_dtype(dtype))


def _numpy_dtype(given: Any) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = np.dtype(given)
    except TypeError:
        return dtype_named(str(given))  # which names the nearest
    if not is_supported(dtype):
        raise DTypeError(f"arrays of dtype {dtype} are not computed with (supported: {', '.join(DTYPES)})")
    return dtype


def _entry(value: Any) -> Any:
    return operator.index(value) if is_position(value) else value


def _many(value: Any) -> Any:
    return tuple(map(_entry, value)) if isinstance(value, list | tuple | set | frozenset) else _entry(value)


def _optional(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "dtype": _optional(dtype_name),
    "axes": _optional(_many),
    "order": _optional(_many),
    "names": _many,
    "shape": _many,
    "int": _entry,
    "bool": lambda value: bool(value) if isinstance(value, np.bool_) else value,
}


@lru_cache(maxsize=256)
def _kinds(kernel: str) -> Mapping[str, str]:
    signature = BUILTIN.get(kernel)
    return {parameter.name: parameter.type for parameter in signature.parameters} if signature else {}


def wire_params(kernel: str, params: Mapping[str, Any]) -> dict[str, Param]:
    """The parameters of a call, converted; the kernel's signature checks them afterwards.

    Raises:
        ProgramError: a value that is no static parameter.
        DTypeError: an unknown dtype.
    """
    kinds = _kinds(kernel)
    return {name: _convert(kernel, name, value, kinds.get(name)) for name, value in params.items()}


def _convert(kernel: str, name: str, value: Any, kind: str | None) -> Param:
    if kernel == "astype" and name == "dtype":
        return dtype_name(value)
    converted = _CONVERSIONS[kind](value) if kind in _CONVERSIONS else _plain(value)
    if not _is_static(converted):
        raise ProgramError(
            f"parameter {name!r} of {kernel} is static (numbers, texts and tuples of them), not a "
            f"{type(value).__name__}; arrays are given as arguments in front of it"
        )
    return converted  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    """A parameter of a kernel whose signature only the server knows."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return dtype_name(value)
    return value


def _is_static(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_static, value))
    return value is None or isinstance(value, bool | int | float | str)
