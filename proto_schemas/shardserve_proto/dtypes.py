"""The closed table of dtypes, and the dtype of every result.

A dtype is always looked up by name: `np.dtype(text)` would accept objects and records from a client, and `dtype.str`
turns bfloat16 into a void. Result dtypes follow NumPy (NEP 50) for NumPy's own dtypes; those of ml_dtypes have the
small table that `docs/numbers.md` explains.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

import ml_dtypes
import numpy as np

from .errors import DTypeError, nearest

DType = np.dtype[Any]
WeakKind = Literal["bool", "int", "float", "complex"]

_NUMPY_NAMES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
_ML_NAMES = (
    "int4", "uint4", "bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn",
    "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
)  # fmt: skip

#: name -> dtype, little-endian; nothing else crosses the wire.
DTYPES: dict[str, DType] = {name: np.dtype(name) for name in _NUMPY_NAMES}
DTYPES |= {name: np.dtype(getattr(ml_dtypes, name)) for name in _ML_NAMES}
_NAMES: dict[DType, str] = {dtype: name for name, dtype in DTYPES.items()}

BFLOAT16 = DTYPES["bfloat16"]
#: 16-bit floats accumulate, and cross devices, in float32.
HALF_FLOATS = frozenset({DTYPES["float16"], BFLOAT16})
_FLOATS = HALF_FLOATS | {DTYPES["float32"], DTYPES["float64"]}
_NUMPY_DTYPES = frozenset(DTYPES[name] for name in _NUMPY_NAMES)
_BYTE_WIDE = frozenset({DTYPES["bool"], DTYPES["int8"], DTYPES["uint8"]})
_WEAK_TYPES: dict[WeakKind, type] = {"bool": bool, "int": int, "float": float, "complex": complex}
_WEAK_DTYPES: dict[WeakKind, DType] = {
    "bool": DTYPES["bool"], "int": DTYPES["int64"], "float": DTYPES["float64"], "complex": DTYPES["complex128"],
}  # fmt: skip


def dtype_named(name: str) -> DType:
    """The dtype of a wire name.

    Raises:
        DTypeError: the name is not in the table.
    """
    dtype = DTYPES.get(name)
    if dtype is None:
        shown = name if len(name) <= 40 else name[:40] + "…"
        raise DTypeError(
            f"unknown dtype {shown!r}{nearest(name[:40], DTYPES)} (supported: {', '.join(DTYPES)})",
            details={"dtype": shown},
        )
    return dtype


def is_supported(dtype: DType) -> bool:
    """Whether arrays of this dtype can be carried (in any byte order)."""
    return dtype.newbyteorder("=") in _NAMES


def name_of(dtype: DType) -> str:
    """The wire name of a supported dtype, whatever its byte order."""
    return _NAMES[dtype.newbyteorder("=")]


def is_weak(operand: DType | WeakKind) -> bool:
    """Whether the operand is the kind of a Python scalar, which adapts to the arrays it meets."""
    return isinstance(operand, str)


def strong(operand: DType | WeakKind) -> DType:
    """The dtype that an operand has on its own: NumPy's default for a Python scalar."""
    return _WEAK_DTYPES[operand] if isinstance(operand, str) else operand


def is_float(dtype: DType) -> bool:
    """float16, bfloat16, float32 or float64: real floats that shardserve computes with."""
    return dtype in _FLOATS  # not by kind: that of float8_e5m2 is "f" too


def result_dtype(*operands: DType | WeakKind) -> DType:
    """The common dtype of operands, as `numpy.result_type`; Python scalars are weak.

    Raises:
        DTypeError: the mix has no agreed result and asks for a cast.
    """
    return _result_dtype(operands)


@lru_cache(maxsize=4096)
def _result_dtype(operands: tuple[DType | WeakKind, ...]) -> DType:
    arrays = [operand for operand in operands if not isinstance(operand, str)]
    if all(dtype in _NUMPY_DTYPES for dtype in arrays):
        return np.result_type(*(_numpy_operand(operand) for operand in operands))
    if len(set(operands)) == 1:
        return arrays[0]
    return _half_result(operands)


def _numpy_operand(operand: DType | WeakKind) -> Any:
    return _WEAK_TYPES[operand](0) if isinstance(operand, str) else operand


