"""The result's shape, dtype and names for each built-in kernel: NumPy's rules, in plain Python.

Every rule takes the abstract operands, the complete parameters and the scope of named axes, and returns the abstract
results. Operands are positional views: names ride along, and meet by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .abstract import Aval, Scope
from .dtypes import (
    BFLOAT16,
    DTYPES,
    DType,
    dtype_named,
    is_float,
    loop_dtypes,
    mean_dtype,
    name_of,
    result_dtype,
    strong,
    sum_dtype,
)
from .errors import AxisError, DTypeError, ProgramError, ShapeError
from .specs import check_shape

Operands = Sequence[Aval]
Params = Mapping[str, Any]

#: kernel name -> NumPy's ufunc, which decides the dtypes.
UNARY: dict[str, np.ufunc] = {
    "negative": np.negative, "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "tanh": np.tanh, "abs": np.absolute,
}  # fmt: skip
BINARY: dict[str, np.ufunc] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.true_divide, "power": np.power,
    "maximum": np.maximum, "minimum": np.minimum, "equal": np.equal, "not_equal": np.not_equal, "less": np.less,
    "less_equal": np.less_equal, "greater": np.greater, "greater_equal": np.greater_equal,
}  # fmt: skip
_ORDERED = frozenset({"maximum", "minimum", "less", "less_equal", "greater", "greater_equal"})


def all_names(operands: Operands) -> frozenset[str]:
    """The named axes that a result of these operands carries."""
    return frozenset().union(*(operand.names for operand in operands))


def single(shape: Sequence[int], dtype: DType, names: frozenset[str]) -> list[Aval]:
    """One abstract result, its shape checked."""
    check_shape(shape, what="the result")
    return [Aval(tuple(shape), dtype, names)]


def broadcast(operands: Operands) -> tuple[int, ...]:
    """The common shape, as `numpy.broadcast_shapes`.

    Raises:
        ShapeError: the shapes do not broadcast.
    """
    rank = max((operand.ndim for operand in operands), default=0)
    padded = [(1,) * (rank - operand.ndim) + operand.shape for operand in operands]
    shape = []
    for sizes in zip(*padded, strict=True):
        distinct = set(sizes) - {1}
        if len(distinct) > 1:
            shapes = " and ".join(str(operand.shape) for operand in operands)
            raise ShapeError(f"shapes {shapes} do not broadcast", details={"shapes": [list(o.shape) for o in operands]})
        shape.append(distinct.pop() if distinct else 1)
    return tuple(shape)


def elementwise(name: str) -> Callable[[Operands, Params, Scope], list[Aval]]:
    """The rule of a kernel that is one of NumPy's ufuncs."""
    ufunc = (UNARY | BINARY)[name]

    def rule(operands: Operands, params: Params, scope: Scope) -> list[Aval]:  # noqa: ARG001
        shape = broadcast(operands)
        loop = elementwise_loop(name, ufunc, operands)
        return single(shape, loop[-1], all_names(operands))

    return rule


def elementwise_loop(name: str, ufunc: np.ufunc, operands: Operands) -> tuple[DType, ...]:
    """The dtypes in which a ufunc computes, then the result's; constants must fit theirs, as in NumPy."""
    loop = loop_dtypes(ufunc, *(operand.dtype for operand in operands))
    if name in _ORDERED and any(dtype.kind == "c" for dtype in loop):
        raise DTypeError(f"{name} does not order complex numbers; compare abs(x), or the real parts")
    if name == "power":
        _check_exponent(operands[1], loop)
    for operand, dtype in zip(operands, loop, strict=False):
        check_constant(operand, dtype)
    return loop


def _check_exponent(exponent: Aval, loop: Sequence[DType]) -> None:
    if loop[-1].kind not in "iu":
        return
    if exponent.value is not None:
        if isinstance(exponent.value, int) and exponent.value < 0:
            raise DTypeError("integers to negative integer powers are not allowed, as in NumPy; use a float base")
    elif exponent.strong_dtype.kind == "i":
        raise DTypeError(
            "the exponents of an integer power could be negative; use a float base, or an unsigned exponent"
        )


def check_constant(operand: Aval, dtype: DType) -> None:
    """A Python integer must fit the integer dtype that it adapts to.

    Raises:
        DTypeError: it does not (NumPy raises an OverflowError).
    """
    value = operand.value
    if isinstance(value, bool) or not isinstance(value, int) or dtype.kind not in "iu":
        return
    bounds = np.iinfo(dtype)
    if not bounds.min <= value <= bounds.max:
        raise DTypeError(f"the Python integer {value} does not fit {name_of(dtype)} ({bounds.min} to {bounds.max})")


def identity(operands: Operands, params: Params, scope: Scope) -> list[Aval]:  # noqa: ARG001
    (x,) = operands
    return single(x.shape, x.strong_dtype, x.names)


