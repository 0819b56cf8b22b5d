"""Traced functions over dimensions and named axes: totals, extremes, normalize, collectives."""

from __future__ import annotations

from typing import Any

from ._params import wire_params
from ._traced import TracedArray, apply
from ._tracing import current_trace


def sum(x: Any, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> TracedArray:
    """The sum over dimensions and named axes, as `numpy.sum`.

    Arguments:
        x: an array.
        axis: a dimension, an axis name, or a tuple of both; None = all dimensions.
        dtype: of the result; default: NumPy's (small integers widen to 64 bits).
        keepdims: keep reduced dimensions with size 1.

    Raises:
        AxisError: a dimension out of range, or an unknown name.

    Communication: one all-reduce over the mesh axes that split what is summed.
    """
    return apply("sum", x, axis=axis, dtype=dtype, keepdims=keepdims)


def mean(x: Any, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> TracedArray:
    """The mean over dimensions and named axes, as `numpy.mean`; arguments and communication as of `sum`."""
    return apply("mean", x, axis=axis, dtype=dtype, keepdims=keepdims)


def max(x: Any, axis: Any = None, *, keepdims: bool = False) -> TracedArray:
    """The largest element over dimensions and named axes, NaN if one of them is.

    Arguments and communication are those of `sum`.

    Raises:
        ShapeError: there is no element.
    """
    return apply("max", x, axis=axis, keepdims=keepdims)


def min(x: Any, axis: Any = None, *, keepdims: bool = False) -> TracedArray:
    """The smallest element over dimensions and named axes, NaN if one of them is.

    Arguments and communication are those of `sum`.

    Raises:
        ShapeError: there is no element.
    """
    return apply("min", x, axis=axis, keepdims=keepdims)


def normalize(x: Any, *, norm: str, axis: Any = None) -> TracedArray:
    """Divide by a norm of the array, in float64 and rounded once.

    Arguments:
        x: an array of any dtype; integers are exact up to 64 bits.
        norm: "sum" divides by the total, "l2" by the Euclidean norm. It has no default, since libraries differ.
        axis: a dimension, an axis name, or a tuple of both; None = all dimensions, named ones included.

    Returns: an array of the same shape and of float kind (float64 for integers). Zero, NaN and infinite totals divide
        as IEEE says.

    Communication: one all-reduce of the total over the mesh axes that split what is summed.
    """
    return apply("normalize", x, norm=norm, axis=axis)


def psum(x: Any, axis_name: Any) -> TracedArray:
    """The sum over named axes; integers of fewer than 64 bits widen, as in `numpy.sum`.

    Arguments:
        x: an array, or a scalar, which is counted once for each position of the axes.
        axis_name: a name, or a tuple of names.

    Returns: an array that no longer varies along the names.

    Raises:
        AxisError: an unknown name, with those that are known.

    Communication: one all-reduce over the mesh axes that split the names; none where nothing splits them.
    """
    return apply("psum", x, axis_name=axis_name)


def pmean(x: Any, axis_name: Any) -> TracedArray:
    """The mean over named axes; arguments, errors and communication as of `psum`."""
    return apply("pmean", x, axis_name=axis_name)


def pmax(x: Any, axis_name: Any) -> TracedArray:
    """The largest element over named axes, NaN if one of them is; arguments and communication as of `psum`."""
    return apply("pmax", x, axis_name=axis_name)


def pmin(x: Any, axis_name: Any) -> TracedArray:
    """The smallest element over named axes, NaN if one of them is; arguments and communication as of `psum`."""
    return apply("pmin", x, axis_name=axis_name)


def axis_index(axis_name: Any) -> TracedArray:
    """The position along a named axis, an int64 that varies along it; of several names the first is major.

    Communication: none.
    """
    return apply("axis_index", axis_name=axis_name)


def axis_size(axis_name: Any) -> int:
    """The size of a named axis, or the product of several; it is known while the function is traced.

    Returns: a Python integer, which adapts to the dtype of its partner and may stand in a shape.

    Communication: none.
    """
    return current_trace("ss.axis_size").axis_size(wire_params("axis_size", {"axis_name": axis_name})["axis_name"])