def _half_result(operands: tuple[DType | WeakKind, ...]) -> DType:
    """bfloat16 stays with itself, real Python scalars and 8-bit integers; float32 and float64 win; no other mix."""
    arrays = {operand for operand in operands if not isinstance(operand, str)}
    weak = {operand for operand in operands if isinstance(operand, str)}
    others = arrays - {BFLOAT16} - _BYTE_WIDE
    if BFLOAT16 in arrays and "complex" not in weak:
        if not others:
            return BFLOAT16
        if others <= {DTYPES["float32"], DTYPES["float64"]}:
            return DTYPES["float64"] if DTYPES["float64"] in others else DTYPES["float32"]
    names = sorted({name_of(dtype) for dtype in arrays} | {f"Python {kind}" for kind in weak})
    raise DTypeError(
        f"no common dtype for {', '.join(names)}; cast one side with astype(..., 'float32'), for example",
        details={"dtypes": names},
    )


def loop_dtypes(ufunc: np.ufunc, *operands: DType | WeakKind) -> tuple[DType, ...]:
    """The dtypes that NumPy's own ufunc casts its operands to, and last the dtype of its result.

    For dtypes of ml_dtypes a 16-bit float computes and answers in itself (a comparison in bool).

    Raises:
        DTypeError: NumPy has no such loop (for example `bool - bool`), or the dtypes do not mix.
    """
    return _loop_dtypes(ufunc, operands)


@lru_cache(maxsize=4096)
def _loop_dtypes(ufunc: np.ufunc, operands: tuple[DType | WeakKind, ...]) -> tuple[DType, ...]:
    if all(isinstance(operand, str) or operand in _NUMPY_DTYPES for operand in operands):
        return _numpy_loop(ufunc, operands)
    common = result_dtype(*operands)
    if common in _NUMPY_DTYPES:  # bfloat16 with float32 or float64
        return _numpy_loop(ufunc, (common,) * len(operands))
    if common != BFLOAT16:
        raise DTypeError(
            f"{ufunc.__name__} does not compute in {name_of(common)}; cast with astype(..., 'float32') first",
            details={"dtypes": [name_of(common)]},
        )
    answer = _numpy_loop(ufunc, (DTYPES["float32"],) * len(operands))[-1]
    return (BFLOAT16,) * len(operands) + (answer if answer == DTYPES["bool"] else BFLOAT16,)


def _numpy_loop(ufunc: np.ufunc, operands: tuple[DType | WeakKind, ...]) -> tuple[DType, ...]:
    # A Python bool is bool to NumPy, and not weak.
    types = tuple(
        _WEAK_TYPES[operand] if isinstance(operand, str) and operand != "bool" else strong(operand)
        for operand in operands
    )
    if all(isinstance(kind, type) for kind in types):  # NumPy refuses an all-Python signature
        types = tuple(strong(operand) for operand in operands)
    try:
        resolved = ufunc.resolve_dtypes((*types, None))
    except TypeError:
        names = [operand if isinstance(operand, str) else name_of(operand) for operand in operands]
        raise DTypeError(
            f"{ufunc.__name__} is not defined for {', '.join(names)}, as in NumPy; cast first, for example with astype",
            details={"dtypes": names},
        ) from None
    return tuple(dtype for dtype in resolved if dtype is not None)


def sum_dtype(dtype: DType | WeakKind) -> DType:
    """The dtype of a sum, as `numpy.sum`: small integers widen to 64 bits, floats stay."""
    kind = strong(dtype)
    if kind in _NUMPY_DTYPES:
        total: DType = np.zeros(0, kind).sum().dtype
        return total
    return _half_only(kind, "sum")


def mean_dtype(dtype: DType | WeakKind) -> DType:
    """The dtype of a mean, as `numpy.mean`: float64 for integers, else the dtype itself."""
    kind = strong(dtype)
    if kind in _NUMPY_DTYPES:
        return kind if kind.kind in "fc" else DTYPES["float64"]
    return _half_only(kind, "mean")


def _half_only(dtype: DType, what: str) -> DType:
    if dtype == BFLOAT16:
        return dtype
    raise DTypeError(f"{what} does not compute in {name_of(dtype)}; cast with astype(..., 'float32') first")


def accumulator(dtype: DType) -> DType:
    """The dtype in which totals of `dtype` are kept: float32 for 16-bit floats."""
    return DTYPES["float32"] if dtype in HALF_FLOATS else dtype


def to_wire_order(array: np.ndarray[Any, DType]) -> np.ndarray[Any, DType]:
    """The same values in C order and little-endian; no copy if they are already."""
    little = array.dtype.newbyteorder("<")
    # np.ascontiguousarray would turn shape () into (1,).
    return np.require(array, dtype=little, requirements="C")


def scalar_array(value: bool | int | float | complex, dtype: DType) -> np.ndarray[Any, DType]:
    """A Python scalar as an array of rank 0, cast as `ndarray.astype` does: a float too large for it is infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(value).astype(dtype)
