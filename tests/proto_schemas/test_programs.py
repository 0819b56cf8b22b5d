"""Programs on the wire: constants, steps, extent, and what a wrong field is told."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardserve_proto import frames
from shardserve_proto.errors import InvalidRequest, ProgramError
from shardserve_proto.limits import LIMITS
from shardserve_proto.programs import Constant, Mapping, Program, Step, check_extent, validate
from shardserve_proto.specs import Axes

from .seeds import seed_calls

scalars = st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.complex_numbers()


def over_the_wire(model: Any) -> Any:
    return validate(type(model), frames.decode_header(frames.encode_header(model.to_wire())))


@given(scalars)
def test_a_constant_keeps_its_kind_and_its_bits(scalar: Any) -> None:
    sent = over_the_wire(Constant.of(scalar))
    assert type(sent.scalar) is type(scalar)
    assert repr(sent.scalar) == repr(scalar)
    assert sent == Constant.of(scalar)
    assert hash(sent) == hash(Constant.of(scalar))


@pytest.mark.parametrize(("one", "other"), [(1, 1.0), (1, True), (0, False), (0.0, -0.0), (1.0, 1 + 0j)])
def test_constants_that_python_calls_equal_are_not_the_same_constant(one: Any, other: Any) -> None:
    """They would share a compiled program, and one of them would get the other's dtype."""
    assert Constant.of(one) != Constant.of(other)


def test_an_integer_beyond_64_bits_travels_as_a_float() -> None:
    """No integer dtype takes it; a float array does, as in NumPy."""
    assert repr(Constant.of(10**30).scalar) == repr(1e30)
    assert Constant.of(2**64 - 1).scalar == 2**64 - 1


@pytest.mark.parametrize(
    "wire",
    [
        {},
        {"value": None},
        {"value": 1, "complex": (0.0, 1.0)},
        {"value": "x"},
        {"complex": (1.0,)},
        {"value": 1, "x": 2},
    ],
)
def test_a_constant_of_another_form_is_refused(wire: Any) -> None:
    with pytest.raises(InvalidRequest):
        validate(Constant, wire)


@pytest.mark.parametrize("call", seed_calls(), ids=lambda call: call.program.steps[0].title)
def test_a_program_comes_back_from_the_wire_equal_and_hashes_the_same(call: Any) -> None:
    assert over_the_wire(call.program) == call.program
    assert over_the_wire(call) == call
    assert repr(over_the_wire(call)) == repr(call)


def test_fields_left_at_their_defaults_are_not_sent() -> None:
    program = Program.of_kernel("dot", operands=2)
    assert program.to_wire() == {"inputs": 2, "steps": ({"kernel": "dot", "operands": (0, 1)},), "outputs": (2,)}


def test_a_plain_kernel_call_is_a_program_of_one_step() -> None:
    program = Program.of_kernel("split", operands=1, params={"axis": 0}, outputs=2)
    assert program == Program(
        inputs=1, steps=(Step(kernel="split", operands=(0,), params={"axis": 0}),), outputs=(1, 2)
    )


STEP: dict[str, Any] = {"kernel": "dot", "operands": (0, 1)}
PROGRAM: dict[str, Any] = {"inputs": 2, "steps": (STEP,), "outputs": (2,)}
AXES: dict[str, Any] = {"names": ((0, "i"),)}


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"inputs": -1}, "inputs"),
        ({"inputs": True}, "inputs"),
        ({"inputs": 2.0}, "inputs"),
        ({"inputs": 257}, "inputs"),
        ({"outputs": ()}, "outputs"),
        ({"outputs": (True,)}, "outputs.0"),
        ({"outputs": (0,) * 257}, "outputs"),
        ({"extra": 1}, "extra"),
        ({"steps": (STEP | {"kernle": "x"},)}, "kernle"),
        ({"steps": (STEP | {"kernel": None},)}, "steps.0"),
        ({"steps": (STEP | {"kernel": ""},)}, "kernel"),
        ({"steps": (STEP | {"kernel": "k" * 65},)}, "kernel"),
        ({"steps": (STEP | {"program": PROGRAM},)}, "either a kernel or a program"),
        ({"steps": (STEP | {"mapping": {}},)}, "a mapping belongs to a nested program"),
        ({"steps": ({"program": PROGRAM, "params": {"a": 1}},)}, "parameters belong to a kernel"),
        ({"steps": (STEP | {"operands": (True,)},)}, "operands"),
        ({"steps": (STEP | {"operands": ("0",)},)}, "operands"),
        ({"steps": (STEP | {"operands": ({"value": 1, "complex": (0.0, 0.0)},)},)}, "operands"),
        ({"steps": (STEP | {"params": {"axis": {"a": 1}}},)}, "params.axis"),
        ({"steps": (STEP | {"params": {"axis": (((0,),),)}},)}, "params.axis"),
        ({"steps": (STEP,) * 1025}, "steps"),
        ({"steps": (STEP | {"specs": ("nope",)},)}, "specs"),
    ],
)
def test_a_wrong_field_is_named(changed: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidRequest, match=place):
        validate(Program, PROGRAM | changed)


@pytest.mark.parametrize(
    ("mapping", "place"),
    [
        ({"in_axes": (AXES | {"x": 1},)}, "in_axes.0.x"),
        ({"in_axes": ({"names": ((True, "i"),)},)}, "names.0.0"),
        ({"in_axes": ({"names": ((0, 5),)},)}, "names.0.1"),
        ({"axis_sizes": (("i", True),)}, "axis_sizes.0.1"),
        ({"axis_sizes": (("i", 2.0),)}, "axis_sizes.0.1"),
        ({"axis_sizes": (("", 2),)}, "axis_sizes.0.0"),
        ({"axis_resources": (("i", "x"),)}, "axis_resources.0.1"),
        ({"axis_resources": (("i", (5,)),)}, "axis_resources.0.1.0"),
        ({"axis_size": ()}, "axis_size"),
    ],
)
def test_a_wrong_field_of_a_mapping_is_named(mapping: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidRequest, match=place):
        validate(Mapping, mapping)


def nested(depth: int) -> Program:
    program = Program.of_kernel("identity", operands=1)
    for _ in range(depth - 1):
        program = Program(inputs=1, steps=(Step(program=program, operands=(0,)),), outputs=(1,))
    return program


def test_programs_nest_up_to_the_limit() -> None:
    check_extent(nested(LIMITS.program_depth))
    with pytest.raises(ProgramError, match=f"deeper than {LIMITS.program_depth}"):
        check_extent(nested(LIMITS.program_depth + 1))


def test_steps_of_nested_programs_count_too() -> None:
    inner = Program(inputs=1, steps=(Step(kernel="exp", operands=(0,)),) * 600, outputs=(1,))
    outer = Program(inputs=1, steps=(Step(program=inner, operands=(0,)),) * 2, outputs=(1,))
    with pytest.raises(ProgramError, match=f"more than {LIMITS.steps} steps"):
        check_extent(outer)


def test_constants_and_axes_are_hashable_so_that_they_can_stand_in_cache_keys() -> None:
    assert hash(Constant.of(math.nan)) == hash(Constant.of(math.nan))
    assert hash(Axes(names=((0, "i"),))) == hash(Axes(names=((0, "i"),)))
