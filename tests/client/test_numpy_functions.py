"""NumPy's own functions on traced arrays, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import shardserve as ss
from shardserve_proto.rules import BINARY, UNARY

from .interpreter import run

X = np.array([[0.5, 1.0, 2.0], [3.0, 0.25, 4.0]])
Y = np.array([[2.0, 3.0, 1.0], [0.5, 2.0, 1.5]], np.float32)
CUBE = np.arange(24.0).reshape(2, 3, 4)

ADD: Any = np.add  # the stubs of NumPy's releases know its methods to different degrees
MAXIMUM: Any = np.maximum
MINIMUM: Any = np.minimum

ONE: dict[str, Callable[[Any], Any]] = {
    "sum": np.sum,
    "sum axis": lambda x: np.sum(x, axis=0),
    "sum positional": lambda x: np.sum(x, 1, np.float32),
    "sum keepdims": lambda x: np.sum(x, axis=(0, 1), keepdims=True),
    "mean": lambda x: np.mean(x, axis=-1),
    "max": np.max,
    "amax": lambda x: np.amax(x, axis=0),
    "min": lambda x: np.min(x, axis=1, keepdims=True),
    "amin": np.amin,
    "add.reduce": ADD.reduce,
    "maximum.reduce": lambda x: MAXIMUM.reduce(x, axis=1),
    "minimum.reduce": lambda x: MINIMUM.reduce(x, axis=None),
    "square": np.square,
    "positive": np.positive,
    "transpose": np.transpose,
    "transpose axes": lambda x: np.transpose(x, (1, 0)),
    "matrix_transpose": np.matrix_transpose,
    "swapaxes": lambda x: np.swapaxes(x, -1, 0),
    "reshape": lambda x: np.reshape(x, (3, 2)),
    "reshape -1": lambda x: np.reshape(x, -1),
    "ravel": np.ravel,
    "expand_dims": lambda x: np.expand_dims(x, (0, -1)),
    "squeeze": lambda x: np.squeeze(np.expand_dims(x, (0, 2)), axis=0),
    "broadcast_to": lambda x: np.broadcast_to(x, (4, 2, 3)),
    "where": lambda x: np.where(x > 1, x, 0),
    "where scalars": lambda x: np.where(x > 1, 1, 2.5),
    "astype": lambda x: np.astype(x, np.int16),
    "einsum": lambda x: np.einsum("ij,kj->ik", x, x),
    "einsum implicit": lambda x: np.einsum("ij", x),
    "einsum dtype": lambda x: np.einsum("ij->", x, dtype=np.complex128),
    "matmul": lambda x: np.matmul(x, x.T),
    "matmul dtype": lambda x: np.matmul(x, x.T, dtype=np.complex128),
    "dot": lambda x: np.dot(x, x.T),
    "vecdot": lambda x: np.vecdot(x, x),
}


@pytest.mark.parametrize("name", ONE)
def test_a_function_of_one_array_is_numpy_s(name: str) -> None:
    wanted, found = ONE[name](X), run(ONE[name], X)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("kernel", UNARY)
def test_each_unary_kernel_is_reached_by_numpy_s_ufunc_and_by_the_ss_function(kernel: str) -> None:
    np.testing.assert_array_equal(run(UNARY[kernel], X), UNARY[kernel](X))
    np.testing.assert_array_equal(run(getattr(ss, kernel), X), UNARY[kernel](X))


@pytest.mark.parametrize("kernel", BINARY)
def test_each_binary_kernel_is_reached_by_numpy_s_ufunc_and_by_the_ss_function(kernel: str) -> None:
    wanted = BINARY[kernel](X, Y)
    for found in (run(BINARY[kernel], X, Y), run(getattr(ss, kernel), X, Y)):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


@given(st.data())
@settings(deadline=None, max_examples=50)
def test_reductions_over_any_axes_are_numpy_s(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["sum", "mean", "max", "min"]))
    axis = data.draw(st.none() | hnp.valid_tuple_axes(3) | st.integers(-3, 2))
    keepdims = data.draw(st.booleans())
    function = getattr(np, name)
    wanted = function(CUBE, axis=axis, keepdims=keepdims)
    np.testing.assert_array_equal(run(lambda x: function(x, axis=axis, keepdims=keepdims), CUBE), wanted)
    method = run(lambda x: getattr(x, name)(axis=axis, keepdims=keepdims), CUBE)
    np.testing.assert_array_equal(method, wanted)


@given(st.permutations(range(3)), st.permutations(range(3)), st.integers(1, 3))
@settings(deadline=None, max_examples=30)
def test_moveaxis_is_numpy_s(source: list[int], destination: list[int], count: int) -> None:
    def function(x: Any) -> Any:
        return np.moveaxis(x, source[:count], destination[:count])

    np.testing.assert_array_equal(run(function, CUBE), function(CUBE))


def test_shape_ndim_and_size_are_plain_numbers() -> None:
    seen: list[Any] = []

    def look(x: Any) -> Any:
        seen.extend([np.shape(x), np.ndim(x), np.size(x)])
        return x

    run(look, CUBE)
    assert seen == [(2, 3, 4), 3, 24]


def test_the_ss_functions_beside_the_ufuncs_are_numpy_s() -> None:
    def function(x: Any) -> Any:
        return (
            ss.where(x > 1, x, -x), ss.sum(x, 0), ss.mean(x), ss.max(x, axis=1), ss.min(x), ss.identity(x),
            ss.reshape(x, (3, 2)), ss.transpose(x), ss.broadcast_to(x, (2, 2, 3)), ss.astype(x, np.int8),
            ss.dot(x, x.T), ss.matmul(x, x.T, dtype=complex), ss.vecdot(x, x), ss.einsum("ij->j", x),
        )  # fmt: skip

    wanted = (
        np.where(X > 1, X, -X), X.sum(0), X.mean(), X.max(1), X.min(), X, X.reshape(3, 2), X.T,
        np.broadcast_to(X, (2, 2, 3)), X.astype(np.int8), X @ X.T, (X @ X.T).astype(complex), np.vecdot(X, X), X.sum(0),
    )  # fmt: skip
    for found, value in zip(run(function, X), wanted, strict=True):
        assert found.dtype == value.dtype
        np.testing.assert_allclose(found, value)


def test_normalize_divides_by_the_total_or_the_euclidean_norm() -> None:
    np.testing.assert_allclose(run(lambda x: ss.normalize(x, norm="sum"), X), X / X.sum())
    rows = run(lambda x: ss.normalize(x, norm="l2", axis=1), X)
    np.testing.assert_allclose(rows, X / np.linalg.norm(X, axis=1, keepdims=True))


AXES: list[Any] = [0, 1, 2, 3, -1, -3, -4, 5, (0, 1), (0, 0), (0, -3), (), (2, 5), 1.0, "a"]


@pytest.mark.parametrize("axis", AXES, ids=repr)
@pytest.mark.parametrize(
    "function",
    [
        np.squeeze,
        lambda x, axis: x.squeeze(axis),
        np.expand_dims,
        lambda x, axis: np.moveaxis(x, axis, 0),
        lambda x, axis: np.moveaxis(x, 0, axis),
        lambda x, axis: np.moveaxis(x, (0, 1), axis),
        lambda x, axis: np.swapaxes(x, axis, 0),
        lambda x, axis: x.swapaxes(0, axis),
        lambda x, axis: np.sum(x, axis=axis),
        lambda x, axis: np.max(x, axis=axis),
        np.transpose,
    ],
    ids=["squeeze", ".squeeze", "expand_dims", "source", "destination", "two", "swap", ".swap", "sum", "max", "axes"],
)
def test_a_wrong_dimension_is_refused_where_numpy_refuses(function: Callable[..., Any], axis: Any) -> None:
    x = np.arange(5.0).reshape(1, 1, 5)
    try:
        wanted = function(x, axis)
    except (TypeError, ValueError):
        with pytest.raises(ss.ShardserveError):
            run(lambda a: function(a, axis), x)
    else:
        np.testing.assert_array_equal(run(lambda a: function(a, axis), x), wanted)


def test_a_dimension_that_is_not_1_is_not_squeezed() -> None:
    with pytest.raises(
        ss.ShapeError, match=r"squeeze: dimension 0 of \(2, 3\) has size 2, not 1 \(line \d+ of test_numpy"
    ):
        run(lambda x: np.squeeze(x, 0), X)
