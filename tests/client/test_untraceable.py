"""What cannot be traced is told by its line and an alternative."""

from __future__ import annotations

import inspect
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import shardserve as ss
from shardserve._config import CAPTURED_BYTES

from .interpreter import run

ADD: Any = np.add
LARGE = np.zeros(CAPTURED_BYTES + 1, np.uint8)


def if_on_a_value(x: Any) -> Any:
    if x.sum() > 0:
        return x
    return -x


def loop_over_values(x: Any) -> Any:
    return [v + 1 for v in x]


def item_assignment(x: Any) -> Any:
    x[0] = 1
    return x


def deletion(x: Any) -> Any:
    del x[0]


def indexing_by_a_list(x: Any) -> Any:
    return x[[0, 1]]


def membership(x: Any) -> Any:
    return x * (1 in x)


# ruff: noqa: PLW0108 - a lambda has a line of its own to be named
#: function -> (the offending line, a part of the alternative)
REFUSED: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "if": (if_on_a_value, "if x.sum() > 0:", "ss.where"),
    "loop": (loop_over_values, "for v in x", "ss.vmap"),
    "assignment": (item_assignment, "x[0] = 1", "ss.where"),
    "indexing by a list": (indexing_by_a_list, "x[[0, 1]]", "ss.vmap"),
    "in": (membership, "1 in x", "ss.max"),
    "float": (lambda x: x * float(x.sum()), "float(x.sum())", "return the array"),
    "int": (lambda x: x * int(x.sum()), "int(x.sum())", "return the array"),
    "complex": (lambda x: x * complex(x.sum()), "complex(x.sum())", "return the array"),
    "index": (lambda x: [1, 2, 3][x.sum()], "[x.sum()]", "return the array"),
    "item": (lambda x: x * x.sum().item(), ".item()", "return the array"),
    "tolist": (lambda x: x.tolist(), "x.tolist()", "return the array"),
    "len of rank 0": (lambda x: len(x.sum()), "len(x.sum())", "shape"),
    "asarray": (lambda x: np.asarray(x), "np.asarray(x)", "as it is"),
    "unknown ufunc": (lambda x: np.sin(x), "np.sin(x)", "dir(shardserve)"),
    "unknown function": (lambda x: np.sort(x), "np.sort(x)", "dir(shardserve)"),
    "ufunc method": (lambda x: np.add.accumulate(x), "np.add.accumulate(x)", "dir(shardserve)"),
    "unknown method": (lambda x: x.cumsum(), "x.cumsum()", "dir(shardserve)"),
    "out": (lambda x: np.add(x, 1, out=np.ones(3)), "out=np.ones(3)", "use the result"),
    "where keyword": (lambda x: np.sum(x, where=True), "where=True", "plain form"),
    "ufunc keyword": (lambda x: np.add(x, 1, casting="unsafe"), 'casting="unsafe"', "plain form"),
    "operator": (lambda x: x // 2, "x // 2", "dir(shardserve)"),
    "reflected operator": (lambda x: 2 % x, "2 % x", "dir(shardserve)"),
    "invert": (lambda x: ~x, "~x", "dir(shardserve)"),
    "large capture": (lambda x: x + LARGE, "x + LARGE", "as an argument"),
    "method keyword": (lambda x: x.reshape((3, 1), order="F"), 'order="F"', "plain form"),
    "where of a method": (lambda x: x.sum(where=[True]), "where=[True]", "plain form"),
    "initial": (lambda x: x.max(initial=0), "initial=0", "plain form"),
    "too many arguments": (lambda x: x.mean(0, None, None), "x.mean(0, None, None)", "plain form"),
    "reduce": (lambda x: ADD.reduce(x, 0, None, None, False, 5), "ADD.reduce", "plain form"),
    "format": (lambda x: f"{x:.2f}", "{x:.2f}", "return the array"),
    "round": (lambda x: round(x), "round(x)", "return the array"),
    "np.round": (lambda x: np.round(x, 2), "np.round(x, 2)", "dir(shardserve)"),
    "pow of three": (lambda x: pow(x, 2, 3), "pow(x, 2, 3)", "x ** y"),
    "deletion": (deletion, "del x[0]", "result of a function"),
    "einsum lists": (lambda x: np.einsum(x, [0], [0]), "np.einsum(x, [0], [0])", "subscripts"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_traced_names_its_line_and_the_alternative(name: str) -> None:
    function, code, alternative = REFUSED[name]
    source, first = inspect.getsourcelines(function)
    with pytest.raises(ss.UntraceableFunction) as caught:
        run(function, np.arange(3.0))
    message = str(caught.value)
    (line,) = re.findall(r"line (\d+) of test_untraceable.py", message)
    assert first <= int(line) < first + len(source)
    assert code in message
    assert alternative in message
    assert isinstance(caught.value, TypeError)


def test_an_unknown_method_looks_absent_to_hasattr_and_the_error_can_be_pickled() -> None:
    def function(x: Any) -> Any:
        assert not hasattr(x, "cumsum")
        assert not hasattr(x, "__array_interface__")
        return x.cumsum()

    with pytest.raises(ss.UntraceableFunction) as caught:
        run(function, np.ones(2))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - our own bytes


def test_an_array_of_the_size_limit_may_still_be_captured() -> None:
    np.testing.assert_array_equal(run(lambda x: x + LARGE[1:], np.ones(1, np.uint8)), np.ones(CAPTURED_BYTES))


def test_a_captured_object_is_refused_by_dtype_and_line() -> None:
    with pytest.raises(
        ss.UnsupportedArray, match=r"dtype object.*line \d+ of test_untraceable.py|line \d+ of .*object"
    ):
        run(lambda x: x + np.array([None, 1]), np.ones(2))


def test_a_function_without_a_result_asks_for_the_return() -> None:
    def forgetful(x: Any) -> None:
        x + 1

    with pytest.raises(
        ss.UntraceableFunction, match=r"the function at line \d+ of test_untraceable.py returns None.*return"
    ):
        run(forgetful, np.ones(2))


def test_a_traced_value_that_leaves_its_function_is_refused_later() -> None:
    kept: list[Any] = []

    def leak(x: Any) -> Any:
        kept.append(x)
        return x

    run(leak, np.ones(2))
    with pytest.raises(ss.UntraceableFunction, match="outside of the function"):
        run(lambda x: x + kept[0], np.ones(2))
    with pytest.raises(ss.UntraceableFunction, match="client.dot"):
        kept[0] + 1


def test_a_traced_value_of_a_nested_function_does_not_escape_it() -> None:
    kept: list[Any] = []

    def inner(x: Any) -> Any:
        kept.append(x)
        return x

    with pytest.raises(ss.UntraceableFunction, match="outside of the function"):
        run(lambda x: ss.vmap(inner)(x) + kept[0], np.ones(2))


def test_an_ss_function_outside_of_a_traced_function_points_to_the_client() -> None:
    with pytest.raises(ss.UntraceableFunction, match="client.dot"):
        ss.dot(np.ones(2), np.ones(2))


@pytest.mark.parametrize(
    ("function", "error", "kernel"),
    [
        (lambda x: x @ np.ones(7), ss.ShapeError, "matmul"),
        (lambda x: x + np.ones(7), ss.ShapeError, "add"),
        (lambda x: x.reshape(5), ss.ShapeError, "reshape"),
        (lambda x: np.maximum(x, 1j), ss.DTypeError, "maximum"),
        (lambda x: x.sum(axis=4), ss.AxisError, "sum"),
        (lambda x: ss.psum(x, "batch"), ss.AxisError, "psum"),
        (lambda x: ss.normalize(x, norm="l3"), ss.ProgramError, "normalize"),
        (lambda x: np.einsum("ij->j", x), ss.ShapeError, "einsum"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_the_kernels_own_errors_appear_in_the_client_with_kernel_and_line(
    function: Callable[[Any], Any], error: type[Exception], kernel: str
) -> None:
    with pytest.raises(error, match=rf"^{kernel}: .*\(line \d+ of test_untraceable.py: "):
        run(function, np.ones(3))


def test_what_is_given_to_run_must_be_a_function() -> None:
    with pytest.raises(ss.ProgramError, match="takes a function"):
        run(np.ones(2))  # type: ignore[arg-type]


def endless(x: Any) -> Any:
    for _ in range(3000):
        x = x + 1
    return x


@pytest.mark.parametrize("function", [endless, ss.vmap(endless)], ids=["plain", "nested"])
def test_a_loop_of_too_many_steps_names_its_line_and_the_alternative(function: Any) -> None:
    with pytest.raises(
        ss.ProgramError, match=r"line \d+ of test_untraceable.py: `x = x \+ 1`: .*more than 1024 steps.*ss\.vmap"
    ):
        run(function, np.ones(2))


def test_too_many_captured_arrays_and_results_are_refused_by_name() -> None:
    with pytest.raises(ss.ProgramError, match=r"sum\(.*more than 256 inputs, captured arrays included; stack"):
        run(lambda x: x + sum(x * np.ones(2) for _ in range(300)), np.ones(2))
    with pytest.raises(ss.ProgramError, match=r"the function at line \d+ .* returns 300 arrays, at most 256 .*stack"):
        run(lambda x: [x] * 300, np.ones(2))