def astype(operands: Operands, params: Params, scope: Scope) -> list[Aval]:  # noqa: ARG001
    (x,) = operands
    dtype = dtype_named(params["dtype"])
    if x.strong_dtype.kind == "c" and dtype.kind != "c" and dtype != DTYPES["bool"]:
        raise DTypeError(f"casting {name_of(x.strong_dtype)} to {dtype} would drop the imaginary part")
    return single(x.shape, dtype, x.names)


def where(operands: Operands, params: Params, scope: Scope) -> list[Aval]:  # noqa: ARG001
    _, x, y = operands
    dtype = result_dtype(x.dtype, y.dtype)
    for operand in (x, y):
        check_constant(operand, dtype)
    return single(broadcast(operands), dtype, all_names(operands))


def computable(dtype: DType) -> DType:
    """The dtype, if the kernels compute in it: not the 4- and 8-bit kinds of ml_dtypes."""
    is_nibble = name_of(dtype) in ("int4", "uint4")
    if (dtype.kind in "biuc" and not is_nibble) or is_float(dtype):
        return dtype
    raise DTypeError(f"no arithmetic in {name_of(dtype)}; cast with astype(..., 'float32') first")


def casts(source: DType, target: DType) -> bool:
    """NumPy's "same_kind" rule; a 16-bit float counts as a float."""
    if source == BFLOAT16 or target == BFLOAT16:
        return source.kind != "c" and (is_float(target) or target.kind == "c")
    return np.can_cast(source, target, "same_kind")


# --- reductions and collectives --------------------------------------------------------------------------------------


