"""A user's arrays on their way out: what can be carried, and as which bytes. Nothing else is refused or changed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeGuard

import numpy as np

from shardserve_proto.abstract import Aval, constant_aval
from shardserve_proto.dtypes import DTYPES, is_supported, name_of, to_wire_order
from shardserve_proto.errors import ShardserveError, TooLarge, UnsupportedArray
from shardserve_proto.limits import LIMITS
from shardserve_proto.messages import Argument, ArrayArgument, Segment, SegmentArgument, ids_segment
from shardserve_proto.programs import Constant, Scalar
from shardserve_proto.specs import check_shape

from ._array import RemoteArray
from ._remote import Remote

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Leaf: TypeAlias = "Array | Scalar | RemoteArray"


def is_scalar(given: Any) -> TypeGuard[Scalar]:
    """Whether it is a Python number, which adapts to its partner's dtype; NumPy's scalars have a dtype of their own."""
    return isinstance(given, bool | int | float | complex) and not isinstance(given, np.generic)


def as_array(given: Any, *, what: str) -> Array:
    """Anything that NumPy takes for an array, if it can be carried.

    Arguments:
        what: the argument in words, for messages ("argument 0").

    Raises:
        UnsupportedArray: its dtype cannot be carried, or NumPy makes no array of it.
    """
    if isinstance(given, Remote):
        raise UnsupportedArray(f"{what} is a resident array; here it would be downloaded, so pass it as an argument")
    if isinstance(given, np.ma.MaskedArray):
        raise UnsupportedArray(f"{what} is a masked array, whose mask would be lost; send x.filled(...)")
    try:
        array = np.asarray(given)
    except ShardserveError:
        raise
    except Exception as error:  # whatever an __array__ method raises
        raise UnsupportedArray(f"NumPy makes no array of {what}, a {type(given).__name__}: {error}") from error
    if not is_supported(array.dtype):
        raise _unsupported(given, array.dtype, what)
    if array.ndim > LIMITS.rank:  # its sizes are in bounds, since NumPy made it
        check_shape(array.shape, what=what)
    return array


def _unsupported(given: Any, dtype: np.dtype[Any], what: str) -> UnsupportedArray:
    shown = f"has the dtype {dtype}"
    if not isinstance(given, np.ndarray | np.generic):
        shown = f"is a {type(given).__name__}, which NumPy makes an array of dtype {dtype}"
    return UnsupportedArray(
        f"{what} {shown}, which cannot be carried (supported: {', '.join(DTYPES)})", details={"dtype": str(dtype)[:200]}
    )


def as_leaf(given: Any, *, what: str) -> Leaf:
    """An argument: a Python scalar and a resident array as they are, anything else as an array.

    Raises:
        UnsupportedArray: it cannot be carried.
    """
    if isinstance(given, RemoteArray):
        return given
    if not is_scalar(given):
        return as_array(given, what=what)
    if isinstance(given, int) and not -(2**63) <= given < 2**64:
        bits = given.bit_length()
        raise UnsupportedArray(f"{what} is a Python integer of {bits} bits; at most 64 can be carried, so pass a float")
    return given


def aval_of(leaf: Leaf) -> Aval:
    """The abstract value of an argument."""
    if isinstance(leaf, np.ndarray):
        return Aval(leaf.shape, DTYPES[name_of(leaf.dtype)])
    if isinstance(leaf, RemoteArray):
        return Aval(leaf.shape, leaf.dtype)
    return constant_aval(leaf)


def describe(leaves: Sequence[Leaf]) -> tuple[tuple[Any, ...], ...]:
    """What a call's header says of its arguments, as a key: equal keys have equal headers.

    A resident array stands there with its form, not with its id, so that calls with other handles are equal.
    """
    return tuple(
        (name_of(leaf.dtype), leaf.shape) if isinstance(leaf, np.ndarray) else _describe_other(leaf) for leaf in leaves
    )


def _describe_other(leaf: Scalar | RemoteArray) -> tuple[Any, ...]:
    if isinstance(leaf, RemoteArray):
        return RemoteArray, name_of(leaf.dtype), leaf.shape
    return type(leaf), repr(leaf)


def handles_of(leaves: Sequence[Leaf]) -> list[RemoteArray]:
    """The resident arrays among the arguments."""
    return [leaf for leaf in leaves if isinstance(leaf, RemoteArray)]


def arguments_of(leaves: Sequence[Leaf], *, kept: int = 0) -> tuple[tuple[Argument, ...], tuple[Segment, ...]]:
    """The arguments and segments of a header.

    Arguments:
        kept: how many results are kept; their ids stand behind those of the arguments, all in the first segment.
    """
    ids = kept + len(handles_of(leaves))
    arguments: list[Argument] = []
    segments = [ids_segment(ids)] if ids else []
    rows = 0
    for leaf in leaves:
        if isinstance(leaf, np.ndarray):
            arguments.append(SegmentArgument(segment=len(segments)))
            segments.append(Segment(dtype=name_of(leaf.dtype), shape=leaf.shape, nbytes=leaf.nbytes))
        elif isinstance(leaf, RemoteArray):
            arguments.append(ArrayArgument(array=rows))
            rows += 1
        else:
            arguments.append(Constant.of(leaf))
    return tuple(arguments), tuple(segments)


def check_body(nbytes: int) -> None:
    """Refuse what no server takes, before an array that is no contiguous memory is copied for it.

    Raises:
        TooLarge: the arrays of a call are larger than a frame can be.
    """
    if nbytes > LIMITS.body_bytes:
        raise TooLarge(
            f"the arrays of the call take {nbytes} bytes, at most {LIMITS.body_bytes} are allowed; send them in parts",
            details={"nbytes": nbytes, "limit_bytes": LIMITS.body_bytes},
        )


def buffers_of(leaves: Sequence[Leaf]) -> list[memoryview]:
    """Flat byte views of the arrays, in order: their own memory where the wire takes it as it is."""
    arrays = [leaf for leaf in leaves if isinstance(leaf, np.ndarray)]
    return [bytes_of(array if _is_in_order(array) else to_wire_order(array)) for array in arrays]


def _is_in_order(array: Array) -> bool:
    return array.flags.c_contiguous and array.dtype.isnative and sys.byteorder == "little"


def bytes_of(array: Array) -> memoryview:
    """The memory of a C-ordered array, as bytes; the buffer protocol itself does not know the dtypes of ml_dtypes."""
    flat: Any = array.reshape(-1).view(np.uint8)
    return memoryview(flat)
