"""The kernels as methods of a client: NumPy in, NumPy out.

Each has the text of its traced function and the keywords that every call takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeAlias, TypeVar, Unpack

from . import _elementwise, _products, _reductions
from ._kernel_docs import kernel_method
from ._options import CallOptions

#: An array, a nested list, or a Python scalar, which adapts to its partner's dtype.
ArrayLike: TypeAlias = Any
DTypeLike: TypeAlias = Any
Shape: TypeAlias = "int | Sequence[int]"
#: A dimension, an axis name, or several of both.
Axis: TypeAlias = "int | str | Sequence[int | str] | None"
Names: TypeAlias = "str | Sequence[str]"
R = TypeVar("R")


class KernelMethods(Generic[R]):
    """One method for each built-in kernel; `R` is an array, or something to await for it."""

    def _kernel(self, name: str, operands: Sequence[Any], params: dict[str, Any], options: CallOptions) -> R:
        raise NotImplementedError

    @kernel_method(_products.dot)
    def dot(self, x: ArrayLike, y: ArrayLike, *, dtype: DTypeLike = None, **options: Unpack[CallOptions]) -> R:
        return self._kernel("dot", (x, y), {"dtype": dtype}, options)

    @kernel_method(_products.vecdot)
    def vecdot(self, x: ArrayLike, y: ArrayLike, *, dtype: DTypeLike = None, **options: Unpack[CallOptions]) -> R:
        return self._kernel("vecdot", (x, y), {"dtype": dtype}, options)

    @kernel_method(_products.matmul)
    def matmul(self, x: ArrayLike, y: ArrayLike, *, dtype: DTypeLike = None, **options: Unpack[CallOptions]) -> R:
        return self._kernel("matmul", (x, y), {"dtype": dtype}, options)

    @kernel_method(_products.einsum)
    def einsum(
        self, subscripts: str, *operands: ArrayLike, dtype: DTypeLike = None, **options: Unpack[CallOptions]
    ) -> R:
        return self._kernel("einsum", operands, {"subscripts": subscripts, "dtype": dtype}, options)

    @kernel_method(_products.identity)
    def identity(self, x: ArrayLike, **options: Unpack[CallOptions]) -> R:
        return self._kernel("identity", (x,), {}, options)

    @kernel_method(_products.astype)
    def astype(self, x: ArrayLike, dtype: DTypeLike, **options: Unpack[CallOptions]) -> R:
        return self._kernel("astype", (x,), {"dtype": dtype}, options)

    @kernel_method(_products.reshape)
    def reshape(self, x: ArrayLike, shape: Shape, **options: Unpack[CallOptions]) -> R:
        return self._kernel("reshape", (x,), {"shape": shape}, options)

    @kernel_method(_products.transpose)
    def transpose(self, x: ArrayLike, axes: Sequence[int] | None = None, **options: Unpack[CallOptions]) -> R:
        return self._kernel("transpose", (x,), {"axes": axes}, options)

    @kernel_method(_products.broadcast_to)
    def broadcast_to(self, x: ArrayLike, shape: Shape, **options: Unpack[CallOptions]) -> R:
        return self._kernel("broadcast_to", (x,), {"shape": shape}, options)

    @kernel_method(_products.slice)
    def slice(
        self,
        x: ArrayLike,
        starts: Sequence[int],
        stops: Sequence[int],
        steps: Sequence[int],
        **options: Unpack[CallOptions],
    ) -> R:
        return self._kernel("slice", (x,), {"starts": starts, "stops": stops, "steps": steps}, options)

    @kernel_method(_reductions.sum)
    def sum(
        self,
        x: ArrayLike,
        axis: Axis = None,
        dtype: DTypeLike = None,
        *,
        keepdims: bool = False,
        **options: Unpack[CallOptions],
    ) -> R:
        return self._kernel("sum", (x,), {"axis": axis, "dtype": dtype, "keepdims": keepdims}, options)

    @kernel_method(_reductions.mean)
    def mean(
        self,
        x: ArrayLike,
        axis: Axis = None,
        dtype: DTypeLike = None,
        *,
        keepdims: bool = False,
        **options: Unpack[CallOptions],
    ) -> R:
        return self._kernel("mean", (x,), {"axis": axis, "dtype": dtype, "keepdims": keepdims}, options)

    @kernel_method(_reductions.max)
    def max(self, x: ArrayLike, axis: Axis = None, *, keepdims: bool = False, **options: Unpack[CallOptions]) -> R:
        return self._kernel("max", (x,), {"axis": axis, "keepdims": keepdims}, options)

    @kernel_method(_reductions.min)
    def min(self, x: ArrayLike, axis: Axis = None, *, keepdims: bool = False, **options: Unpack[CallOptions]) -> R:
        return self._kernel("min", (x,), {"axis": axis, "keepdims": keepdims}, options)

    @kernel_method(_reductions.normalize)
    def normalize(self, x: ArrayLike, *, norm: str, axis: Axis = None, **options: Unpack[CallOptions]) -> R:
        return self._kernel("normalize", (x,), {"norm": norm, "axis": axis}, options)

    @kernel_method(_reductions.psum)
    def psum(self, x: ArrayLike, axis_name: Names, **options: Unpack[CallOptions]) -> R:
        return self._kernel("psum", (x,), {"axis_name": axis_name}, options)

    @kernel_method(_reductions.pmean)
    def pmean(self, x: ArrayLike, axis_name: Names, **options: Unpack[CallOptions]) -> R:
        return self._kernel("pmean", (x,), {"axis_name": axis_name}, options)

    @kernel_method(_reductions.pmax)
    def pmax(self, x: ArrayLike, axis_name: Names, **options: Unpack[CallOptions]) -> R:
        return self._kernel("pmax", (x,), {"axis_name": axis_name}, options)

    @kernel_method(_reductions.pmin)
    def pmin(self, x: ArrayLike, axis_name: Names, **options: Unpack[CallOptions]) -> R:
        return self._kernel("pmin", (x,), {"axis_name": axis_name}, options)

    @kernel_method(_reductions.axis_index)
    def axis_index(self, axis_name: Names, **options: Unpack[CallOptions]) -> R:
        return self._kernel("axis_index", (), {"axis_name": axis_name}, options)

    @kernel_method(_reductions.axis_size)
    def axis_size(self, axis_name: Names, **options: Unpack[CallOptions]) -> R:
        return self._kernel("axis_size", (), {"axis_name": axis_name}, options)

    @kernel_method(_elementwise.negative)
    def negative(self, x: ArrayLike, **options: Unpack[CallOptions]) -> R:
        return self._kernel("negative", (x,), {}, options)

    @kernel_method(_elementwise.exp)
    def exp(self, x: ArrayLike, **options: Unpack[CallOptions]) -> R:
        return self._kernel("exp", (x,), {}, options)

    @kernel_method(_elementwise.log)
    def log(self, x: ArrayLike, **options: Unpack[CallOptions]) -> R:
        return self._kernel("log", (x,), {}, options)

    @kernel_method(_elementwise.sqrt)
    def sqrt(self, x: ArrayLike, **options: Unpack[CallOptions]) -> R:
        return self._kernel("sqrt", (x,), {}, options)

    @kernel_method(_elementwise.tanh)
    def tanh(self, x: ArrayLike, **options: Unpack[CallOptions]) -> R:
        return self._kernel("tanh", (x,), {}, options)

    @kernel_method(_elementwise.abs)
    def abs(self, x: ArrayLike, **options: Unpack[CallOptions]) -> R:
        return self._kernel("abs", (x,), {}, options)

    @kernel_method(_elementwise.add)
    def add(self, x: ArrayLike, y: ArrayLike, **options: Unpack[CallOptions]) -> R:
        return self._kernel("add", (x, y), {}, options)

    @kernel_method(_elementwise.subtract)
    def subtract(self, x: ArrayLike, y: ArrayLike, **options: Unpack[CallOptions]) -> R:
        return self._kernel("subtract", (x, y), {}, options)

    @kernel_method(_elementwise.multiply)
    def multiply(self, x: ArrayLike, y: ArrayLike, **options: Unpack[CallOptions]) -> R:
        return self._kernel("multiply", (x, y), {}, options)

    @kernel_method(_elementwise.divide)
    def divide(self, x: ArrayLike, y: ArrayLike, **options: Unpack[CallOptions]) -> R:
        return self._kernel("divide", (x, y), {}, options)

    @kernel_method(_elementwise.power)
    def power(self, x: ArrayLike, y: ArrayLike, **options: Unpack[CallOptions]) -> R:
        return self._kernel("power", (x, y), {}, options)

    @kernel_method(_elementwise.maximum)
    def maximum(self, x: ArrayLike, y: ArrayLike, **options: Unpack[CallOptions]) -> R:
        return self._kernel("maximum", (x, y), {}, options)

    @kernel_method(_elementwise.minimum)
    def minimum(self, x: ArrayLike, y: ArrayLike, **options: Unpack[CallOptions]) -> R:
        return self._kernel("minimum", (x, y), {}, options)

    @kernel_method(_elementwise.equal)
    def equal(self, x: ArrayLike, y: ArrayLike, **options: Unpack[CallOptions]) -> R:
        return self._kernel("equal", (x, y), {}, options)

    @kernel_method(_elementwise.not_equal)
    def not_equal(self, x: ArrayLike, y: ArrayLike, **options: Unpack[CallOptions]) -> R:
        return self._kernel("not_equal", (x, y), {}, options)

    @kernel_method(_elementwise.less)
    def less(self, x: ArrayLike, y: ArrayLike, **options: Unpack[CallOptions]) -> R:
        return self._kernel("less", (x, y), {}, options)

    @kernel_method(_elementwise.less_equal)
    def less_equal(self, x: ArrayLike, y: ArrayLike, **options: Unpack[CallOptions]) -> R:
        return self._kernel("less_equal", (x, y), {}, options)

    @kernel_method(_elementwise.greater)
    def greater(self, x: ArrayLike, y: ArrayLike, **options: Unpack[CallOptions]) -> R:
        return self._kernel("greater", (x, y), {}, options)

    @kernel_method(_elementwise.greater_equal)
    def greater_equal(self, x: ArrayLike, y: ArrayLike, **options: Unpack[CallOptions]) -> R:
        return self._kernel("greater_equal", (x, y), {}, options)

    @kernel_method(_elementwise.where)
    def where(self, condition: ArrayLike, x: ArrayLike, y: ArrayLike, **options: Unpack[CallOptions]) -> R:
        return self._kernel("where", (condition, x, y), {}, options)
