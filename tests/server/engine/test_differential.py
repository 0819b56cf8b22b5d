"""No assignment of resources ever changes the result: random programs, random assignments, several meshes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardserve_proto.errors import AxisError
from shardserve_proto.programs import Constant, Param, Program, Step
from shardserve_server.engine.engine import Engine
from tests.calls import Array, Result, mapping, run

MESHES = [(("d", 1),), (("x", 2), ("y", 4)), (("x", 4), ("y", 2)), (("d", 8),), (("d", 5),)]
NAMES = ("i", "j", "k")
SIZES = {"i": 6, "j": 5, "k": 3}
UNARY = ("tanh", "negative", "abs")
BINARY = ("add", "subtract", "multiply", "maximum", "divide")
COLLECTIVES = ("psum", "pmean", "pmax", "pmin")
REDUCTIONS = ("sum", "max", "mean")


@dataclass(frozen=True)
class Case:
    """A program over named axes, its arguments, and how each is named."""

    program: Program
    arguments: tuple[Array, ...]
    in_axes: tuple[list[Any], ...]
    out_axes: list[Any]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Each argument carries some names and one positional dimension; steps mix all that come before them."""
    seed = draw(st.integers(0, 2**16))
    rng = np.random.default_rng(seed)
    carried = [draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True)) for _ in range(2)]
    arguments = tuple(rng.uniform(0.5, 2.0, [*(SIZES[name] for name in names), 4]) for names in carried)
    steps: list[Step] = []
    bound = sorted({name for names in carried for name in names})
    for _ in range(draw(st.integers(1, 5))):
        steps.append(draw(_step(len(arguments) + len(steps), bound)))
    final = len(arguments) + len(steps) - 1
    program = Program(inputs=len(arguments), steps=tuple(steps), outputs=(final,))
    order = draw(st.permutations(bound))
    return Case(program, arguments, tuple([*names, ...] for names in carried), [*order, ...])


@st.composite
def _step(draw: st.DrawFn, values: int, names: list[str]) -> Step:
    value = st.integers(0, values - 1)
    kind = draw(st.sampled_from(["unary", "binary", "constant", "collective", "reduction", "index"]))
    if kind == "unary":
        return Step(kernel=draw(st.sampled_from(UNARY)), operands=(draw(value),))
    if kind == "binary":
        return Step(kernel=draw(st.sampled_from(BINARY)), operands=(draw(value), draw(value)))
    if kind == "constant":
        return Step(kernel="multiply", operands=(draw(value), Constant.of(draw(st.sampled_from([2, 0.5])))))
    if kind == "index":
        return Step(kernel="axis_index", params={"axis_name": draw(st.sampled_from(names))})
    over = tuple(draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True)))
    if kind == "collective":
        return Step(kernel=draw(st.sampled_from(COLLECTIVES)), operands=(draw(value),), params={"axis_name": over})
    # keepdims, so that later steps still broadcast against the other values
    reduced: dict[str, Param] = {"axis": over, "keepdims": True}
    return Step(kernel=draw(st.sampled_from(REDUCTIONS)), operands=(draw(value),), params=reduced)


@st.composite
def assignments(draw: st.DrawFn, mesh: tuple[tuple[str, int], ...]) -> dict[str, Any]:
    """Each mesh axis goes to at most one name, so that no two names of one value can meet on it."""
    resources: dict[str, tuple[str, ...]] = {}
    for axis, _ in draw(st.permutations(mesh)):
        name = draw(st.sampled_from([*NAMES, None]))
        if name is not None:
            resources[name] = (*resources.get(name, ()), axis)
    return resources


def answer(engine: Engine, case: Case, mesh: Any, resources: dict[str, Any]) -> Result:
    bound = {name for axes in case.in_axes for name in axes if isinstance(name, str)}
    used = {name: axes for name, axes in resources.items() if name in bound}
    mapped = mapping(list(case.in_axes), [case.out_axes], used)
    return run(engine, case.program, *case.arguments, mapping=mapped, mesh=mesh)


@given(case=cases(), data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.timeout(400)
def test_no_assignment_of_resources_changes_a_result(engine: Engine, case: Case, data: st.DataObject) -> None:
    expected = answer(engine, case, (("d", 1),), {}).value
    for mesh in MESHES:
        resources = data.draw(assignments(mesh))
        found = answer(engine, case, mesh, resources).value
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11, err_msg=f"{mesh} {resources}")


def test_the_differential_test_can_fail(engine: Engine) -> None:
    """Control: the same comparison finds a program whose result does change (another axis is summed)."""
    x = np.arange(6.0).reshape(2, 3)
    programs = [
        Program(inputs=1, steps=(Step(kernel="psum", operands=(0,), params={"axis_name": name}),), outputs=(1,))
        for name in ("i", "j")
    ]
    found = [
        run(engine, program, x, mapping=mapping([["i", "j"]], [["i", "j"]], {"i": "devices"})).value
        for program in programs
    ]
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(found[0], found[1])


def test_two_names_may_share_a_mesh_axis_if_they_never_meet(engine: Engine) -> None:
    """jax-notes 1.3: `sum(x{a}) + sum(y{b})`, both on x, is legal; x{a} + y{b} is not."""
    x, y = np.arange(4.0), np.arange(6.0)
    apart = Program(
        inputs=2,
        steps=(
            Step(kernel="psum", operands=(0,), params={"axis_name": "a"}),
            Step(kernel="psum", operands=(1,), params={"axis_name": "b"}),
            Step(kernel="add", operands=(2, 3)),
        ),
        outputs=(4,),
    )
    both = {"a": "x", "b": "x"}
    mesh = (("x", 4), ("y", 2))
    assert run(engine, apart, x, y, mapping=mapping([["a"], ["b"]], [[]], both), mesh=mesh).value == 21.0
    meeting = Program.of_kernel("add", operands=2)
    with pytest.raises(AxisError, match="'a' and 'b', which are both on mesh axis 'x'"):
        run(engine, meeting, x, y, mapping=mapping([["a"], ["b"]], [["a", "b"]], both), mesh=mesh)
