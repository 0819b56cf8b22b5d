"""Whatever program arrives, the engine gives a value or a named error, never a failure that it did not foresee."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardserve_proto.dtypes import DTYPES
from shardserve_proto.errors import InternalError, ShardserveError
from shardserve_proto.programs import Constant, Mapping, Program, Step
from shardserve_proto.signatures import BUILTIN
from shardserve_proto.specs import Axes
from shardserve_server.engine.engine import Engine
from tests.calls import run

SCALARS = st.one_of(
    st.sampled_from(
        [0, 1, -1, True, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 0.0, -0.0, 1e308, float("nan"), float("inf")]
    ),
    st.sampled_from([1j, complex("nan"), 300, -129, 65536, 1e-320]),
)
NAMES = st.sampled_from(["i", "j", "devices", "x"])
AXES = st.one_of(st.none(), st.integers(-3, 3), NAMES, st.tuples(st.integers(-2, 2), NAMES), st.just(()))
PARAMS: dict[str, st.SearchStrategy[Any]] = {
    "dtype": st.sampled_from(
        [None, "int8", "float32", "bfloat16", "bool", "int4", "complex64", "float8_e5m2", "O", ""]
    ),
    "axis": AXES,
    "axes": st.sampled_from([None, (0, 1), (1, 0), (-1, 0), (0, 0), (5,), ()]),
    "axis_name": st.one_of(NAMES, st.tuples(NAMES, NAMES), st.just(())),
    "keepdims": st.booleans(),
    "shape": st.sampled_from([(2, 3), (-1,), (0,), (), (6, -1), (-1, -1), (-2,), 6, (2**40, 2**40), (1,) * 40]),
    "starts": st.sampled_from([(0,), (0, 0), (1, 2), (-1,), (5, 0), (), 3, (2**62,)]),
    "stops": st.sampled_from([(1,), (2, 3), (0, 0), (-1, -1), (2**63 - 1,), (), 2]),
    "steps": st.sampled_from([(1,), (1, 1), (-1, 2), (0,), (-(2**62), 1), (), 1]),
    "norm": st.sampled_from(["sum", "l2", "L2", ""]),
    "subscripts": st.sampled_from(["ij,jk->ik", "i,i", "ii", "...,...", "->", "", "i->ij", "...i->i...", "a,b,c"]),
}
USED = ["bool", "int8", "uint64", "int64", "float16", "float32", "complex64", "bfloat16", "float8_e4m3fn", "int4"]


@st.composite
def steps(draw: st.DrawFn, values: int) -> Step:
    signature = BUILTIN[draw(st.sampled_from(sorted(BUILTIN)))]
    operand = st.one_of(st.integers(0, max(values - 1, 0)), SCALARS.map(Constant.of))
    count = len(signature.operands) + (draw(st.integers(0, 1)) if signature.is_variadic else 0)
    specs: Any = draw(st.sampled_from([None, None, None, ("auto",), (("x",),), (None,), (("devices", None),)]))
    chosen = [p for p in signature.parameters if p.name == "subscripts" or draw(st.booleans())]
    return Step(
        kernel=signature.name,
        operands=tuple(draw(operand) for _ in range(count)),
        params={parameter.name: draw(PARAMS[parameter.name]) for parameter in chosen},
        specs=specs,
    )


@st.composite
def axes(draw: st.DrawFn) -> Axes:
    names = draw(st.lists(st.tuples(st.integers(-1, 2), NAMES), max_size=2))
    return Axes(names=tuple(names), rank=draw(st.sampled_from([None, None, 2])))


@st.composite
def hostile(draw: st.DrawFn) -> tuple[Program, list[Any], dict[str, Any]]:
    shapes = st.sampled_from([(), (3,), (2, 3), (3, 2), (0, 3), (1, 1)])
    count = draw(st.integers(1, 2))
    arguments: list[Any] = []
    for _ in range(count):
        if draw(st.booleans()):
            arguments.append(np.ones(draw(shapes)).astype(DTYPES[draw(st.sampled_from(USED))]))
        else:
            arguments.append(draw(SCALARS))
    body = [draw(steps(count + index)) for index in range(draw(st.integers(1, 3)))]
    program = Program(inputs=count, steps=tuple(body), outputs=(count + len(body) - 1,))
    fields: dict[str, Any] = {}
    if draw(st.booleans()):
        fields["mapping"] = Mapping(
            in_axes=tuple(draw(axes()) for _ in range(count)),
            out_axes=(draw(axes()),),
            axis_sizes=draw(st.sampled_from([(), (("i", 3),), (("j", 0),), (("j", -1),)])),
            axis_resources=draw(st.sampled_from([(), (("i", ("x",)),), (("i", ("devices",)), ("j", ("devices",)))])),
        )
    if draw(st.booleans()):
        spec = st.sampled_from(["auto", None, ("devices",), (None, "devices"), ("x", "x"), (("x", "y"),), ("nope",)])
        fields["in_shardings"] = tuple(draw(spec) for _ in range(count))
        fields["out_shardings"] = (draw(spec),)
    fields["mesh"] = draw(st.sampled_from([None, "grid", (("x", 4), ("y", -1)), (("x", 3),), (("x", 9),), "nope"]))
    fields["precision"] = draw(st.sampled_from(["highest", "high", "default"]))
    return program, arguments, fields


@given(case=hostile())
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.timeout(300)
def test_any_program_gives_a_value_or_a_named_error(engine: Engine, case: Any) -> None:
    program, arguments, fields = case
    error = _outcome(engine, program, arguments, fields)
    if error is not None:
        assert not isinstance(error, InternalError)
        assert "0x" not in error.message, "no object's address"
        assert "jax" not in error.message.lower()


def _outcome(engine: Engine, program: Program, arguments: list[Any], fields: Any) -> ShardserveError | None:
    try:
        run(engine, program, *arguments, **fields)
    except ShardserveError as error:
        return error
    return None