def split_axes(axis: Any, x: Aval, scope: Scope) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The dimensions and the names of an `axis` parameter: an int, a name, a tuple of both; None = all dimensions.

    Raises:
        AxisError: a dimension out of range or given twice, or an unknown name.
    """
    if axis is None:
        return tuple(range(x.ndim)), ()
    given = axis if isinstance(axis, tuple) else (axis,)
    dimensions = tuple(_dimension(entry, x) for entry in given if isinstance(entry, int))
    names = tuple(entry for entry in given if isinstance(entry, str))
    if len(set(dimensions)) < len(dimensions) or len(set(names)) < len(names):
        raise AxisError(f"axis={axis!r} names a dimension twice")
    for name in names:
        scope.require(name)
    return dimensions, names


def _dimension(axis: int, x: Aval) -> int:
    if not -x.ndim <= axis < x.ndim:
        raise AxisError(f"axis {axis} is out of bounds for an array of rank {x.ndim}")
    return axis % x.ndim


def _reduced(x: Aval, params: Params, scope: Scope, dtype: DType) -> list[Aval]:
    dimensions, names = split_axes(params["axis"], x, scope)
    kept = [1 if d in dimensions else size for d, size in enumerate(x.shape)]
    shape = kept if params["keepdims"] else [size for d, size in enumerate(x.shape) if d not in dimensions]
    return single(shape, dtype, x.names - set(names))


def _asked_dtype(x: Aval, params: Params, default: Callable[[DType], DType]) -> DType:
    if params["dtype"] is None:
        return default(x.strong_dtype)
    wanted = computable(dtype_named(params["dtype"]))
    if not casts(x.strong_dtype, wanted):
        raise DTypeError(
            f"dtype={name_of(wanted)!r} would lose the kind of {name_of(x.strong_dtype)}; use astype first"
        )
    return wanted


def total(operands: Operands, params: Params, scope: Scope) -> list[Aval]:
    (x,) = operands
    return _reduced(x, params, scope, _asked_dtype(x, params, sum_dtype))


def mean(operands: Operands, params: Params, scope: Scope) -> list[Aval]:
    (x,) = operands
    return _reduced(x, params, scope, _asked_dtype(x, params, mean_dtype))


def extremum(operands: Operands, params: Params, scope: Scope) -> list[Aval]:
    (x,) = operands
    dimensions, names = split_axes(params["axis"], x, scope)
    _check_not_empty([x.shape[d] for d in dimensions] + [scope.sizes[name] for name in names])
    return _reduced(x, params, scope, _ordered(x.strong_dtype))


def _check_not_empty(sizes: Sequence[int]) -> None:
    if math.prod(sizes) == 0:
        raise ShapeError("the maximum or minimum of no elements is not defined, as in NumPy")


def _ordered(dtype: DType) -> DType:
    if dtype.kind == "c":
        raise DTypeError("complex numbers have no order; reduce abs(x), or the real parts")
    return dtype if dtype == DTYPES["bool"] else computable(dtype)


def axis_names(params: Params, scope: Scope) -> tuple[str, ...]:
    """The names of an `axis_name` parameter, each bound and given once."""
    given = params["axis_name"]
    names = given if isinstance(given, tuple) else (given,)
    for name in names:
        scope.require(name)
    if len(set(names)) < len(names):
        raise AxisError(f"axis_name={given!r} gives a name twice")
    return names


def psum(operands: Operands, params: Params, scope: Scope) -> list[Aval]:
    (x,) = operands
    return single(x.shape, sum_dtype(x.strong_dtype), x.names - set(axis_names(params, scope)))


def pmean(operands: Operands, params: Params, scope: Scope) -> list[Aval]:
    (x,) = operands
    return single(x.shape, mean_dtype(x.strong_dtype), x.names - set(axis_names(params, scope)))


def pextremum(operands: Operands, params: Params, scope: Scope) -> list[Aval]:
    (x,) = operands
    names = axis_names(params, scope)
    _check_not_empty([scope.sizes[name] for name in names])
    return single(x.shape, _ordered(x.strong_dtype), x.names - set(names))


def axis_index(operands: Operands, params: Params, scope: Scope) -> list[Aval]:  # noqa: ARG001
    return single((), DTYPES["int64"], frozenset(axis_names(params, scope)))


def axis_size(operands: Operands, params: Params, scope: Scope) -> list[Aval]:  # noqa: ARG001
    axis_names(params, scope)
    return single((), DTYPES["int64"], frozenset())


def normalize(operands: Operands, params: Params, scope: Scope) -> list[Aval]:
    (x,) = operands
    if params["norm"] not in ("sum", "l2"):
        raise ProgramError(f"norm is 'sum' or 'l2', not {params['norm']!r}")
    split_axes(params["axis"], x, scope)
    dtype = computable(x.strong_dtype)
    return single(x.shape, dtype if dtype.kind == "c" or is_float(dtype) else DTYPES["float64"], x.names)


# --- shapes ----------------------------------------------------------------------------------------------------------


def _as_tuple(shape: Any) -> tuple[int, ...]:
    return shape if isinstance(shape, tuple) else (shape,)


def reshape(operands: Operands, params: Params, scope: Scope) -> list[Aval]:  # noqa: ARG001
    (x,) = operands
    return single(reshaped(x.shape, _as_tuple(params["shape"])), x.strong_dtype, x.names)


def reshaped(shape: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...]:
    """The new shape with a -1 filled in.

    Raises:
        ShapeError: the number of elements would change, or several sizes are -1.
    """
    elements = math.prod(shape)
    known = math.prod(size for size in wanted if size != -1)
    is_open = wanted.count(-1)
    fits = known == elements if not is_open else known > 0 and elements % known == 0
    if is_open > 1 or any(size < -1 for size in wanted) or not fits:
        raise ShapeError(f"an array of shape {shape} ({elements} elements) cannot be reshaped to {wanted}")
    return tuple(elements // known if size == -1 else size for size in wanted)


def transpose(operands: Operands, params: Params, scope: Scope) -> list[Aval]:  # noqa: ARG001
    (x,) = operands
    return single([x.shape[d] for d in transpose_order(x, params["axes"])], x.strong_dtype, x.names)


def transpose_order(x: Aval, axes: Any) -> tuple[int, ...]:
    """The permutation of a transpose; None reverses."""
    if axes is None:
        return tuple(reversed(range(x.ndim)))
    order = tuple(_dimension(axis, x) for axis in axes)
    if sorted(order) != list(range(x.ndim)):
        raise AxisError(f"axes={axes} is no permutation of the {x.ndim} dimensions")
    return order


def broadcast_to(operands: Operands, params: Params, scope: Scope) -> list[Aval]:  # noqa: ARG001
    (x,) = operands
    shape = _as_tuple(params["shape"])
    check_shape(shape, what="the result")
    if x.ndim > len(shape) or broadcast([x, Aval(shape, x.dtype)]) != shape:
        raise ShapeError(f"an array of shape {x.shape} does not broadcast to {shape}")
    return single(shape, strong(x.dtype), x.names)


SLICE_PARAMETERS = ("starts", "stops", "steps")


def slice_of(operands: Operands, params: Params, scope: Scope) -> list[Aval]:  # noqa: ARG001
    (x,) = operands
    return single([len(taken) for taken in slice_ranges(x.shape, params)], x.strong_dtype, x.names)


def slice_ranges(shape: Sequence[int], params: Params) -> list[range]:
    """For each dimension, the positions that a slice takes: range(start, stop, step), as `slice.indices` gives them.

    Raises:
        ShapeError: a step of 0, positions that the array does not have, or another number of them than dimensions.
    """
    starts, stops, steps = (_as_tuple(params[name]) for name in SLICE_PARAMETERS)
    if not len(starts) == len(stops) == len(steps) == len(shape):
        raise ShapeError(f"starts, stops and steps have one entry for each of the {len(shape)} dimensions")
    if not all(steps):
        raise ShapeError(f"steps={steps} has a step of 0")
    ranges = [range(*bounds) for bounds in zip(starts, stops, steps, strict=True)]
    for dimension, (taken, size) in enumerate(zip(ranges, shape, strict=True)):
        if taken and not (min(taken[0], taken[-1]) >= 0 and max(taken[0], taken[-1]) < size):
            raise ShapeError(f"{taken} leaves dimension {dimension}, which has the size {size}; count from the front")
    return ranges
