"""Where XLA, left to itself, gives another number than NumPy: powers of integers, bools times floats, halves."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from shardserve_proto.dtypes import DTYPES
from shardserve_proto.programs import Constant, Program, Step
from shardserve_server.engine.engine import Engine
from tests.calls import Array, mapping, run

UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]
INEXACT = ["float16", "float32", "float64", "complex64", "complex128"]
SPECIAL = np.array([np.inf, -np.inf, np.nan, 2.0, -3.0, -0.0])


def assert_bits(ours: Array, reference: Any) -> None:
    """The same dtype, shape, values, NaNs and signs of zero."""
    reference = np.asarray(reference)
    assert (ours.dtype, ours.shape) == (reference.dtype, reference.shape)
    for part in ("real", "imag") if ours.dtype.kind == "c" else ("real",):
        found, wanted = getattr(ours, part), getattr(reference, part)
        np.testing.assert_array_equal(found, wanted)
        is_number = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(found)[is_number], np.signbit(wanted)[is_number])


@pytest.mark.parametrize("base", ["bool", "int8", "int16", "int32", "int64", *UNSIGNED])
@pytest.mark.parametrize("power", ["bool", *UNSIGNED])
def test_an_integer_power_uses_every_bit_of_the_exponent(engine: Engine, base: str, power: str) -> None:
    if np.result_type(base, power).kind == "f":
        pytest.skip("NumPy answers in float64")
    exponents = np.array([0, 1, 2, 31, 63, 64, 65, 100, 200, 255], np.uint64)
    if power != "bool":
        top = np.iinfo(power).max
        exponents = np.concatenate([exponents, np.array([top, top - 1, top // 3 * 2], np.uint64)])
    bases = np.array([0, 1, 2, 3, 5, 7, -1, -2, -3], np.int64)
    if base == "bool" or base.startswith("u"):
        bases = np.abs(bases)
    x, y = bases.astype(base)[:, None], exponents.astype(power)[None, :]
    assert_bits(run(engine, "power", x, y).value, np.power(x, y))


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 63, 64, 65, 100, 127, 200, 2**31 + 1, 2**62 + 3, 2**63 - 1])
def test_an_integer_power_by_a_python_scalar_uses_every_bit(engine: Engine, exponent: int) -> None:
    x = np.array([0, 1, -1, 2, -3, 5, 3037000500])
    assert_bits(run(engine, "power", x, exponent).value, np.power(x, exponent))
    squared = Program(
        inputs=1,
        steps=(
            Step(kernel="add", operands=(0, 0)),
            Step(kernel="power", operands=(1, Constant.of(exponent))),
        ),
        outputs=(2,),
    )
    assert_bits(run(engine, squared, x).value, np.power(x + x, exponent))


def test_an_integer_power_keeps_its_named_axes(engine: Engine) -> None:
    x, y = np.arange(1, 6), np.arange(60, 70, dtype=np.uint32)
    named = mapping([["i"], ["j"]], [["i", "j"]], {"i": "devices"})
    assert_bits(run(engine, "power", x, y, mapping=named).value, np.power(x[:, None], y[None, :]))
    assert_bits(run(engine, "power", x, 70, mapping=mapping([["i"], []], [["i"]])).value, np.power(x, 70))


@pytest.mark.parametrize("dtype", INEXACT)
def test_a_bool_times_a_float_keeps_nan_infinity_and_the_sign_of_zero(engine: Engine, dtype: str) -> None:
    x = SPECIAL.astype(dtype)
    for mask in (np.zeros(6, bool), np.ones(6, bool), np.arange(6) % 2 == 0):
        with np.errstate(all="ignore"):
            assert_bits(run(engine, "multiply", mask, x).value, np.multiply(mask, x))
            assert_bits(run(engine, "multiply", x, mask).value, np.multiply(x, mask))


def test_a_comparison_times_a_float_keeps_nan_and_infinity(engine: Engine) -> None:
    x = np.array([-np.inf, np.nan, 1.0, -2.0, np.inf], np.float32)
    steps = (Step(kernel="greater", operands=(0, Constant.of(0))), Step(kernel="multiply", operands=(1, 0)))
    with np.errstate(all="ignore"):
        assert_bits(run(engine, Program(inputs=1, steps=steps, outputs=(2,)), x).value, (x > 0) * x)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
@pytest.mark.parametrize(
    ("kernel", "params"),
    [
        ("dot", {}), ("vecdot", {}), ("matmul", {}), ("einsum", {"subscripts": "ij,jk->ik"}),
        ("einsum", {"subscripts": "ij,ij->ij"}), ("einsum", {"subscripts": "ij,ij->i"}),
        ("einsum", {"subscripts": "ij,jk->"}),
    ],
)  # fmt: skip
def test_a_product_of_bools_and_floats_keeps_nan(engine: Engine, dtype: str, kernel: str, params: Any) -> None:
    mask = np.array([[False, True], [False, False]])
    x = np.array([[np.nan, 1.0], [np.inf, 2.0]]).astype(getattr(ml_dtypes, dtype, dtype))
    ours = run(engine, kernel, mask, x, params=params).value.astype(np.float64)
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        subscripts = params.get("subscripts")
        reference = np.einsum(subscripts, mask, wide) if subscripts else getattr(np, kernel)(mask, wide)
    np.testing.assert_array_equal(ours, reference)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "bool", "uint8", "complex64"])
@pytest.mark.parametrize(
    ("subscripts", "shapes"),
    [
        ("ij->", [(17, 3)]), ("ij->j", [(17, 3)]), ("ii->", [(5, 5)]), ("ij,kj->", [(17, 3), (8, 3)]),
        ("ij,kl->", [(17, 3), (8, 3)]), ("ij,jk->k", [(17, 3), (3, 8)]), ("ij,jk,kl->", [(7, 3), (3, 4), (4, 2)]),
        ("ij,jk,kl->il", [(7, 3), (3, 4), (4, 2)]), ("ij,jk->ik", [(17, 3), (3, 8)]), ("i,ij->j", [(17,), (17, 3)]),
        ("...j->...", [(5, 2, 3)]), ("ij,ij->", [(17, 3), (17, 3)]), ("ii,ij->j", [(5, 5), (5, 3)]),
        (",ij->", [(), (3, 4)]), ("ii->i", [(5, 5)]), ("iij->j", [(5, 5, 2)]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("devices", [1, 7])
def test_einsum_sums_any_label_out_in_any_dtype(
    engine: Engine, dtype: str, subscripts: str, shapes: Any, devices: int
) -> None:
    rng = np.random.default_rng(3)
    kind = getattr(ml_dtypes, dtype, dtype)
    operands = [rng.integers(0, 3, shape).astype(kind) for shape in shapes]
    placed: dict[str, Any] = {
        "mesh": (("x", devices),),
        "in_shardings": (*(("x",) if shape else () for shape in shapes),),
    }
    ours = run(engine, "einsum", *operands, params={"subscripts": subscripts}, **placed).value
    wide = operands if dtype in ("bool", "uint8") else [operand.astype(np.complex128) for operand in operands]
    assert_bits(ours, np.asarray(np.einsum(subscripts, *wide)).real.astype(kind))


def test_einsum_of_halves_totals_in_float32(engine: Engine) -> None:
    """2048 + 1 is 2048 in float16, so a total of ones in it stops there."""
    x = np.ones((4096, 2), np.float16)
    assert run(engine, "einsum", x, params={"subscripts": "ij->j"}).value.tolist() == [4096.0, 4096.0]
    assert run(engine, "einsum", x, x[:2], params={"subscripts": "ij,kj->k"}).value.tolist() == [8192.0, 8192.0]


def test_a_zero_that_is_added_counts(engine: Engine) -> None:
    """-0.0 + 0.0 is 0.0."""
    zeros = np.array([-0.0, 0.0])
    for kernel, constant in (("add", 0.0), ("add", -0.0), ("subtract", 0.0), ("subtract", -0.0)):
        for operands in ((0, Constant.of(constant)), (Constant.of(constant), 0)):
            program = Program(inputs=1, steps=(Step(kernel=kernel, operands=operands),), outputs=(1,))
            pair = [zeros if operand == 0 else constant for operand in operands]
            assert_bits(run(engine, program, zeros).value, getattr(np, kernel)(*pair))


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32", "complex64", "bfloat16"])
@pytest.mark.parametrize("precision", ["highest", "default"])
@pytest.mark.parametrize("is_named", [False, True])
def test_normalize_divides_by_a_length_whose_square_leaves_the_range(
    engine: Engine, dtype: str, precision: Any, is_named: bool
) -> None:
    kind = DTYPES[dtype]
    huge, small = (1e300, 1e-280) if kind.itemsize >= 8 and dtype != "complex64" else (1e37, 1e-36)
    mixed = [[3.0, 4.0], [huge, huge], [small, -small], [huge, small], [0.0, 1.0], [-huge, huge / 3], [1e-15, 1e15]]
    x = np.array(mixed).astype(kind)
    placed: dict[str, Any] = {"mapping": mapping([["row", ...]], [["row", ...]])} if is_named else {}
    ours = run(engine, "normalize", x, params={"norm": "l2", "axis": -1}, precision=precision, **placed).value
    exact = x.astype(np.clongdouble if kind.kind == "c" else np.longdouble)
    reference = exact / np.sqrt((abs(exact) ** 2).sum(-1, keepdims=True))
    bound = {"float64": 1e-13, "complex128": 1e-13, "bfloat16": 8e-3}.get(dtype, 1e-6)
    wide = np.complex128 if kind.kind == "c" else np.float64
    np.testing.assert_allclose(ours.astype(wide), reference.astype(wide), rtol=bound, atol=1e-37)


def test_normalize_over_a_split_axis_keeps_the_squares_in_range(engine: Engine) -> None:
    x = np.concatenate([np.full(50, 1e200), np.full(51, -1e199)])
    spec: dict[str, Any] = {"in_shardings": (("devices",),)}
    ours = run(engine, "normalize", x, params={"norm": "l2"}, **spec).value
    np.testing.assert_allclose(ours, (x / 1e200) / np.linalg.norm(x / 1e200), rtol=1e-13)
    named = mapping([["i"]], [["i"]], {"i": "devices"})
    assert_bits(run(engine, "normalize", x, params={"norm": "l2"}, mapping=named).value, ours)


def test_normalize_of_zeros_infinities_and_nothing(engine: Engine) -> None:
    for values in ([0.0, 0.0], [np.inf, 1.0], [np.nan, 1.0], []):
        x = np.array(values)
        with np.errstate(all="ignore"):
            assert_bits(run(engine, "normalize", x, params={"norm": "l2"}).value, x / np.sqrt((x * x).sum()))


SIGNED = [0.0, -0.0, 1.0, -4.0, np.inf, -np.inf, np.nan]


def test_the_square_root_of_a_complex_number_has_the_sign_of_its_imaginary_part(engine: Engine) -> None:
    x = np.array([complex(a, b) for a in SIGNED for b in SIGNED])
    with np.errstate(all="ignore"):
        reference = np.sqrt(x)
    ours = run(engine, "sqrt", x).value
    for part in ("real", "imag"):
        found, wanted = getattr(ours, part), getattr(reference, part)
        np.testing.assert_allclose(found, wanted, rtol=1e-15, atol=0)
        is_signed = ~np.isnan(reference.real) & ~np.isnan(reference.imag)
        np.testing.assert_array_equal(np.signbit(found)[is_signed], np.signbit(wanted)[is_signed])


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_a_complex_quotient_is_numpys_down_to_its_nans(engine: Engine, dtype: str) -> None:
    values = [*SIGNED, 1e15, -3e-8, 0.1]
    x = np.array([complex(a, b) for a in values for b in values]).astype(dtype)
    y, z = x[:, None], x[None, :]
    with np.errstate(all="ignore"):
        reference = y / z
    ours = run(engine, "divide", y, z).value
    for part in ("real", "imag"):
        found, wanted = getattr(ours, part), getattr(reference, part)
        np.testing.assert_allclose(found, wanted, rtol=1e-5 if dtype == "complex64" else 1e-14, atol=1e-37)


def test_a_complex_mean_is_numpys_down_to_its_nans(engine: Engine) -> None:
    x = np.array([[complex(-np.inf, np.inf), 1.0], [2.0 + 1j, 3.0 - 2j]])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run(engine, "mean", x, params={"axis": 1}).value, x.mean(1))
