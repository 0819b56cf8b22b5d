"""A program is its steps: each one rounds as NumPy does, and no rewrite across steps changes a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardserve_proto.dtypes import DTYPES
from shardserve_proto.programs import Constant, Program, Step
from shardserve_server.engine.engine import Engine
from tests.calls import Array, run

Operands = tuple[int | float, ...]
Chain = Sequence[tuple[str, Operands]]

#: These round once, correctly, everywhere; the other kernels may be a few units in the last place away from NumPy.
EXACT_UNARY = ("sqrt", "negative", "abs")
EXACT_BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum")
INEXACT_UNARY = ("exp", "log", "tanh")
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.1, 3.0, np.inf, -np.inf, np.nan, 710.0, -750.0]
#: dtype -> large and small numbers whose products and quotients leave its range.
EXTREMES = {
    "float64": [1e16, 1e154, 1e200, -1e300, 1e-154, 1e-200, -1e-300],
    "float32": [1e8, 1e19, 1e25, -1e38, 1e-19, 1e-25, -1e-37],
    "float16": [2e3, 300.0, 6e3, -6e4, 4e-3, 2e-4, -1e-4],
    "bfloat16": [300.0, 1e19, 1e25, -1e38, 1e-19, 1e-25, -1e-37],
}


def program(chain: Chain, inputs: int) -> Program:
    """Operand k is input k, then the result of step k - inputs; a float stands in the program as a constant."""
    steps = tuple(
        Step(kernel=kernel, operands=tuple(op if isinstance(op, int) else Constant.of(op) for op in operands))
        for kernel, operands in chain
    )
    return Program(inputs=inputs, steps=steps, outputs=(inputs + len(steps) - 1,))


def flush(array: Array) -> Array:
    """Subnormal numbers count as zero, as the documentation says; those of float16 are normal in float32."""
    if array.dtype.name == "float16":
        return array
    wide = array.astype(np.float64)
    smallest = 2.0**-1022 if array.dtype.name == "float64" else 2.0**-126
    return np.where(np.abs(wide) < smallest, np.copysign(0.0, wide), wide).astype(array.dtype)


def by_numpy(chain: Chain, inputs: Sequence[Array]) -> Array:
    values = list(inputs)
    for kernel, operands in chain:
        arguments = [values[op] if isinstance(op, int) else values[0].dtype.type(op) for op in operands]
        with np.errstate(all="ignore"):
            values.append(flush(np.asarray(getattr(np, kernel)(*arguments))))
    return values[-1]


def one_by_one(engine: Engine, chain: Chain, inputs: Sequence[Array]) -> Array:
    """Each step as a call of its own, so that the compiler never sees two of them."""
    values = list(inputs)
    for kernel, operands in chain:
        arguments = [values[op] if isinstance(op, int) else values[0].dtype.type(op) for op in operands]
        values.append(run(engine, kernel, *arguments).value)
    return values[-1]


def assert_equal(ours: Array, reference: Array, *, units: float = 0.0) -> None:
    """The same numbers, NaNs and signs of zero; a number near the smallest normal one may be a zero."""
    assert (ours.dtype, ours.shape) == (reference.dtype, reference.shape)
    x, y = flush(ours).astype(np.float64), flush(reference).astype(np.float64)
    bound = units * {"float64": 2.3e-16, "float32": 1.2e-7}.get(ours.dtype.name, 0.0)
    np.testing.assert_allclose(x, y, rtol=bound, atol=0)
    is_number = ~np.isnan(y)
    np.testing.assert_array_equal(np.signbit(x)[is_number], np.signbit(y)[is_number])


@dataclass(frozen=True)
class Case:
    chain: Chain
    inputs: tuple[Array, ...]


@st.composite
def chains(draw: st.DrawFn, dtype: str, kernels: tuple[str, ...]) -> Case:
    """Two arrays and a scalar full of extremes; each step prefers what the step before it gave."""
    numbers = st.sampled_from([*SPECIAL, *EXTREMES[dtype]])
    kind = DTYPES[dtype]
    inputs = tuple(
        np.array(draw(st.lists(numbers, min_size=size, max_size=size))).reshape(shape).astype(kind)
        for size, shape in ((24, (24,)), (24, (24,)), (1, ()))
    )
    chain: list[tuple[str, Operands]] = []
    values = [0, 1, 2]
    for _ in range(draw(st.integers(2, 7))):
        kernel = draw(st.sampled_from(kernels))
        operands: Operands = (draw(st.sampled_from(values[-2:])) if chain else 0,)
        if kernel not in (*EXACT_UNARY, *INEXACT_UNARY):
            other = draw(st.one_of(numbers, st.sampled_from(values)))
            operands = draw(st.sampled_from([(*operands, other), (other, *operands)]))
        chain.append((kernel, operands))
        if kernel in ("maximum", "minimum"):  # of 0.0 and -0.0 NumPy gives either; the sum with 0.0 is 0.0
            chain.append(("add", (len(inputs) + len(chain) - 1, 0.0)))
        values.append(len(inputs) + len(chain) - 1)
    return Case(chain, inputs)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "complex64", "complex128"])
def test_the_exponential_of_a_nan_that_the_compiler_knows_is_a_nan(engine: Engine, dtype: str) -> None:
    inputs = (np.zeros(24, DTYPES[dtype]),)
    result = run(engine, program([("add", (0, np.nan)), ("exp", (1,))], 1), *inputs).value
    assert np.isnan(result.real).all()


FUZZ = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@given(data=st.data())
@FUZZ
@pytest.mark.timeout(300)
def test_a_chain_of_exact_steps_gives_numpys_bits(engine: Engine, dtype: str, data: st.DataObject) -> None:
    case = data.draw(chains(dtype, (*EXACT_UNARY, *EXACT_BINARY)))
    ours = run(engine, program(case.chain, 3), *case.inputs).value
    assert_equal(ours, by_numpy(case.chain, case.inputs))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@given(data=st.data())
@FUZZ
@pytest.mark.timeout(300)
def test_a_chain_gives_the_bits_of_its_steps_one_by_one(engine: Engine, dtype: str, data: st.DataObject) -> None:
    case = data.draw(chains(dtype, (*EXACT_UNARY, *EXACT_BINARY, *INEXACT_UNARY)))
    ours = run(engine, program(case.chain, 3), *case.inputs).value
    assert_equal(ours, one_by_one(engine, case.chain, case.inputs))


A, B, C = np.array([1e300, 1.0, 1e308, -2.5]), np.array([1e200, 3.0, 1e308, 0.1]), np.array([1e200, 1e-3, 0.1, 7.0])
KNOWN: dict[str, Chain] = {
    "x * 1e200 * 1e200": [("multiply", (0, 1e200)), ("multiply", (3, 1e200))],
    "x * 1e200 * 1e-200": [("multiply", (0, 1e200)), ("multiply", (3, 1e-200))],
    "x + 1e16 - 1e16": [("add", (0, 1e16)), ("subtract", (3, 1e16))],
    "x + 1 - x": [("add", (0, 1.0)), ("subtract", (3, 0))],
    "a / b / c": [("divide", (0, 1)), ("divide", (3, 2))],
    "1e300 / x / x": [("divide", (1e300, 0)), ("divide", (3, 0))],
    "log(exp(x))": [("exp", (0,)), ("log", (3,))],
    "exp(log(x))": [("log", (0,)), ("exp", (3,))],
    "sqrt(x * x)": [("multiply", (0, 0)), ("sqrt", (3,))],
    "sqrt(x) * sqrt(x)": [("sqrt", (0,)), ("multiply", (3, 3))],
    "exp(a) * exp(b)": [("exp", (0,)), ("exp", (1,)), ("multiply", (3, 4))],
    "exp(a) / exp(b)": [("exp", (0,)), ("exp", (1,)), ("divide", (3, 4))],
    "a / exp(b)": [("exp", (1,)), ("divide", (0, 3))],
    "a * c + b * c": [("multiply", (0, 2)), ("multiply", (1, 2)), ("add", (3, 4))],
    "a / c + b / c": [("divide", (0, 2)), ("divide", (1, 2)), ("add", (3, 4))],
    "a * b + c": [("multiply", (0, 1)), ("add", (3, 2))],
    "a * b - c": [("multiply", (0, 1)), ("subtract", (3, 2))],
    "-(a - b)": [("subtract", (0, 1)), ("negative", (3,))],
    "x / 3": [("divide", (0, 3.0))],
    "(x ** 2) ** 0.5": [("power", (0, 2.0)), ("power", (3, 0.5))],
    "log(x ** 2)": [("power", (0, 2.0)), ("log", (3,))],
    "1 / sqrt(x)": [("sqrt", (0,)), ("divide", (1.0, 3))],
    "1 / x ** 400": [("power", (0, 400.0)), ("divide", (1.0, 3))],
}


@pytest.mark.parametrize("expression", KNOWN)
@pytest.mark.parametrize("is_spread", [False, True])
def test_xla_rewrites_no_expression_into_another_number(engine: Engine, expression: str, is_spread: bool) -> None:
    rng = np.random.default_rng(0)
    special = np.array([0.0, 1.0, 3.0, np.inf, -np.inf, np.nan, 1e300, -1e300, 1e-150, 1000.0, -1000.0, 700.0, -700.0])
    grid = np.meshgrid(special, special[::2], special[::3], indexing="ij")
    inputs = [
        np.concatenate([own, part.ravel(), rng.standard_normal(1001)])
        for own, part in zip((A, B, C), grid, strict=True)
    ]
    placed: dict[str, Any] = {"in_shardings": (("devices",),) * 3} if is_spread else {}
    ours = run(engine, program(KNOWN[expression], 3), *inputs, **placed).value
    units = 4.0 if any(kernel in (*INEXACT_UNARY, "power") for kernel, _ in KNOWN[expression]) else 0.0
    # exp and log of a number that is a unit off are that number's: log(exp(x)) has the error of exp(x) near 0.
    if expression in ("exp(log(x))", "log(exp(x))"):
        units = 4000.0
    assert_equal(ours, by_numpy(KNOWN[expression], inputs), units=units)
