"""The array that a traced function sees: it has a shape and a dtype, and no values yet."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Never, TypeAlias

import numpy as np

from shardserve_proto.errors import AxisError, ShapeError, UntraceableFunction

from ._arrays import is_scalar
from ._axes import is_position
from ._indexing import BadIndex, part_of
from ._location import user_line
from ._params import wire_params
from ._tracing import Value, current_trace


class _NoSuchAttribute(UntraceableFunction, AttributeError):
    """An attribute that traced arrays lack; `hasattr` and NumPy's own protocols see an AttributeError."""


def apply(kernel: str, *operands: Any, **params: Any) -> TracedArray:
    """Add a kernel to the function that is being traced.

    Raises:
        UntraceableFunction: no function is being traced.
        ShardserveError: the kernel's own rule says no.
    """
    trace = current_trace(f"ss.{kernel}")
    (result,) = trace.kernel(kernel, operands, wire_params(kernel, params))
    return TracedArray(result)


def refuse(what: str, instead: str) -> UntraceableFunction:
    """The error for something that cannot be traced; both texts are parts of a sentence."""
    return UntraceableFunction(f"{user_line()}: {what} while the function is traced; {instead}")


Binary: TypeAlias = "Callable[[TracedArray, Any], TracedArray]"


def _operator(kernel: str) -> Binary:
    return lambda self, other: apply(kernel, self, other)


def _reflected(kernel: str) -> Binary:
    return lambda self, other: apply(kernel, other, self)


def _power(base: TracedArray, exponent: Any, modulo: Any = None) -> TracedArray:
    """`base ** exponent`; squares and roots are exact, as in NumPy's own operator."""
    if modulo is not None:
        raise refuse("pow() with a third argument is not supported", "use x ** y")
    is_inexact = base.dtype.kind in "fc"
    if is_scalar(exponent) and exponent == 2 and (is_inexact or (type(exponent) is int and base.dtype.kind in "biu")):
        return squared(base)
    if is_scalar(exponent) and exponent == 0.5 and is_inexact:
        return apply("sqrt", base)
    return apply("power", base, exponent)


