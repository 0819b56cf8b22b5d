"""Traced functions on a real server give what the interpreter in NumPy says, whatever places their axes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import shardserve as ss
from shardserve import P
from tests.client.interpreter import run

RNG = np.random.default_rng(1)
X, Y = RNG.normal(size=(6, 5)), RNG.normal(size=(6, 5))
W = RNG.normal(size=(5, 7)).astype(np.float32)
BIAS = np.arange(5.0)


def layers(params: dict[str, Any], x: Any) -> Any:
    hidden = np.tanh(x @ params["w"] + params["b"])
    return {"out": np.maximum(hidden, 0).sum(axis=0), "mean": (hidden.mean(), 1)}


def closures(x: Any) -> Any:
    shift = x.sum()
    return ss.vmap(lambda row: ss.vmap(lambda v: v * shift + row.max())(row) + BIAS)(x)


def softmax(x: Any) -> Any:
    e = ss.exp(x - ss.pmax(x, "j"))
    return e / ss.psum(e, "j")


def counted(x: Any) -> Any:
    return x * ss.axis_size("i") + ss.axis_index(("i", "j")) + ss.psum(1, "j")


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "operators": (lambda x, y: (x + 2) * y - x / (y**2 + 1.5) + (x > y) * -x, (X, Y)),
    "trees": (layers, ({"w": W, "b": np.float32(0.5)}, X.astype(np.float32))),
    "scalars": (lambda x, s, n: x * s + n, (X.astype(np.float32), 2.5, 3)),
    "nested vmap": (ss.vmap(ss.vmap(ss.dot, in_axes=(None, 0)), in_axes=(0, None)), (X, Y)),
    "closures": (closures, (X,)),
    "where": (lambda x: np.where(np.abs(x) > 0.5, np.sqrt(np.abs(x)), np.log(np.exp(x))), (X,)),
    "shapes": (lambda x: np.broadcast_to(x.T.reshape(1, -1, 2), (3, 15, 2)).transpose(2, 0, 1), (X,)),
    "einsum": (lambda x, y: np.einsum("ij,kj->ik", x, y) @ x, (X, Y)),
    "bools": (lambda x, y: (x < y).sum(axis=1), (X, Y)),
    "constraint": (lambda x: ss.with_sharding_constraint(x * 2, P("x", "y")).sum(0), (X,)),
    "jit inside": (lambda x: ss.jit(lambda v: v + 1, in_shardings=P("x"), out_shardings=P(None, "y"))(x) * 2, (X,)),
    "index only": (ss.xmap(lambda: ss.axis_index("i") * 2, (), ["i", ...], axis_sizes={"i": 6}), ()),
    "no change": (lambda x: x, (X,)),
    "dtypes": (lambda x: (x.astype(np.int32), x.astype("bool"), x.sum(dtype=np.float32)), (X * 3,)),
}


def check(found: Any, wanted: Any) -> None:
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        found, wanted = tuple(found.values()), tuple(wanted.values())
    if isinstance(wanted, tuple):
        assert isinstance(found, tuple)
        assert len(found) == len(wanted)
        for pair in zip(found, wanted, strict=True):
            check(*pair)
        return
    assert np.shape(found) == np.shape(wanted)
    assert found.dtype == wanted.dtype
    tolerance = 1e-5 if wanted.dtype == np.float32 else 1e-12
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_what_numpy_gives(client: ss.Client, name: str) -> None:
    function, args = PROGRAMS[name]
    with client.mesh({"x": 4, "y": 2}):
        check(client.run(function, *args), run(function, *args))


RESOURCES: list[dict[str, Any]] = [
    {},
    {"i": "x"},
    {"j": "y"},
    {"i": "y", "j": "x"},
    {"i": ("x", "y")},
    {"j": ("y", "x")},
]


@pytest.mark.parametrize("body", [softmax, counted], ids=lambda body: body.__name__)
@pytest.mark.parametrize("resources", RESOURCES, ids=str)
def test_no_assignment_of_resources_changes_a_result(
    client: ss.Client, body: Callable[[Any], Any], resources: dict[str, Any]
) -> None:
    function = ss.xmap(body, ["i", "j"], ["j", "i"], axis_resources=resources)
    with client.mesh({"x": 4, "y": 2}):
        check(client.run(function, X), run(function, X))


def test_a_function_is_traced_once_and_compiled_once(client: ss.Client) -> None:
    runs = itertools.count()  # which nobody watches; a list that grows would make the function another

    def function(x: Any) -> Any:
        next(runs)
        return x * 2.25

    with client.record() as log:
        for _ in range(3):
            client.run(function, X)
    assert next(runs) == 1
    assert [call.report.compiled for call in log][1:] == [False, False]


def test_a_captured_array_is_sent_with_what_it_holds_now(client: ss.Client) -> None:
    weights = np.ones(5)
    function = lambda x: x * weights  # noqa: E731
    np.testing.assert_array_equal(client.run(function, X), X)
    weights[:] = 3
    np.testing.assert_array_equal(client.run(function, X), X * 3)


def test_an_element_of_a_captured_array_is_read_as_it_is_now(client: ss.Client) -> None:
    weights = np.ones(5)
    function = lambda x: x * weights[0]  # noqa: E731
    np.testing.assert_array_equal(client.run(function, X), X)
    weights[0] = 3
    np.testing.assert_array_equal(client.run(function, X), X * 3)


def test_named_tuples_come_back_as_they_are(client: ss.Client) -> None:
    from collections import namedtuple

    pair = namedtuple("pair", "total largest")
    found = client.run(lambda x: pair(x.sum(), x.max()), X)
    assert isinstance(found, pair)
    np.testing.assert_allclose(found.total, X.sum())
    assert found.largest == np.max(X)


@pytest.mark.parametrize("source", ["float64", "float32", "float16"])
def test_floats_outside_of_an_integer_s_range_become_the_nearest_and_nan_zero(client: ss.Client, source: str) -> None:
    x = np.array([-1.0, 300.0, 2.7, np.nan, np.inf, -np.inf]).astype(source)
    assert client.astype(x, "uint8").tolist() == [0, 255, 2, 0, 255, 0]
    assert client.astype(x, "int8").tolist() == [-1, 127, 2, 0, 127, -128]
    assert client.astype(x[-2:], "int64").tolist() == [2**63 - 1, -(2**63)]
