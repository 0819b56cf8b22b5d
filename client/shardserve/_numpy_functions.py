"""NumPy's own functions on traced arrays: what `np.exp(x)` or `np.sum(x, axis=0)` means, in kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shardserve_proto.errors import AxisError, UntraceableFunction
from shardserve_proto.rules import BINARY, UNARY

from ._location import user_line
from ._traced import TracedArray, apply, dimensions, in_plain_form, refuse, squared, squeezed, swapped

#: ufunc -> kernel
_UFUNCS: dict[np.ufunc, str] = {ufunc: name for name, ufunc in (UNARY | BINARY).items()}
_UFUNCS |= {np.matmul: "matmul", np.vecdot: "vecdot", np.positive: "identity"}
_REDUCTIONS: dict[np.ufunc, str] = {np.add: "sum", np.maximum: "max", np.minimum: "min"}
_WITH_DTYPE = frozenset({"matmul", "vecdot"})


def call_ufunc(ufunc: np.ufunc, method: str, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> TracedArray:
    """`ufunc(*inputs)`, or its `reduce`, with a traced array among the inputs.

    Raises:
        UntraceableFunction: no kernel does that.
    """
    name = f"np.{ufunc.__name__}"
    if "out" in keywords:
        raise refuse(f"out= of {name} (or an operator such as +=) writes into an array", "use the result instead")
    if method == "reduce" and ufunc in _REDUCTIONS:
        return _reduced(_REDUCTIONS[ufunc], name, *inputs, **keywords)
    if method != "__call__":
        raise refuse(f"{name}.{method} is not supported", "see dir(shardserve) for what is")
    if ufunc is np.square and not keywords:
        return squared(inputs[0])
    kernel = _UFUNCS.get(ufunc)
    if kernel is None:
        raise _unknown(name)
    allowed = {"dtype"} if kernel in _WITH_DTYPE else set()
    _only(name, keywords, allowed)
    return apply(kernel, *inputs, **keywords)


def _reduced(kernel: str, name: str, x: Any, axis: Any = 0, **keywords: Any) -> TracedArray:
    _only(f"{name}.reduce", keywords, {"dtype", "keepdims"} if kernel == "sum" else {"keepdims"})
    return apply(kernel, x, axis=axis, **keywords)


def call_function(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A function of NumPy that is no ufunc.

    Raises:
        UntraceableFunction: no kernel does that, or not with these keywords.
    """
    name = f"np.{function.__name__}"
    handler = _FUNCTIONS.get(function)
    if handler is None:
        raise _unknown(name)
    return in_plain_form(name, handler, *args, **kwargs)


def _unknown(name: str) -> UntraceableFunction:
    return UntraceableFunction(
        f"{user_line()}: {name} is not supported in a traced function; dir(shardserve) shows what is"
    )


def _only(name: str, keywords: Mapping[str, Any], allowed: set[str]) -> None:
    for keyword in keywords:
        if keyword not in allowed:
            raise refuse(f"{keyword}= of {name} is not supported", "use the plain form, or ss.where afterwards")


# --- functions: NumPy's argument order, our kernels ------------------------------------------------------------------


def _sum(a: Any, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> TracedArray:
    return apply("sum", a, axis=axis, dtype=dtype, keepdims=keepdims)


def _mean(a: Any, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> TracedArray:
    return apply("mean", a, axis=axis, dtype=dtype, keepdims=keepdims)


def _max(a: Any, axis: Any = None, *, keepdims: bool = False) -> TracedArray:
    return apply("max", a, axis=axis, keepdims=keepdims)


def _min(a: Any, axis: Any = None, *, keepdims: bool = False) -> TracedArray:
    return apply("min", a, axis=axis, keepdims=keepdims)


def _where(condition: Any, x: Any, y: Any) -> TracedArray:
    return apply("where", condition, x, y)


def _dot(a: Any, b: Any) -> TracedArray:
    return apply("dot", a, b)


def _einsum(subscripts: Any, *operands: Any, dtype: Any = None, optimize: Any = True) -> TracedArray:  # noqa: ARG001
    if not isinstance(subscripts, str):
        raise refuse("np.einsum with lists of labels is not supported", "use subscripts such as 'ij,jk->ik'")
    return apply("einsum", *operands, subscripts=subscripts, dtype=dtype)


def _transpose(a: Any, axes: Any = None) -> TracedArray:
    return apply("transpose", a, axes=axes)


def _reshape(a: Any, shape: Any) -> TracedArray:
    return apply("reshape", a, shape=shape)


def _ravel(a: Any) -> TracedArray:
    return apply("reshape", a, shape=-1)


def _broadcast_to(array: Any, shape: Any) -> TracedArray:
    return apply("broadcast_to", array, shape=shape)


def _expand_dims(a: Any, axis: Any) -> TracedArray:
    rank = a.ndim + (len(axis) if isinstance(axis, tuple | list) else 1)
    new = dimensions(axis, rank)
    old = iter(a.shape)
    return apply("reshape", a, shape=tuple(1 if d in new else next(old) for d in range(rank)))


def _moveaxis(a: Any, source: Any, destination: Any) -> TracedArray:
    sources, targets = dimensions(source, a.ndim, name="source"), dimensions(destination, a.ndim, name="destination")
    if len(sources) != len(targets):
        raise AxisError(f"moveaxis has {len(sources)} sources and {len(targets)} destinations ({user_line()})")
    order = [d for d in range(a.ndim) if d not in sources]
    for target, moved in sorted(zip(targets, sources, strict=True)):
        order.insert(target, moved)
    return apply("transpose", a, axes=order)


def _astype(x: Any, dtype: Any, *, copy: bool = True) -> TracedArray:  # noqa: ARG001
    return apply("astype", x, dtype=dtype)


def _matrix_transpose(x: Any) -> TracedArray:
    return swapped(x, -1, -2)


def _shape(a: Any) -> tuple[int, ...]:
    return tuple(a.shape)


def _ndim(a: Any) -> int:
    return int(a.ndim)


def _size(a: Any) -> int:
    return int(a.size)


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.sum: _sum, np.mean: _mean, np.max: _max, np.amax: _max, np.min: _min, np.amin: _min, np.where: _where,
    np.dot: _dot, np.einsum: _einsum, np.transpose: _transpose, np.reshape: _reshape, np.ravel: _ravel,
    np.broadcast_to: _broadcast_to, np.expand_dims: _expand_dims, np.squeeze: squeezed, np.moveaxis: _moveaxis,
    np.swapaxes: swapped, np.shape: _shape, np.ndim: _ndim, np.size: _size, np.matrix_transpose: _matrix_transpose,
}  # fmt: skip
if hasattr(np, "astype"):  # NumPy 2.1
    _FUNCTIONS[np.astype] = _astype
