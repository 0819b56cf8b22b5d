"""Python scalars as arguments adapt as in NumPy, and cost no compilation where no step can tell."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from shardserve_proto.dtypes import DTYPES
from shardserve_proto.errors import DTypeError
from shardserve_proto.programs import Constant, Program, Step
from shardserve_server.engine.engine import Engine
from tests.calls import run

AFFINE = Program(
    inputs=3,
    steps=(Step(kernel="multiply", operands=(0, 1)), Step(kernel="add", operands=(3, 2))),
    outputs=(4,),
)


@pytest.mark.parametrize("dtype", ["int8", "uint64", "float16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("scalar", [2, 2.5, 1j, True])
def test_a_scalar_argument_gives_numpys_dtype_and_value(engine: Engine, dtype: str, scalar: Any) -> None:
    x = np.arange(5).astype(dtype)
    found = run(engine, "multiply", x, scalar).value
    expected = x * scalar
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_bfloat16_stays_bfloat16_with_a_python_float(engine: Engine) -> None:
    """B62."""
    found = run(engine, "multiply", np.arange(4).astype(ml_dtypes.bfloat16), 2.0).value
    assert found.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(found.astype(float), [0, 2, 4, 6])


def test_scalars_that_meet_an_intermediate_are_arguments_too(engine: Engine) -> None:
    x = np.arange(5, dtype=np.float32)
    run(engine, AFFINE, x, 2.0, 1.0)
    before = engine.cache.compilations
    for scale, offset in ((3.0, 5.0), (0.5, -1.0)):
        found = run(engine, AFFINE, x, scale, offset).value
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, x * np.float32(scale) + np.float32(offset))
    assert engine.cache.compilations == before


def test_a_scalar_that_meets_two_dtypes_stays_weak(engine: Engine) -> None:
    """In float32 0.1 is not the 0.1 of float64: each step must round for itself."""
    program = Program(
        inputs=3,
        steps=(Step(kernel="less", operands=(0, 2)), Step(kernel="multiply", operands=(1, 2))),
        outputs=(3, 4),
    )
    x, y = np.array([0.1], np.float32), np.array([1.0])
    below, product = run(engine, program, x, y, 0.1).values
    assert below[0] == (x < 0.1)[0]
    assert product[0] == 0.1


def test_an_integer_that_does_not_fit_is_refused_as_in_numpy(engine: Engine) -> None:
    with pytest.raises(DTypeError, match="300 does not fit int8"):
        run(engine, "add", np.arange(3, dtype=np.int8), 300)


def test_scalars_alone_have_numpys_default_dtypes(engine: Engine) -> None:
    """B07: the documented dtypes of Python scalars."""
    for scalar, dtype in ((2.0, "float64"), (2, "int64"), (True, "bool"), (2j, "complex128"), (2**63, "uint64")):
        found = run(engine, "identity", scalar).value
        assert found.dtype.name == dtype
        assert found.shape == ()
        assert found == scalar


def test_a_float_too_large_for_its_dtype_is_infinite(engine: Engine) -> None:
    assert np.isinf(run(engine, "multiply", np.ones(1, np.float32), 1e300).value).all()


def test_constants_in_a_program_that_are_equal_in_python_stay_apart(engine: Engine) -> None:
    x = np.arange(3, dtype=np.int32)
    dtypes = []
    for two in (2, 2.0, 2 + 0j):
        step = Step(kernel="multiply", operands=(0, Constant.of(two)))
        dtypes.append(run(engine, Program(inputs=1, steps=(step,), outputs=(1,)), x).value.dtype.name)
    assert dtypes == ["int32", "float64", "complex128"]


@pytest.mark.parametrize("value", [300, -1, 2**64 - 1, 2.75, True])
@pytest.mark.parametrize("dtype", ["int8", "uint16", "float16", "bfloat16", "bool"])
def test_astype_of_a_constant_casts_as_numpy_does(engine: Engine, value: Any, dtype: str) -> None:
    step = Step(kernel="astype", operands=(Constant.of(value),), params={"dtype": dtype})
    found = run(engine, Program(inputs=0, steps=(step,), outputs=(0,))).value
    with np.errstate(all="ignore"):
        expected = np.asarray(value).astype(DTYPES[dtype])
    assert found.dtype == expected.dtype
    assert found == expected
