"""jit and sharding constraints: what a function's specs become in the call, and what is refused."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import shardserve as ss
from shardserve import P

from .interpreter import run
from .traces import trace

X = np.arange(6.0).reshape(2, 3)
Y = np.arange(6.0, 12.0).reshape(2, 3)


def test_jit_at_the_top_gives_the_shardings_of_the_call() -> None:
    @ss.jit(in_shardings=None, out_shardings=P("devices"))
    def dots(v1: Any, v2: Any) -> Any:
        return ss.vmap(ss.dot, in_axes=(0, 0))(v1, v2)

    traced = trace(dots, X, Y)
    assert traced.in_specs == (None, None)
    assert traced.out_specs == (("devices",),)
    assert traced.mapping is not None
    np.testing.assert_array_equal(run(dots, X, Y), np.vecdot(X, Y))


def test_jit_without_arguments_leaves_everything_to_the_server() -> None:
    traced = trace(ss.jit(lambda x: x + 1), X)
    assert traced.in_specs is None
    assert traced.out_specs is None


def test_captured_arrays_behind_the_arguments_are_placed_by_the_server() -> None:
    bias = np.ones(3)
    traced = trace(ss.jit(lambda x: x + bias, in_shardings=P("x")), X)
    assert traced.in_specs == (("x",), "auto")


def test_shardings_are_prefixes_of_the_trees() -> None:
    def function(params: Any, x: Any) -> Any:
        return {"y": x @ params["w"], "b": params["b"]}

    jitted = ss.jit(
        function, in_shardings=(P(None, "model"), ss.AUTO), out_shardings={"y": P("data", "model"), "b": None}
    )
    traced = trace(jitted, {"w": np.ones((3, 4)), "b": np.ones((4, 1))}, X)
    assert traced.in_specs == ((None, "model"), (None, "model"), "auto")
    assert traced.out_specs == (("data", "model"), None)


class PartitionSpec:
    """Has the name and the shape of jax's."""

    def __init__(self, *entries: Any) -> None:
        self.entries = entries

    def __iter__(self) -> Any:
        return iter(self.entries)


class Mesh(NamedTuple):
    shape: dict[str, int]


class NamedSharding(NamedTuple):
    mesh: Mesh
    spec: PartitionSpec


def test_jax_s_specs_and_shardings_are_taken_by_their_shape() -> None:
    mesh = Mesh({"x": 4, "y": 2})
    sharding = NamedSharding(mesh, PartitionSpec("x", ("y",)))
    traced = trace(ss.jit(lambda x: x, in_shardings=sharding, out_shardings=PartitionSpec(None, "y")), X)
    assert traced.in_specs == (("x", ("y",)),)
    assert traced.out_specs == ((None, "y"),)
    assert traced.mesh == (("x", 4), ("y", 2))


def test_shardings_over_two_meshes_are_refused() -> None:
    first = NamedSharding(Mesh({"x": 8}), PartitionSpec("x"))
    second = NamedSharding(Mesh({"y": 8}), PartitionSpec("y"))
    with pytest.raises(ss.ShardingError, match="two meshes"):
        trace(ss.jit(lambda x: x, in_shardings=first, out_shardings=second), X)
    with pytest.raises(ss.ShardingError, match="two meshes"):
        trace(ss.jit(lambda x, y: (x, y), in_shardings=(first, second)), X, Y)


@pytest.mark.parametrize(
    ("shardings", "message"),
    [
        ((P("x"),), "in_shardings is a tuple of 1, but there are 2 arguments"),
        ("x", r"takes specs such as P\('x'\)"),
        ((("x", None), None), r"takes specs such as P\('x', None\).* not \('x', None\)"),
        (3, "takes specs"),
    ],
    ids=str,
)
def test_shardings_that_are_no_specs_are_told(shardings: Any, message: str) -> None:
    with pytest.raises(ss.ShardingError, match=message):
        trace(ss.jit(ss.add, in_shardings=shardings), X, Y)


def test_jit_inside_a_function_and_constraints_hold_intermediate_values() -> None:
    def function(x: Any) -> Any:
        y = ss.with_sharding_constraint(x * 2, P("x"))
        return ss.jit(lambda v: v + 1, in_shardings=P(None, "y"), out_shardings=P("x", "y"))(y)

    traced = trace(function, X)
    assert [step.specs for step in traced.program.steps] == [None, (("x",),), ((None, "y"),), None, (("x", "y"),)]
    np.testing.assert_array_equal(run(function, X), X * 2 + 1)


def test_a_constraint_on_a_tree_takes_a_prefix() -> None:
    def function(x: Any) -> Any:
        return ss.with_sharding_constraint({"a": x, "b": (x, 2.0)}, {"a": P("x"), "b": ss.AUTO})

    traced = trace(function, X)
    assert [step.specs for step in traced.program.steps if step.specs] == [(("x",),)]


def test_a_call_of_a_mapped_function_outside_of_a_trace_points_to_the_client() -> None:
    with pytest.raises(ss.UntraceableFunction, match=r"client\.run"):
        ss.vmap(ss.dot)(X, Y)


def test_keywords_for_a_mapped_function_are_refused() -> None:
    with pytest.raises(ss.ProgramError, match="positional arguments only"):
        run(lambda x: ss.vmap(ss.dot)(x, y=x), X)
