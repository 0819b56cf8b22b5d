"""The semantics of xmap on the engine: forms, sizes, nesting, collectives, and every error before compilation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardserve_proto.errors import AxisError, NotFound, ProgramError, ShardingError
from shardserve_proto.programs import Constant, Program, Step
from shardserve_server.engine.engine import Engine
from tests.calls import mapping, run

GRID = (("x", 4), ("y", 2))
IDENTITY = Program.of_kernel("identity", operands=1)


def program_of(*steps: Step, inputs: int) -> Program:
    return Program(inputs=inputs, steps=steps, outputs=(inputs + len(steps) - 1,))


NORMALIZE = program_of(
    Step(kernel="psum", operands=(0,), params={"axis_name": ("rows", "cols")}),
    Step(kernel="divide", operands=(0, 1)),
    inputs=1,
)


@pytest.mark.parametrize("shape", [(100, 100), (101, 99), (3, 1), (1, 1), (0, 5)])
def test_a_users_normalize_over_two_names_equals_numpy_at_any_size(engine: Engine, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(0).random(shape, np.float32)
    axes = mapping([["rows", "cols"]], [["rows", "cols"]], {"rows": "x", "cols": "y"})
    found = run(engine, NORMALIZE, x, mapping=axes, mesh=GRID)
    np.testing.assert_allclose(found.value, x / x.sum() if x.size else x, rtol=2e-6)
    assert found.report.outputs[0].spec == ("x", "y")


@pytest.mark.parametrize("columns", [80, 1001, 7, 1, 0])
def test_a_batched_dot_takes_its_batch_from_any_dimension(engine: Engine, columns: int) -> None:
    v, w = np.random.default_rng(1).random((2, 3, columns))
    axes = mapping([{1: "batch"}, {1: "batch"}], [["batch", ...]], {"batch": "devices"})
    found = run(engine, "dot", v, w, mapping=axes)
    np.testing.assert_allclose(found.value, (v * w).sum(0), rtol=1e-13)


def test_out_axes_set_the_order_and_positions_of_names(engine: Engine) -> None:
    x = np.arange(24.0).reshape(2, 3, 4)
    axes = mapping([["a", ...]], [{2: "a"}], {"a": "devices"})
    np.testing.assert_array_equal(run(engine, IDENTITY, x, mapping=axes).value, np.moveaxis(x, 0, 2))
    swapped = mapping([{0: "a", 2: "c"}], [["c", "a", ...]])
    np.testing.assert_array_equal(run(engine, IDENTITY, x, mapping=swapped).value, np.moveaxis(x, 2, 0))


def test_a_name_that_the_value_does_not_carry_is_broadcast(engine: Engine) -> None:
    axes = mapping([{}], [["i"]], axis_sizes={"i": 4})
    np.testing.assert_array_equal(run(engine, IDENTITY, np.float64(2), mapping=axes).value, [2.0] * 4)


def test_axis_sizes_define_a_name_without_arguments(engine: Engine) -> None:
    index = Program(inputs=0, steps=(Step(kernel="axis_index", params={"axis_name": "i"}),), outputs=(0,))
    for resources in ({}, {"i": "devices"}):
        axes = mapping([], [["i", ...]], resources, {"i": 6})
        found = run(engine, index, mapping=axes).value
        np.testing.assert_array_equal(found, np.arange(6))
        assert found.dtype == np.int64


@pytest.mark.parametrize("resources", [{}, {"i": "x"}])
def test_psum_of_a_constant_counts_every_position(engine: Engine, resources: dict[str, str]) -> None:
    """B30."""
    square = program_of(
        Step(kernel="power", operands=(Constant.of(2), Constant.of(2))),
        Step(kernel="psum", operands=(0,), params={"axis_name": "i"}),
        inputs=0,
    )
    axes = mapping([], [[]], resources, {"i": 4})
    assert run(engine, square, mapping=axes, mesh=GRID).value == 16
    one = program_of(Step(kernel="psum", operands=(Constant.of(1),), params={"axis_name": "i"}), inputs=0)
    assert run(engine, one, mapping=axes, mesh=GRID).value == 4


def test_one_name_may_take_two_mesh_axes_in_either_order(engine: Engine) -> None:
    x = np.arange(13.0)
    for resources in (("x", "y"), ("y", "x")):
        found = run(engine, IDENTITY, x, mapping=mapping([["i"]], [["i"]], {"i": resources}), mesh=GRID)
        np.testing.assert_array_equal(found.value, x)
        assert found.report.outputs[0].spec == (resources,)
        assert found.report.outputs[0].shard_shape == (2,)


def test_a_named_axis_that_is_called_as_a_mesh_axis_goes_there_by_default(engine: Engine) -> None:
    x = np.arange(16.0)
    there = run(engine, IDENTITY, x, mapping=mapping([["x"]], [["x"]]), mesh=GRID)
    assert there.report.outputs[0].spec == ("x",)
    stays = run(engine, IDENTITY, x, mapping=mapping([["x"]], [["x"]], {"x": ()}), mesh=GRID)
    assert stays.report.mesh == ()


def test_a_nested_program_has_a_mapping_of_its_own(engine: Engine) -> None:
    """vmap in xmap: the inner program sees one row of what the outer mapping left."""
    inner = Program.of_kernel("dot", operands=2)
    rows = mapping([["row", ...], [...]], [["row"]])
    nested = program_of(Step(program=inner, mapping=rows, operands=(0, 1)), inputs=2)
    a, b = np.random.default_rng(2).random((5, 4, 3)), np.random.default_rng(3).random((5, 3))
    outer = mapping([["batch", ...], ["batch", ...]], [["batch", ...]], {"batch": "devices"})
    found = run(engine, nested, a, b, mapping=outer).value
    np.testing.assert_allclose(found, np.einsum("brk,bk->br", a, b), rtol=1e-13)


def test_a_collective_inside_a_nested_program_reaches_outer_names(engine: Engine) -> None:
    total = Program(
        inputs=1, steps=(Step(kernel="psum", operands=(0,), params={"axis_name": ("i", "j")}),), outputs=(1,)
    )
    nested = program_of(Step(program=total, mapping=mapping([["j"]], [[]]), operands=(0,)), inputs=1)
    x = np.arange(12.0).reshape(3, 4)
    axes = mapping([["i", ...]], [[]], {"i": "x"})
    assert run(engine, nested, x, mapping=axes, mesh=GRID).value == 66.0


def test_reductions_take_names_and_dimensions_together(engine: Engine) -> None:
    x = np.random.default_rng(4).random((6, 5, 4))
    axes = mapping([["i", ...]], [[...]], {"i": "devices"})
    for kernel in ("sum", "mean", "max", "min"):
        found = run(engine, kernel, x, params={"axis": ("i", 1)}, mapping=axes).value
        np.testing.assert_allclose(found, getattr(np, kernel)(x, axis=(0, 2)), rtol=1e-13)


@pytest.mark.parametrize(
    ("program", "argument", "in_axes", "out_axes", "resources", "message"),
    [
        (IDENTITY, (3,), ["i"], [...], {}, "output 0 varies along axis 'i'"),  # B29
        (IDENTITY, (3,), ["i", ...], [], {}, "output 0 varies along axis 'i'"),
        (IDENTITY, (3,), ["i", "j"], ["i"], {}, "assert rank 2"),
        (IDENTITY, (3,), {1: "i"}, ["i"], {}, "name position 1"),
        (IDENTITY, (3,), ["i"], ["i"], {"i": ("x", "x")}, "the same mesh axis twice"),
        (IDENTITY, (3,), ["i"], ["i"], {"i": "z"}, "'z', which is not on the mesh"),
        (IDENTITY, (3,), ["i"], ["i"], {"k": "x"}, "axis_resources name axis 'k'; known axes: 'i'"),
        (IDENTITY, (3,), ["i"], ["k"], {}, "out_axes name axis 'k'"),
        (IDENTITY, (3,), ["i"], {4: "i"}, {}, "name position 4"),
        (IDENTITY, (3, 4), ["i", "j"], ["i", "j"], {"i": "x", "j": "x"}, "both on mesh axis 'x'"),
    ],
)
def test_an_error_of_named_axes_comes_before_compilation_with_names_and_sizes(
    engine: Engine, program: Program, argument: Any, in_axes: Any, out_axes: Any, resources: Any, message: str
) -> None:
    before = engine.cache.compilations
    with pytest.raises(AxisError, match=message):
        run(engine, program, np.zeros(argument), mapping=mapping([in_axes], [out_axes], resources), mesh=GRID)
    assert engine.cache.compilations == before


def test_sizes_that_disagree_name_the_axis_both_sizes_and_the_argument(engine: Engine) -> None:
    """B36."""
    axes = mapping([["i"], ["i"]], [["i"]])
    with pytest.raises(AxisError, match=r"axis 'i' has size 5 in argument 0 .*size 7 in argument 1") as raised:
        run(engine, "multiply", np.arange(5), np.arange(7), mapping=axes)
    assert raised.value.details["sizes"] == [5, 7]


def test_an_unknown_axis_is_named_with_the_known_ones(engine: Engine) -> None:
    """B35."""
    total = Program.of_kernel("psum", operands=1, params={"axis_name": "batch"})
    with pytest.raises(AxisError, match="unknown axis 'batch'; known axes: 'i'"):
        run(engine, total, np.arange(3.0), mapping=mapping([["i"]], [["i"]]))


def test_a_nested_program_may_not_shadow_a_name(engine: Engine) -> None:
    nested = program_of(Step(program=IDENTITY, mapping=mapping([["i"]], [["i"]]), operands=(0,)), inputs=1)
    with pytest.raises(AxisError, match="'i' is already bound outside"):
        run(engine, nested, np.zeros((3, 3)), mapping=mapping([["i", ...]], [["i", ...]]))


def test_the_failing_step_is_named(engine: Engine) -> None:
    program = program_of(
        Step(kernel="exp", operands=(0,)), Step(kernel="matmul", operands=(0, 1)), Step(kernel="add", operands=(1, 2)),
        inputs=1,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"^step 1 \(matmul\): shapes \(3, 4\) and \(3, 4\) do not fit"):
        run(engine, program, np.zeros((3, 4)))


def test_an_unknown_kernel_gets_the_nearest_name(engine: Engine) -> None:
    with pytest.raises(NotFound, match="unknown kernel 'normalise'; did you mean 'normalize'"):
        run(engine, "normalise", np.zeros(3))


def test_an_operand_from_the_future_is_refused(engine: Engine) -> None:
    program = Program(inputs=1, steps=(Step(kernel="add", operands=(0, 2)),), outputs=(1,))
    with pytest.raises(ProgramError, match="refers to value 2, but only 1 values"):
        run(engine, program, np.zeros(3))


def test_a_constraint_may_not_take_the_mesh_axis_of_a_name(engine: Engine) -> None:
    program = program_of(Step(kernel="exp", operands=(0,), specs=(("x",),)), inputs=1)
    axes = mapping([["i", ...]], [["i", ...]], {"i": "x"})
    with pytest.raises(ShardingError, match="mesh axis 'x', which already carries the named axis 'i'"):
        run(engine, program, np.zeros((4, 4)), mapping=axes, mesh=GRID)
