"""What resident arrays and parts of them share: a shape without values, and NumPy's protocols, which need values.

Values are downloaded where that is asked for (`numpy()`, `client.get`), and up to a limit where NumPy asks for them by
itself. Operators and NumPy's functions would download silently: they are refused, with the way to compute on the mesh.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Never

import numpy as np

from shardserve_proto.errors import InvalidRequest, TooLarge, UnsupportedArray

from ._repr import size

if TYPE_CHECKING:
    from ._resident import ResidentMethods


def _refuse(what: str) -> UnsupportedArray:
    return UnsupportedArray(
        f"{what} does not run on a resident array; compute on the mesh with client.run(lambda x: ..., array) or a "
        "kernel such as client.matmul(array, ...), or download the values with array.numpy()"
    )


def _refused(symbol: str) -> Callable[..., Any]:
    def operator(self: Remote, *others: Any) -> Any:  # noqa: ARG001
        if any(hasattr(other, "_value") for other in others):
            return NotImplemented  # a traced array says what can be done
        raise _refuse(f"the operator {symbol}")

    return operator


class Remote:
    """Something on the devices that has a shape, a dtype and, once downloaded, values."""

    __slots__ = ()

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    _client: ResidentMethods[Any]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the values; replicas and padding on the devices are not counted."""
        return self.size * self.dtype.itemsize

    def numpy(self, out: np.ndarray[Any, Any] | None = None) -> Any:
        """Download the values, however many they are; with an `AsyncClient`, something to await.

        Arguments:
            out: an array of this shape and dtype, which is filled in place.

        Returns: a NumPy array (`out`, if given); a NumPy scalar for rank 0.
        """
        return self._client.get(self, out)

    # --- NumPy's protocols -------------------------------------------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("the values are on the server, so copy=False cannot be had; leave copy out")
        values = np.asarray(self._implicit())
        return values if dtype is None else values.astype(dtype, copy=False)

    def _implicit(self) -> Any:
        """The values where nobody said "download": only up to the client's limit."""
        limit = self._client._defaults.max_implicit_bytes
        if self.nbytes > limit:
            raise TooLarge(
                f"this would download {size(self.nbytes)} implicitly, and at most {size(limit)} are; call .numpy() to "
                "download them, or allow more with Client(max_implicit_bytes=...)",
                details={"nbytes": self.nbytes, "max_implicit_bytes": limit},
            )
        if not self._client._is_blocking:
            raise UnsupportedArray("the values of an AsyncClient's array are awaited: `await array.numpy()`")
        return self.numpy()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        for given in inputs:
            if hasattr(given, "_value"):
                return NotImplemented  # a traced array says what can be done
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        raise _refuse(f"numpy.{name}")

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function is np.array_repr or function is np.array_str or function is np.array2string:
            return repr(self)
        if function in (np.shape, np.ndim, np.size, np.result_type):
            return _without_values(function, args, kwargs)
        raise _refuse(f"numpy.{function.__name__}")

    __add__ = __radd__ = _refused("+")
    __sub__ = __rsub__ = _refused("-")
    __mul__ = __rmul__ = _refused("*")
    __truediv__ = __rtruediv__ = _refused("/")
    __floordiv__ = __rfloordiv__ = _refused("//")
    __mod__ = __rmod__ = _refused("%")
    __pow__ = __rpow__ = _refused("**")
    __matmul__ = __rmatmul__ = _refused("@")
    __and__ = __rand__ = _refused("&")
    __or__ = __ror__ = _refused("|")
    __xor__ = __rxor__ = _refused("^")
    __lt__, __le__, __gt__, __ge__ = _refused("<"), _refused("<="), _refused(">"), _refused(">=")
    __eq__, __ne__ = _refused("=="), _refused("!=")
    __neg__, __pos__, __invert__, __abs__ = _refused("-"), _refused("+"), _refused("~"), _refused("abs()")
    __hash__ = object.__hash__

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array of rank 0")
        return self.shape[0]

    def __iter__(self) -> Never:
        raise _refuse("a loop, which would download row by row,")

    def __bool__(self) -> bool:
        return bool(self._number())

    def __int__(self) -> int:
        return int(self._number())

    def __float__(self) -> float:
        return float(self._number())

    def __complex__(self) -> complex:
        return complex(self._number())

    def item(self) -> Any:
        """The one element, as a Python number."""
        return self._number().item()

    def _number(self) -> Any:
        if self.size != 1:
            raise ValueError(f"an array of {self.size} elements is no single number")
        return np.asarray(self._implicit()).reshape(())[()]

    # --- identity ----------------------------------------------------------------------------------------------------

    def __copy__(self) -> Any:
        return self  # values never change

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __reduce__(self) -> Never:
        raise InvalidRequest(
            "a handle is not pickled: it would outlive what it stands for, or release it twice. Give the array a name "
            "and attach(name) in the other process, or pickle array.numpy()"
        )


def _without_values(function: Any, args: Any, kwargs: Any) -> Any:
    """NumPy's functions that ask for shapes and dtypes alone, on arrays without elements of their own."""
    hollow = [_hollow(arg) for arg in args]
    return function(*hollow, **kwargs)


def _hollow(given: Any) -> Any:
    return np.broadcast_to(np.zeros((), given.dtype), given.shape) if isinstance(given, Remote) else given
