"""Abstract evaluation: results of every step, and errors that name the step."""

from __future__ import annotations

from typing import Any

import pytest

from shardserve_proto.abstract import Aval, Scope, constant_aval, evaluate, signature_of
from shardserve_proto.dtypes import DTYPES
from shardserve_proto.errors import AxisError, DTypeError, NotFound, ProgramError, ShapeError, ShardingError
from shardserve_proto.programs import Program, Step
from shardserve_proto.signatures import BUILTIN

from .evaluation import GRID, IDENTITY, aval, kernel, mapped

# --- the step is named -----------------------------------------------------------------------------------------------


def test_an_error_names_the_step_and_its_kernel() -> None:
    program = Program(
        inputs=1,
        steps=(Step(kernel="exp", operands=(0,)), Step(kernel="matmul", operands=(0, 1))),
        outputs=(2,),
    )
    with pytest.raises(ShapeError, match=r"^step 1 \(matmul\): shapes \(2, 3\) and \(2, 3\)") as caught:
        evaluate(program, [aval(2, 3)], Scope(), BUILTIN)
    assert caught.value.details["step"] == "step 1 (matmul)"
    assert caught.value.details["shapes"] == [[2, 3], [2, 3]]


def test_a_plain_kernel_call_is_named_by_its_kernel_alone() -> None:
    with pytest.raises(DTypeError, match="^subtract: subtract is not defined for bool, bool"):
        evaluate(kernel("subtract", 2), [Aval((2,), DTYPES["bool"])] * 2, Scope(), BUILTIN)


def test_a_step_of_a_nested_program_is_named_by_its_path() -> None:
    inner = Program(
        inputs=1,
        steps=(Step(kernel="exp", operands=(0,)), Step(kernel="sum", operands=(1,), params={"axis": 5})),
        outputs=(2,),
    )
    outer = Program(
        inputs=1, steps=(Step(kernel="exp", operands=(0,)), Step(program=inner, operands=(1,))), outputs=(2,)
    )
    with pytest.raises(AxisError, match=r"^step 1 \(program\): step 1 \(sum\): axis 5 is out of bounds"):
        evaluate(outer, [aval(3)], Scope(), BUILTIN)


def test_an_unknown_kernel_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(NotFound, match="unknown kernel 'matmull'; did you mean 'matmul'") as caught:
        evaluate(kernel("matmull", 2), [aval(2, 2)] * 2, Scope(), BUILTIN)
    assert caught.value.details["kernel"] == "matmull"
    with pytest.raises(NotFound):
        signature_of("", BUILTIN)


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (
            Program(inputs=1, steps=(Step(kernel="exp", operands=(1,)),), outputs=(1,)),
            "operand refers to value 1, but only 1",
        ),
        (Program(inputs=1, steps=(Step(kernel="exp", operands=(-1,)),), outputs=(1,)), "operand refers to value -1"),
        (Program(inputs=1, steps=(), outputs=(1,)), "output refers to value 1 of 1"),
        (Program(inputs=1, steps=(), outputs=(-1,)), "output refers to value -1 of 1"),
        (Program(inputs=2, steps=(), outputs=(0,)), "takes 2 inputs and is given 1"),
    ],
)
def test_a_reference_to_a_value_that_is_not_there_is_refused(program: Program, text: str) -> None:
    with pytest.raises(ProgramError, match=text):
        evaluate(program, [aval(3)], Scope(), BUILTIN)


# --- constraints -----------------------------------------------------------------------------------------------------


def constrained(*specs: Any) -> Program:
    return Program(inputs=1, steps=(Step(kernel="exp", operands=(0,), specs=specs),), outputs=(1,))


@pytest.mark.parametrize("spec", ["auto", None, ("x", "y"), (("x", "y"), None), ()])
def test_a_constraint_that_fits_is_accepted(spec: Any) -> None:
    evaluate(constrained(spec), [aval(4, 4)], Scope(mesh=GRID), BUILTIN)


@pytest.mark.parametrize(
    ("specs", "error", "text"),
    [
        ((("z",),), ShardingError, r"exp: constraint on result 0: axis 'z' .* is not on the mesh \(x=4, y=2\)"),
        ((("x", "x"),), ShardingError, "stands twice"),
        ((("x", None, None),), ShardingError, "3 entries, but the array has rank 2"),
        ((None, None), ProgramError, "2 sharding constraints for 1 results"),
    ],
)
def test_a_constraint_that_does_not_fit_is_refused(specs: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        evaluate(constrained(*specs), [aval(4, 4)], Scope(mesh=GRID), BUILTIN)


def test_a_constraint_may_not_use_the_mesh_axis_of_a_named_axis() -> None:
    with pytest.raises(ShardingError, match="uses mesh axis 'x', which already carries the named axis 'i'"):
        mapped(
            constrained(("x",)), aval(4, 4), in_axes=[{0: "i"}], out_axes=[{0: "i"}], resources={"i": "x"}
        )  # fmt: skip


def test_the_client_traces_without_a_mesh() -> None:
    evaluate(constrained(("anything",)), [aval(4)], Scope(), BUILTIN)
    mapped(IDENTITY, aval(4), in_axes=[["i"]], out_axes=[["i"]], resources={"i": "anything"}, mesh=None)


@pytest.mark.parametrize(("scalar", "kind"), [(True, "bool"), (1, "int"), (1.0, "float"), (1j, "complex")])
def test_a_constant_knows_its_kind_and_its_value(scalar: Any, kind: Any) -> None:
    assert constant_aval(scalar) == Aval((), kind, value=scalar)


def test_a_value_prints_as_dtype_and_shape() -> None:
    assert str(aval(2, 3)) == "float32[2, 3]"
    assert str(constant_aval(1.0)) == "float[]"
