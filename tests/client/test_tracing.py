"""Traced functions give NumPy's answers, in NumPy's shapes and dtypes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import shardserve as ss
from shardserve._arrays import aval_of
from shardserve._functions import trace_function, traced
from shardserve._tree import flatten

from .interpreter import run

Function = Callable[..., Any]
Array = np.ndarray[Any, Any]

DTYPES = ["bool", "int8", "uint8", "int32", "int64", "float32", "float64", "complex128"]
BINARY = [operator.add, operator.sub, operator.mul, operator.truediv, operator.eq, operator.ne]
ORDERED = [operator.lt, operator.le, operator.gt, operator.ge]
SCALARS = [True, 2, -3, 0.5, 2.0 + 1j]


def arrays(dtypes: list[str] = DTYPES) -> st.SearchStrategy[Array]:
    """Small arrays with values that no operation overflows."""
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, max_side=3)

    def of(dtype: str) -> st.SearchStrategy[Array]:
        low = 0 if np.dtype(dtype).kind in "bu" else -3
        elements = st.integers(low, 1 if dtype == "bool" else 3)
        return hnp.arrays(np.int64, shapes, elements=elements).map(lambda x: x.astype(dtype))

    return st.sampled_from(dtypes).flatmap(of)


def agree(function: Function, *args: Any) -> None:
    """The traced function and the plain one give the same, or refuse in the same way."""
    with np.errstate(all="ignore"):
        try:
            wanted = function(*args)
        except (TypeError, ValueError, OverflowError):
            with pytest.raises(ss.ShardserveError):
                run(function, *args)
            return
        try:
            found = run(function, *args)
        except ss.DTypeError as error:  # NumPy answers `uint8_array == -3`; here it is refused by name
            if "does not fit" not in str(error) or np.asarray(wanted).dtype != bool:
                raise
            return
    assert np.asarray(found).dtype == np.asarray(wanted).dtype
    np.testing.assert_array_equal(found, wanted)


# --- operators -------------------------------------------------------------------------------------------------------


@given(st.sampled_from(BINARY), arrays(), arrays())
@settings(deadline=None)
def test_operators_of_two_arrays_are_numpy_s(function: Function, x: Array, y: Array) -> None:
    agree(function, x, y)


@given(st.sampled_from(ORDERED), arrays(DTYPES[:-1]), arrays(DTYPES[:-1]))
@settings(deadline=None)
def test_comparisons_of_two_arrays_are_numpy_s(function: Function, x: Array, y: Array) -> None:
    agree(function, x, y)


@given(st.sampled_from([*BINARY, operator.pow]), arrays(), st.sampled_from(SCALARS))
@settings(deadline=None)
def test_a_python_scalar_on_the_right_adapts_as_in_numpy(function: Function, x: Array, scalar: complex) -> None:
    agree(lambda a: function(a, scalar), x)


@given(st.sampled_from(BINARY), arrays(), st.sampled_from(SCALARS))
@settings(deadline=None)
def test_a_python_scalar_on_the_left_adapts_as_in_numpy(function: Function, x: Array, scalar: complex) -> None:
    agree(lambda a: function(scalar, a), x)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, 0.5, 2.0, -1.0, True, 2j, np.float64(2)], ids=repr)
@pytest.mark.parametrize("dtype", [*DTYPES, "float16", "complex64"])
def test_every_exponent_gives_numpy_s_dtype(dtype: str, exponent: Any) -> None:
    agree(lambda a: a**exponent, np.array([1, 0, 1]).astype(dtype))
    if np.dtype(dtype).kind != "i":  # whose elements could be negative, which NumPy finds out from the values
        agree(lambda a: exponent**a, np.array([1, 0, 1]).astype(dtype))


@pytest.mark.parametrize("dtype", [*DTYPES, "float16", "complex64"])
def test_a_square_has_numpy_s_dtype(dtype: str) -> None:
    agree(np.square, np.array([1, 0, 1]).astype(dtype))


@given(st.sampled_from([operator.neg, operator.pos, operator.abs]), arrays(DTYPES[1:]))
@settings(deadline=None)
def test_unary_operators_are_numpy_s(function: Function, x: Array) -> None:
    agree(function, x)


@pytest.mark.parametrize("left", [np.arange(3.0), [1.0, 2.0, 3.0], np.float32(2), np.int64(3)], ids=repr)
def test_numpy_values_on_the_left_reach_the_traced_array(left: Any) -> None:
    x = np.array([4.0, 5.0, 6.0], np.float32)
    for function in (np.add, np.subtract, np.multiply, np.true_divide, np.maximum, np.less):
        agree(lambda a, function=function: function(left, a), x)
    if isinstance(left, np.ndarray | np.generic):
        agree(lambda a: left - a, x)
        agree(lambda a: left**a, x)


def test_the_matrix_product_works_from_both_sides() -> None:
    x, w = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    agree(lambda a: a @ w, x)
    agree(lambda a: x @ a, w)
    agree(operator.matmul, x, w)


def test_an_operation_in_place_binds_the_name_anew_and_changes_no_array() -> None:
    def add_one(x: Any) -> Any:
        x += 1
        return x

    x = np.zeros(3)
    np.testing.assert_array_equal(run(add_one, x), np.ones(3))
    np.testing.assert_array_equal(x, np.zeros(3))


def test_a_python_integer_beyond_64_bits_meets_floats_and_no_integers() -> None:
    np.testing.assert_array_equal(run(lambda x: x * 2**70, np.ones(2)), np.full(2, 2.0**70))
    with pytest.raises(ss.DTypeError, match="does not fit int64"):
        run(lambda x: x * 2**70, np.ones(2, np.int64))


# --- methods and attributes ------------------------------------------------------------------------------------------

MATRIX = np.arange(12, dtype=np.float32).reshape(3, 4)
METHODS: dict[str, Function] = {
    "sum": lambda x: x.sum(),
    "sum axis": lambda x: x.sum(axis=1),
    "sum keepdims": lambda x: x.sum(0, keepdims=True),
    "sum dtype": lambda x: x.sum(dtype=np.float64),
    "mean": lambda x: x.mean(axis=(0, 1)),
    "max": lambda x: x.max(axis=-1),
    "min": lambda x: x.min(),
    "reshape": lambda x: x.reshape(2, 6),
    "reshape tuple": lambda x: x.reshape((4, -1)),
    "ravel": lambda x: x.ravel(),
    "transpose": lambda x: x.transpose(),
    "transpose axes": lambda x: x.transpose(1, 0),
    "T": lambda x: x.T,
    "mT": lambda x: x.mT,
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "squeeze": lambda x: x.reshape(1, 12, 1).squeeze(),
    "astype": lambda x: x.astype(np.int32),
    "astype name": lambda x: x.astype("float16"),
    "dot": lambda x: x.dot(x.T),
    "index": lambda x: x[1],
    "index two": lambda x: x[-1, 2],
    "slice": lambda x: x[1:],
    "slice backwards": lambda x: x[::-2, 3:0:-1],
    "slice of nothing": lambda x: x[2:1],
    "slice with dots and None": lambda x: x[..., None, 1::2],
    "slice of everything": lambda x: x[...],
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_those_of_an_array(name: str) -> None:
    agree(METHODS[name], MATRIX)


def test_shape_ndim_size_dtype_and_len_are_known_while_tracing() -> None:
    seen: dict[str, Any] = {}

    def look(x: Any) -> Any:
        seen.update(shape=x.shape, ndim=x.ndim, size=x.size, dtype=x.dtype, length=len(x), text=repr(x))
        return x

    run(look, MATRIX)
    assert seen == {
        "shape": (3, 4), "ndim": 2, "size": 12, "dtype": np.float32, "length": 3,
        "text": "TracedArray(shape=(3, 4), dtype=float32)",
    }  # fmt: skip


# --- arguments and results -------------------------------------------------------------------------------------------


def test_arguments_and_results_may_be_trees() -> None:
    def function(weights: dict[str, Any], xs: list[Any]) -> Any:
        return {"out": (xs[0] * weights["w"], [xs[1] + weights["b"]]), "none": None}

    found = run(function, {"w": np.full(2, 3.0), "b": 1}, [np.arange(2.0), np.ones(3)])
    np.testing.assert_array_equal(found["out"][0], [0.0, 3.0])
    np.testing.assert_array_equal(found["out"][1][0], [2.0, 2.0, 2.0])
    assert found["none"] is None


def test_python_scalars_as_arguments_stay_weak() -> None:
    assert run(lambda x, y: x * y, np.ones(2, np.float32), 2.5).dtype == np.float32
    assert run(lambda x, y: x * y, np.ones(2, np.float32), np.float64(2.5)).dtype == np.float64


def test_a_constant_result_is_an_array_of_numpy_s_default_dtype() -> None:
    found = run(lambda x: (x, 2, 2.5, np.float32(1)), np.ones(2))
    assert [np.asarray(value).dtype.name for value in found] == ["float64", "int64", "float64", "float32"]


def test_a_small_array_that_the_function_captures_is_sent_along() -> None:
    weights = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(run(lambda x: x + weights + weights, np.ones(4, np.float32)), 1 + 2 * weights)


def test_equal_arrays_of_rank_0_stay_two_for_each_may_change() -> None:
    p, q = np.array(2.0), np.array(2.0)
    leaves, tree = flatten((np.ones(2),))
    assert trace_function(lambda x: x * p + q + p, tree, leaves).program.inputs == 3


def test_equal_numpy_scalars_are_captured_once() -> None:
    leaves, tree = flatten((np.ones(2),))
    program = trace_function(lambda x: x * np.float32(2) + np.float32(2) + np.float64(2), tree, leaves)
    assert program.program.inputs == 3


def test_bfloat16_arrays_are_traced_with_their_dtype() -> None:
    leaves, tree = flatten((np.ones(2, ml_dtypes.bfloat16),))
    (aval,) = trace_function(lambda x: x * 2 + x.sum(), tree, leaves).outputs
    assert aval == aval_of(np.ones(2, ml_dtypes.bfloat16))


# --- the memory of traces --------------------------------------------------------------------------------------------


def test_a_function_runs_once_for_each_form_of_its_arguments() -> None:
    function = lambda x: x * 2  # noqa: E731
    programs = []
    for x in (np.ones(2), np.zeros(2), np.ones(3), np.ones(2, np.float32), np.ones(2)):
        leaves, tree = flatten((x,))
        programs.append(traced(function, tree, leaves))
    assert programs[0] is programs[1] is programs[4]
    assert len(set(programs)) == 3


def test_a_function_is_traced_anew_when_what_it_refers_to_is_another_object() -> None:
    factor = 2

    def inner(x: Any) -> Any:
        return x * factor

    def function(x: Any) -> Any:
        return inner(x)

    leaves, tree = flatten((np.ones(2),))
    first = traced(function, tree, leaves)
    assert traced(function, tree, leaves) is first
    factor = 3
    second = traced(function, tree, leaves)
    assert second is not first
    assert second.program != first.program


def test_equal_python_scalars_of_different_kinds_have_traces_of_their_own() -> None:
    leaves, tree = flatten((1,))
    other, _ = flatten((True,))
    function = lambda x: ss.add(x, x)  # noqa: E731
    assert traced(function, tree, leaves) is not traced(function, tree, other)
