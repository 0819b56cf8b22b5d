"""vmap and xmap, nested in each other: the meaning against plain NumPy, the errors by their text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardserve as ss
from shardserve import P
from shardserve._arrays import aval_of
from shardserve_proto.abstract import Scope, evaluate
from shardserve_proto.signatures import BUILTIN

from .interpreter import run
from .traces import trace

X = np.arange(6.0).reshape(2, 3)
Y = np.arange(6.0, 12.0).reshape(2, 3)


# --- vmap ------------------------------------------------------------------------------------------------------------


def test_vmap_maps_over_the_first_dimension_by_default() -> None:
    np.testing.assert_array_equal(run(ss.vmap(ss.dot), X, Y), np.vecdot(X, Y))


@given(st.integers(-3, 2), st.integers(-3, 2), st.integers(-2, 1))
@settings(deadline=None, max_examples=40)
def test_vmap_takes_any_dimension_and_puts_it_anywhere(left: int, right: int, out: int) -> None:
    x = np.random.default_rng(0).normal(size=(4, 4, 4))
    found = run(ss.vmap(ss.vecdot, in_axes=(left, right), out_axes=out), x, x)
    slices = [np.vecdot(a, b) for a, b in zip(np.moveaxis(x, left, 0), np.moveaxis(x, right, 0), strict=True)]
    np.testing.assert_allclose(found, np.stack(slices, axis=out))


def test_an_argument_that_vmap_does_not_map_is_whole_for_each_position() -> None:
    np.testing.assert_array_equal(run(ss.vmap(ss.dot, in_axes=(0, None)), X, Y[0]), X @ Y[0])


def test_a_python_scalar_under_vmap_stays_a_python_number() -> None:
    seen: list[Any] = []

    def scale(row: Any, factor: Any) -> Any:
        seen.append(factor)
        return row * factor if factor > 1 else row

    np.testing.assert_array_equal(run(lambda x: ss.vmap(scale, in_axes=(0, None))(x, 2), X), X * 2)
    assert seen == [2]


def test_vmap_reads_in_axes_as_a_prefix_of_trees() -> None:
    def function(pair: Any, weights: Any) -> Any:
        return pair[0] * weights["w"], {"sum": pair[1].sum()}

    found = run(ss.vmap(function, in_axes=([0, 1], None), out_axes=(0, 0)), [X, X.T], {"w": 2.0})
    np.testing.assert_array_equal(found[0], X * 2)
    np.testing.assert_array_equal(found[1]["sum"], X.sum(1))


def test_a_named_vmap_lets_collectives_run_over_its_dimension() -> None:
    np.testing.assert_allclose(run(ss.vmap(lambda x: x / ss.psum(x, "i"), axis_name="i"), X), X / X.sum(0))


def test_axis_size_maps_a_function_whose_arguments_carry_nothing() -> None:
    function = ss.vmap(lambda x: x + ss.axis_index("i"), in_axes=None, axis_name="i", axis_size=3)
    np.testing.assert_array_equal(run(function, 10.0), [10.0, 11.0, 12.0])


def test_a_result_that_does_not_vary_is_repeated_or_left_alone() -> None:
    np.testing.assert_array_equal(run(ss.vmap(lambda _, y: y, in_axes=(0, None)), X, 3.0), [3.0, 3.0])
    assert run(ss.vmap(lambda _, y: y, in_axes=(0, None), out_axes=None), X, 3.0) == 3.0


def test_nested_vmaps_have_axes_of_their_own() -> None:
    outer = ss.vmap(ss.vmap(ss.dot, in_axes=(None, 0)), in_axes=(0, None))
    np.testing.assert_array_equal(run(outer, X, Y), X @ Y.T)


def test_equal_programs_have_equal_anonymous_names() -> None:
    first, second = (trace(ss.vmap(ss.dot), X, Y) for _ in range(2))
    assert first.mapping == second.mapping


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        (ss.vmap(ss.dot, in_axes=(0, 2)), (X, Y), "in_axes of argument 1: dimension 2 is out of bounds .* rank 2"),
        (ss.vmap(ss.dot, in_axes=(None, None)), (X, Y), "maps no argument"),
        (ss.vmap(ss.dot, in_axes=(0,)), (X, Y), "in_axes is a tuple of 1, but there are 2 arguments"),
        (ss.vmap(ss.dot, in_axes=("i", 0)), (X, Y), "in_axes"),
        (ss.vmap(lambda x: x, out_axes=None), (X,), "varies along axis"),
        (ss.vmap(lambda x: x, out_axes=5), (X,), "out_axes of result 0: dimension 5"),
        (ss.vmap(ss.dot), (X, np.ones((3, 3))), "size 2 in argument 0.*size 3 in argument 1"),
        (ss.vmap(ss.dot), (X, 2.0), "dimension 0 is out of bounds for an array of rank 0"),
    ],
    ids=str,
)
def test_vmap_tells_what_does_not_fit(function: Any, args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ss.AxisError, match=message):
        run(function, *args)


# --- xmap ------------------------------------------------------------------------------------------------------------


def test_xmap_decorates_and_psum_runs_over_both_names() -> None:
    @ss.xmap(in_axes=["rows", "cols"], out_axes=["rows", "cols"], axis_resources={"rows": "x", "cols": "y"})
    def normalize(x: Any) -> Any:
        """Divide by the total."""
        assert x.shape == ()
        return x / ss.psum(x, ("rows", "cols"))

    np.testing.assert_allclose(run(normalize, X), X / X.sum())
    traced = trace(normalize, X)
    assert traced.mapping is not None
    assert traced.mapping.axis_resources == (("rows", ("x",)), ("cols", ("y",)))
    assert "test_transforms.py" in repr(normalize)
    assert normalize.__doc__ == "Divide by the total."


@pytest.mark.parametrize(
    "in_axes",
    [
        ({0: "i"}, {0: "i"}),
        (["i", ...], ["i", ...]),
        [["i", ...], ["i", ...]],
        (("i", ...), {0: "i"}),
        (["i", None], {0: "i"}),
        {0: "i"},
        ["i", ...],
    ],
    ids=str,
)
def test_all_forms_of_in_axes_mean_the_same(in_axes: Any) -> None:
    function = ss.xmap(ss.dot, in_axes, ["i"])
    np.testing.assert_array_equal(run(function, X, Y), np.vecdot(X, Y))


def test_positions_in_out_axes_are_those_of_the_final_array() -> None:
    function = ss.xmap(lambda x, y: x * y, ({0: "i"}, {0: "j"}), {2: "i", 0: "j"})
    wanted = np.einsum("ik,jk->jki", X, Y)
    np.testing.assert_array_equal(run(function, X, Y), wanted)


def test_names_that_the_result_lacks_are_broadcast() -> None:
    """The old `xmap(lambda x: x, {}, ['i'], axis_sizes={'i': 4})(2.)`."""
    function = ss.xmap(lambda x: x, {}, ["i"], axis_sizes={"i": 4})
    np.testing.assert_array_equal(run(function, 2.0), [2.0] * 4)


def test_a_function_without_arguments_has_an_index() -> None:
    function = ss.xmap(lambda: ss.axis_index("i"), (), ["i", ...], axis_sizes={"i": 6})
    np.testing.assert_array_equal(run(function), np.arange(6))


def test_psum_of_a_constant_counts_it_once_for_each_position() -> None:
    """B30."""
    function = ss.xmap(lambda: ss.psum(np.array(2) ** 2, "i"), (), [...], axis_sizes={"i": 4})
    assert run(function) == 16
    assert run(ss.xmap(lambda: ss.psum(1, "i"), (), [...], axis_sizes={"i": 4})) == 4


def test_axis_size_and_the_index_over_two_names_count_in_their_order() -> None:
    def function(x: Any) -> Any:
        return ss.axis_index(("i", "j")) + 100 * ss.axis_size("j") + 0 * x

    found = run(ss.xmap(function, ["i", "j"], ["i", "j"]), np.zeros((2, 3)))
    np.testing.assert_array_equal(found, np.arange(6.0).reshape(2, 3) + 300)


def test_reductions_take_names_and_dimensions_together() -> None:
    function = ss.xmap(lambda x: (x.sum((0, "i")), x.max("i"), ss.pmean(x, "i")), {1: "i"}, [...])
    total, largest, mean = run(function, X)
    assert total == X.sum()
    np.testing.assert_array_equal(largest, X.max(1))
    np.testing.assert_array_equal(mean, X.mean(1))


def test_xmap_inside_xmap_keeps_the_outer_names_in_sight() -> None:
    def inner(x: Any, total: Any) -> Any:
        return x / total + ss.psum(x, ("i", "j"))

    def outer(x: Any) -> Any:
        return ss.xmap(inner, (["j"], {}), ["j"])(x, x.sum())

    wanted = X / X.sum(1, keepdims=True) + X.sum()
    np.testing.assert_allclose(run(ss.xmap(outer, ["i", ...], ["i", ...]), X), wanted)


def test_a_nested_function_may_close_over_values_of_the_outer_one() -> None:
    def outer(x: Any, y: Any) -> Any:
        shift = x.sum()
        bias = np.arange(3.0)
        return ss.vmap(lambda row: ss.vmap(lambda v: v * shift + row.max())(row) + bias + y)(x)

    wanted = X * X.sum() + X.max(1, keepdims=True) + np.arange(3.0) + 5
    np.testing.assert_allclose(run(outer, X, 5.0), wanted)


def test_a_value_that_varies_outside_may_be_closed_over_inside() -> None:
    function = ss.vmap(lambda row: ss.vmap(lambda y: row.sum() + y)(np.arange(4.0)))
    np.testing.assert_array_equal(run(function, X), X.sum(1)[:, None] + np.arange(4.0))


def test_dict_arguments_and_results_have_dicts_of_axes() -> None:
    """B38."""
    function = ss.xmap(
        lambda d: {"sum": d["a"] + d["b"].sum(), "b": d["b"]},
        ({"a": ["i"], "b": ["i", ...]},),
        {"sum": ["i"], "b": {1: "i"}},
    )
    found = run(function, {"a": np.arange(2.0), "b": X})
    np.testing.assert_array_equal(found["sum"], np.arange(2.0) + X.sum(1))
    np.testing.assert_array_equal(found["b"], X.T)


@pytest.mark.parametrize("wrap", [lambda p: [p], lambda p: (p,)], ids=["list", "tuple"])
def test_a_list_and_a_tuple_of_axes_are_the_same(wrap: Any) -> None:
    """B38."""
    p = [["x"], ["x"], ["x"]]
    function = ss.xmap(lambda xs: xs[0] + xs[1] * xs[2], wrap(p), ["x"])
    vectors = [np.arange(3.0), np.ones(3), np.full(3, 2.0)]
    np.testing.assert_array_equal(run(function, vectors), np.arange(3.0) + 2)


def test_axes_that_are_no_prefix_get_the_hint_about_the_1_tuple() -> None:
    """B38."""
    function = ss.xmap(lambda xs: xs[0], [["x"], ["x"], ["x"]], ["x"])
    with pytest.raises(ss.AxisError, match=r"in_axes is a list of 3, but there is 1 argument; .*1-tuple: in_axes=\(\["):
        run(function, [np.ones(2)] * 3)
    function = ss.xmap(lambda d: d["a"], {"a": ["x"]}, ["x"])
    with pytest.raises(ss.AxisError, match="1-tuple"):
        run(function, {"a": np.ones(2)})


X3 = np.ones(3)
SAME = {"a": "x", "b": "x"}


def same(x: Any) -> Any:
    return x


MISFITS: list[tuple[Any, str]] = [
    (
        lambda: ss.xmap(ss.add, ["i"], ["i"])(np.ones(5), np.ones(7)),
        "'i' has size 5 in argument 0.*size 7 in argument 1",
    ),
    (lambda: ss.xmap(same, ["i"], ["i"])(X), r"argument 0 has rank 2.*\['i'\] assert rank 1"),
    (lambda: ss.xmap(same, {-1: "i"}, ["i"])(X), "position -1 of axis 'i' is negative"),
    (lambda: ss.xmap(same, ["i", "i"], ["i"])(X), "'i' stands twice"),
    (lambda: ss.xmap(same, ["i"], ["i"], axis_resources={"i": ("x", "x")})(X3), "same mesh axis twice"),
    (
        lambda: ss.xmap(ss.add, (["a"], ["b"]), ["a", "b"], axis_resources=SAME)(X3, X3),
        "'a' and 'b', which are both on mesh axis 'x'",
    ),
    (lambda: ss.xmap(same, ["i"], [...])(X3), "varies along axis 'i'"),
    (lambda: ss.xmap(lambda x: x + ss.axis_index("i"), ["i"], [...])(X3), "varies along axis 'i'"),
    (lambda: ss.xmap(lambda x: ss.psum(x, "batch"), ["i"], [...])(X3), "unknown axis 'batch'; known axes: 'i'"),
    (lambda: ss.xmap(same, ["i"], ["j"])(X3), "out_axes name axis 'j', whose size nothing defines"),
    (lambda: ss.xmap(same, ["i"], ["i"], axis_resources={"k": "x"})(X3), "axis_resources name axis 'k'"),
    (lambda: ss.xmap(same, ["i"], ["i", ...], axis_sizes={"i": 4})(X3), "size 3 .*size 4"),
    (lambda: ss.xmap(same, "i", ["i"])(X3), r"did you mean \['i', \.\.\.\]"),
    (lambda: ss.xmap(same, {0: 5}, ["i"])(X3), "an axis name is a text, not 5"),
    (lambda: ss.xmap(same, ["i", ..., "j"], ["i"])(X3), "ellipsis stands last"),
    (lambda: ss.xmap(ss.xmap(same, ["i"], ["i"]), ["i", ...], ["i", ...])(X), "'i' is already bound outside"),
]


@pytest.mark.parametrize(("build", "message"), MISFITS, ids=[message for _, message in MISFITS])
def test_named_axes_that_do_not_fit_are_told_with_names_and_sizes(build: Any, message: str) -> None:
    """B29, B35, B36."""
    with pytest.raises(ss.AxisError, match=message):
        run(build)


def test_errors_of_a_nested_mapping_name_the_line_of_its_call() -> None:
    def outer(x: Any) -> Any:
        return ss.vmap(ss.dot, in_axes=(0, 3))(x, x)

    with pytest.raises(ss.AxisError, match=r"\(line \d+ of test_transforms.py: `return ss.vmap\(ss.dot"):
        run(outer, X)


@pytest.mark.parametrize("missing", ["in_axes", "out_axes"])
def test_xmap_without_axes_is_refused_at_once(missing: str) -> None:
    given: dict[str, Any] = {"in_axes": ["i"], "out_axes": ["i"]}
    del given[missing]
    with pytest.raises(ss.AxisError, match=missing):
        ss.xmap(lambda x: x, **given)


@pytest.mark.parametrize("nothing", [[], ()])
def test_out_axes_that_describe_no_result_are_refused(nothing: Any) -> None:
    with pytest.raises(ss.AxisError, match="out_axes"):
        ss.xmap(lambda x: x, ["i"], nothing)


# --- errors name the user's line -------------------------------------------------------------------------------------


def test_the_size_of_an_axis_is_a_number_while_the_function_is_traced() -> None:
    def function(x: Any) -> Any:
        size = ss.axis_size("i")
        assert type(size) is int
        return x.reshape(size, -1) * sum(range(size)) + ss.axis_size(("i", "j"))

    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    found = run(ss.xmap(function, ["i", "j", ...], ["i", "j", ...]), x)
    np.testing.assert_array_equal(found, x.reshape(2, 3, 2, 2) + 6)
    assert found.dtype == np.float32


@pytest.mark.parametrize("names", ["k", ("i", "i"), 3])
def test_the_size_of_no_axis_is_an_error_with_the_line(names: Any) -> None:
    with pytest.raises(ss.ShardserveError, match="axis_size") as caught:
        run(ss.xmap(lambda x: x * ss.axis_size(names), ["i"], ["i"]), np.ones(3))
    assert names == 3 or "test_transforms.py" in str(caught.value)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda x: ss.with_sharding_constraint(x * 2, P("x", None, "y")), ss.ShardingError, "has 3 entries"),
        (lambda x: ss.with_sharding_constraint(x * 2, P("x", "x")), ss.ShardingError, "stands twice"),
        (lambda x: ss.jit(lambda v: v, out_shardings=P("x", None, "y"))(x + 0), ss.ShardingError, "has 3 entries"),
        (
            ss.xmap(
                lambda x: ss.with_sharding_constraint(x, P("x")), ["i", ...], ["i", ...], axis_resources={"i": "x"}
            ),
            ss.ShardingError,
            "uses mesh axis 'x', which already carries the named axis 'i'",
        ),
        (
            ss.xmap(
                lambda x: ss.xmap(lambda y: y, ["k"], ["k"], axis_resources={"k": "x"})(x + 0),
                ["i", ...],
                ["i", ...],
                axis_resources={"i": "x"},
            ),
            ss.AxisError,
            "argument 0 carries the axes 'i' and 'k'",
        ),
    ],
)
def test_what_does_not_fit_is_told_with_the_user_s_line(function: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message + r".*\(line \d+ of test_transforms.py"):
        run(function, X)


def test_a_constraint_is_called_what_the_user_wrote() -> None:
    traced = trace(lambda x: ss.with_sharding_constraint(x * 2, P("devics")), X)
    scope = Scope(mesh=(("devices", 8),))
    with pytest.raises(
        ss.ShardingError, match=r"step 1 \(with_sharding_constraint\): .*axis 'devics'.*did you mean 'devices'"
    ):
        evaluate(traced.program, [aval_of(X)], scope, BUILTIN)