def in_plain_form(name: str, function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """Call a function of ours that stands for one of NumPy's, which takes more arguments.

    Raises:
        UntraceableFunction: ours does not take these.
    """
    try:
        return function(*args, **keywords)
    except TypeError as error:
        inside = error.__traceback__ and error.__traceback__.tb_next
        if type(error) is not TypeError or inside is not None:
            raise
        problem = str(error).partition("() ")[2]
        raise refuse(
            f"{name} {problem or 'was called in a form'} that is not supported", "use its plain form"
        ) from None


def _method(function: Callable[..., TracedArray]) -> Callable[..., TracedArray]:
    @functools.wraps(function)
    def method(self: TracedArray, *args: Any, **keywords: Any) -> Any:
        return in_plain_form(f".{function.__name__}()", function, self, *args, **keywords)

    return method


def _unary(kernel: str) -> Callable[[TracedArray], TracedArray]:
    return lambda self: apply(kernel, self)


def squared(x: TracedArray) -> TracedArray:
    """`numpy.square`, which makes int8 of bools."""
    return apply("astype", x, dtype="int8") if x.dtype.kind == "b" else apply("multiply", x, x)


def _unsupported(symbol: str) -> Callable[..., Never]:
    def refused(self: TracedArray, *others: Any) -> Never:  # noqa: ARG001
        raise refuse(f"the operator {symbol} is not supported", "see dir(shardserve) for what is")

    return refused


class TracedArray:
    """An array without values: operators, NumPy's functions and methods on it add steps to a program.

    Attributes:
        shape, ndim, size, dtype: as of a NumPy array; dimensions that are named axes do not show.
    """

    __slots__ = ("_value",)

    def __init__(self, value: Value) -> None:
        self._value = value

    @property
    def shape(self) -> tuple[int, ...]:
        return self._value.aval.shape

    @property
    def ndim(self) -> int:
        return self._value.aval.ndim

    @property
    def size(self) -> int:
        product = 1
        for size in self.shape:
            product *= size
        return product

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._value.aval.strong_dtype

    @property
    def T(self) -> TracedArray:  # noqa: N802 - NumPy's name
        return apply("transpose", self)

    @property
    def mT(self) -> TracedArray:  # noqa: N802 - NumPy's name
        return swapped(self, -1, -2)

    def __repr__(self) -> str:
        names = f", names={sorted(self._value.aval.names)}" if self._value.aval.names else ""
        return f"TracedArray(shape={self.shape}, dtype={self.dtype}{names})"

    __add__, __radd__ = _operator("add"), _reflected("add")
    __sub__, __rsub__ = _operator("subtract"), _reflected("subtract")
    __mul__, __rmul__ = _operator("multiply"), _reflected("multiply")
    __truediv__, __rtruediv__ = _operator("divide"), _reflected("divide")
    __pow__, __rpow__ = _power, _reflected("power")
    __matmul__, __rmatmul__ = _operator("matmul"), _reflected("matmul")
    __eq__, __ne__ = _operator("equal"), _operator("not_equal")  # type: ignore[assignment]
    __lt__, __le__ = _operator("less"), _operator("less_equal")
    __gt__, __ge__ = _operator("greater"), _operator("greater_equal")
    __neg__, __pos__, __abs__ = _unary("negative"), _unary("identity"), _unary("abs")
    __floordiv__ = __rfloordiv__ = _unsupported("//")
    __mod__ = __rmod__ = _unsupported("%")
    __divmod__ = __rdivmod__ = _unsupported("divmod()")
    __lshift__ = __rlshift__ = _unsupported("<<")
    __rshift__ = __rrshift__ = _unsupported(">>")
    __and__ = __rand__ = _unsupported("&")
    __or__ = __ror__ = _unsupported("|")
    __xor__ = __rxor__ = _unsupported("^")
    __invert__ = _unsupported("~")
    __hash__ = object.__hash__

    # --- methods -----------------------------------------------------------------------------------------------------

    @_method
    def sum(self, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> TracedArray:
        return apply("sum", self, axis=axis, dtype=dtype, keepdims=keepdims)

    @_method
    def mean(self, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> TracedArray:
        return apply("mean", self, axis=axis, dtype=dtype, keepdims=keepdims)

    @_method
    def max(self, axis: Any = None, *, keepdims: bool = False) -> TracedArray:
        return apply("max", self, axis=axis, keepdims=keepdims)

    @_method
    def min(self, axis: Any = None, *, keepdims: bool = False) -> TracedArray:
        return apply("min", self, axis=axis, keepdims=keepdims)

    @_method
    def reshape(self, *shape: Any) -> TracedArray:
        return apply("reshape", self, shape=_spread(shape))

    @_method
    def ravel(self) -> TracedArray:
        return self.reshape(-1)

    flatten = ravel

    @_method
    def transpose(self, *axes: Any) -> TracedArray:
        return apply("transpose", self, axes=_spread(axes) if axes else None)

    @_method
    def swapaxes(self, axis1: int, axis2: int) -> TracedArray:
        return swapped(self, axis1, axis2)

    @_method
    def squeeze(self, axis: Any = None) -> TracedArray:
        return squeezed(self, axis)

    @_method
    def astype(self, dtype: Any) -> TracedArray:
        return apply("astype", self, dtype=dtype)

    @_method
    def dot(self, other: Any) -> TracedArray:
        return apply("dot", self, other)

    # --- NumPy's protocols -------------------------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> TracedArray:
        from ._numpy_functions import call_ufunc

        return call_ufunc(ufunc, method, inputs, keywords)

    def __array_function__(
        self, function: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        from ._numpy_functions import call_function

        return call_function(function, args, kwargs)

    # --- what needs values -------------------------------------------------------------------------------------------

    def __array__(self, *args: Any, **kwargs: Any) -> Never:
        raise refuse("np.asarray needs the values of an array that has none yet", "use the array as it is")

    def __bool__(self) -> Never:
        raise refuse(
            "`if`, `while`, `and`, `or` and `not` need the value of an array that has none yet",
            "use ss.where(condition, x, y), or decide from shapes and dtypes",
        )

    def __float__(self) -> Never:
        raise self._no_number("float")

    def __int__(self) -> Never:
        raise self._no_number("int")

    def __complex__(self) -> Never:
        raise self._no_number("complex")

    def __index__(self) -> Never:
        raise self._no_number("an index or int()")

    def item(self) -> Never:
        raise self._no_number("item()")

    def tolist(self) -> Never:
        raise self._no_number("tolist()")

    def _no_number(self, what: str) -> UntraceableFunction:
        return refuse(f"{what} needs the value of an array that has none yet", "return the array, convert the result")

    def __format__(self, spec: str) -> str:
        if spec:
            raise self._no_number(f"the format {spec!r}")
        return repr(self)

    def __round__(self, digits: int | None = None) -> Never:
        raise self._no_number("round()")

    def __len__(self) -> int:
        if not self.shape:
            raise refuse("len() asks for the first dimension of an array of rank 0", "it has none; see x.shape")
        return self.shape[0]

    def __iter__(self) -> Never:
        raise refuse("a loop over an array needs its values", "use ss.vmap, or a reduction such as ss.sum")

    def __contains__(self, item: Any) -> Never:
        raise refuse("`in` needs the values of an array that has none yet", "use ss.max(x == item)")

    def __getitem__(self, key: Any) -> TracedArray:
        try:
            part = part_of(self.shape, key)
        except BadIndex as error:
            raise refuse(f"{error}", "use ss.vmap over the dimension, ss.einsum or ss.where") from None
        cut = apply("slice", self, **part.params) if part.sizes else self
        return cut if part.shape == cut.shape else apply("reshape", cut, shape=part.shape)

    def __setitem__(self, key: Any, value: Any) -> Never:
        raise refuse("arrays are not changed in place", "use ss.where(condition, new, old)")

    def __delitem__(self, key: Any) -> Never:
        raise refuse("arrays are not changed in place", "use the result of a function instead")

    def __getattr__(self, name: str) -> Never:
        if name.startswith("__"):  # protocols that ask whether an object has them
            raise AttributeError(name)
        raise _NoSuchAttribute(
            f"{user_line()}: traced arrays have no {name!r}; use the ss functions (dir(shardserve)) instead"
        )


def _spread(values: tuple[Any, ...]) -> Any:
    """`x.reshape(2, 3)` and `x.reshape((2, 3))` are the same."""
    return values[0] if len(values) == 1 else values


def dimensions(axis: Any, rank: int, *, name: str = "axis") -> tuple[int, ...]:
    """One dimension or several, counted from the front.

    Arguments:
        axis: an int, or a tuple or list of them; negative ones count from the back.
        rank: of the array in which they stand.
        name: of the argument, for messages.

    Raises:
        AxisError: no integer, out of range, or one of them twice.
    """
    given = axis if isinstance(axis, tuple | list) else (axis,)
    if not all(map(is_position, given)):
        raise AxisError(f"{name}={axis!r} is no dimension: an integer, or a tuple of them ({user_line()})")
    positions = [operator.index(entry) for entry in given]
    for position in positions:
        if not -rank <= position < rank:
            raise AxisError(f"{name} {position} is out of bounds for an array of rank {rank} ({user_line()})")
    counted = tuple(position % rank for position in positions)
    if len(set(counted)) < len(counted):
        raise AxisError(f"{name}={axis!r} names a dimension twice ({user_line()})")
    return counted


def swapped(x: Any, first: int, second: int) -> TracedArray:
    """`numpy.swapaxes`."""
    for given in (first, second):
        if not is_position(given):
            raise AxisError(f"an axis to swap is an integer, not {given!r} ({user_line()})")
    order = list(range(x.ndim))
    (one,), (other,) = dimensions(first, x.ndim), dimensions(second, x.ndim)
    order[one], order[other] = other, one
    return apply("transpose", x, axes=order)


def squeezed(x: Any, axis: Any = None) -> TracedArray:
    """`numpy.squeeze`."""
    if axis is None:
        dropped = tuple(d for d, size in enumerate(x.shape) if size == 1)
    else:
        dropped = dimensions(axis, x.ndim)
    for d in dropped:
        if x.shape[d] != 1:
            raise ShapeError(f"squeeze: dimension {d} of {x.shape} has size {x.shape[d]}, not 1 ({user_line()})")
    return apply("reshape", x, shape=tuple(size for d, size in enumerate(x.shape) if d not in dropped))
