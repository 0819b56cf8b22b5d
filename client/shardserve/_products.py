"""Traced functions that multiply arrays, and those that only change their shape or dtype."""

from __future__ import annotations

from typing import Any

from ._traced import TracedArray, apply


def dot(x: Any, y: Any, *, dtype: Any = None) -> TracedArray:
    """The dot product, as `numpy.dot`: over the last dimension of `x` and the last but one of `y`.

    Arguments:
        x: `(..., k)`; y: `(k,)` or `(..., k, n)`; a scalar multiplies.
        dtype: of the result; default: the common dtype (integers keep theirs, as in NumPy).

    Raises:
        ShapeError: the two sizes differ (both shapes are in the message).

    Communication: one all-reduce over the mesh axes that split `k`; none when nothing does.
    """
    return apply("dot", x, y, dtype=dtype)


def vecdot(x: Any, y: Any, *, dtype: Any = None) -> TracedArray:
    """The dot products of vectors in the last dimension, as `numpy.vecdot`: `(N, 3), (N, 3) -> (N,)`.

    Arguments:
        x: `(..., k)`; complex ones are conjugated. y: `(..., k)`; the other dimensions broadcast.
        dtype: of the result; default: the common dtype.

    Raises:
        ShapeError: the last sizes differ.

    Communication: one all-reduce over the mesh axes that split `k`; none when nothing does.
    """
    return apply("vecdot", x, y, dtype=dtype)


def matmul(x: Any, y: Any, *, dtype: Any = None) -> TracedArray:
    """The matrix product, as `numpy.matmul`: the dimensions before the last two broadcast.

    Arguments:
        x: `(..., m, k)` or `(k,)`; y: `(..., k, n)` or `(k,)`.
        dtype: of the result; default: the common dtype (int8 products wrap, as in NumPy; `dtype="int32"` does not).

    Raises:
        ShapeError: the inner sizes differ, or one operand is a scalar.

    Communication: one all-reduce over the mesh axes that split `k`; none when nothing does.
    """
    return apply("matmul", x, y, dtype=dtype)


def einsum(subscripts: str, *operands: Any, dtype: Any = None) -> TracedArray:
    """Sums of products by labels, as `numpy.einsum`.

    Arguments:
        subscripts: such as `"ij,jk->ik"`; `...` stands for the dimensions that have no label.
        operands: one array for each term.
        dtype: of the result; default: the common dtype.

    Raises:
        ProgramError: the subscripts are not well formed.
        ShapeError: a label has two sizes, or a term does not fit its operand.

    Communication: one all-reduce over the mesh axes that split a label which the output lacks.
    """
    return apply("einsum", *operands, subscripts=subscripts, dtype=dtype)


def identity(x: Any) -> TracedArray:
    """The array itself.

    Communication: none.
    """
    return apply("identity", x)


def astype(x: Any, dtype: Any) -> TracedArray:
    """The array in another dtype, values converted as NumPy does.

    A float outside of an integer dtype's range becomes the nearest of its integers and NaN becomes 0; NumPy leaves them
    to the processor.

    Raises:
        DTypeError: unknown, or it would drop an imaginary part.

    Communication: none.
    """
    return apply("astype", x, dtype=dtype)


def reshape(x: Any, shape: Any) -> TracedArray:
    """The same elements in another shape; one size may be -1.

    Raises:
        ShapeError: the number of elements would change.

    Communication: whatever brings the elements to their new places, when a split dimension changes.
    """
    return apply("reshape", x, shape=shape)


def transpose(x: Any, axes: Any = None) -> TracedArray:
    """The dimensions in another order; None reverses them.

    Raises:
        AxisError: `axes` is no permutation.

    Communication: none.
    """
    return apply("transpose", x, axes=axes)


def slice(x: Any, starts: Any, stops: Any, steps: Any) -> TracedArray:
    """The elements at `range(start, stop, step)` of each dimension; `x[...]` is the usual way to write it.

    Arguments:
        starts, stops, steps: an integer for each dimension; a step may be negative.

    Raises:
        ShapeError: another number of them than dimensions, or an element beyond the array.

    Communication: none along dimensions that are whole; along split ones what brings the elements to their new places.
    """
    return apply("slice", x, starts=starts, stops=stops, steps=steps)


def broadcast_to(x: Any, shape: Any) -> TracedArray:
    """The array repeated to a larger shape.

    Raises:
        ShapeError: it does not broadcast to it.

    Communication: none.
    """
    return apply("broadcast_to", x, shape=shape)
