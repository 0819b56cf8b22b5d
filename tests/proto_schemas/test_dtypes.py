"""The closed table of dtypes, and the dtype of every result, held against NumPy itself."""

from __future__ import annotations

import itertools
import time
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from shardserve_proto.dtypes import (
    BFLOAT16,
    DTYPES,
    DType,
    WeakKind,
    accumulator,
    dtype_named,
    is_supported,
    loop_dtypes,
    mean_dtype,
    name_of,
    result_dtype,
    sum_dtype,
    to_wire_order,
)
from shardserve_proto.errors import DTypeError, InvalidRequest, ShardserveError
from shardserve_proto.messages import Segment, segment_bytes
from shardserve_proto.programs import validate
from shardserve_proto.rules import BINARY, UNARY

from .strategies import ML_DTYPES, NUMPY_DTYPES

WEAK: dict[WeakKind, Any] = {"bool": True, "int": 1, "float": 1.0, "complex": 1j}


def test_the_table_holds_what_the_design_lists() -> None:
    names = set(DTYPES)
    of_numpy = {"bool", "float16", "float32", "float64", "complex64", "complex128"}
    of_numpy |= {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
    others = {"int4", "uint4", "bfloat16", "float8_e4m3fn", "float8_e5m2"}
    assert of_numpy | others <= names
    assert all(name.startswith("float8_") for name in names - of_numpy - others)


@pytest.mark.parametrize("name", DTYPES)
def test_every_name_comes_back_from_its_dtype(name: str) -> None:
    assert name_of(dtype_named(name)) == name
    assert is_supported(DTYPES[name])


@pytest.mark.parametrize("order", ["<", ">", "="])
def test_byte_order_is_no_part_of_the_name(order: str) -> None:
    assert name_of(np.dtype(f"{order}f8")) == "float64"
    assert is_supported(np.dtype(f"{order}i2"))


UNLISTED = ["O", "V", "U", "S4", "f4,f4", "(1000,1000)f4", ">f4", "<f4", "f4", "float", "datetime64[D]"]
UNLISTED += ["timedelta64", "longdouble", "float128", "object", "void", "<V2", "", "FLOAT32", "float32 "]
UNLISTED += ["f4," * 20000, "x" * 10_000]


@pytest.mark.parametrize("name", UNLISTED, ids=lambda name: name[:20])
def test_a_name_that_is_not_in_the_table_is_refused_at_once(name: str) -> None:
    """Promise B4."""
    started = time.perf_counter()
    with pytest.raises(ShardserveError) as caught:
        segment_bytes(validate(Segment, {"dtype": name, "shape": (2,), "nbytes": 8}), 0)
    assert time.perf_counter() - started < 0.25  # it takes microseconds; a test only holds what must never happen
    assert isinstance(caught.value, DTypeError | InvalidRequest)
    assert len(str(caught.value)) < 600


def test_an_unknown_dtype_is_answered_with_the_nearest_name_and_the_list() -> None:
    with pytest.raises(DTypeError, match="unknown dtype 'flaot32'; did you mean 'float32'.*bfloat16"):
        dtype_named("flaot32")


@pytest.mark.parametrize(
    "dtype", [np.dtype(object), np.dtype("U3"), np.dtype("S3"), np.dtype("M8[D]"), np.dtype("m8[s]"),
              np.dtype([("a", "u4")]), np.dtype("V4"), np.dtype((np.void, 8))]
)  # fmt: skip
def test_dtypes_that_cannot_be_carried_are_not_supported(dtype: DType) -> None:
    assert not is_supported(dtype)


def test_longdouble_is_supported_only_where_it_is_float64() -> None:
    assert is_supported(np.dtype(np.longdouble)) == (np.dtype(np.longdouble) == np.dtype(np.float64))


# --- the result of mixing --------------------------------------------------------------------------------------------

operands: list[Any] = [*NUMPY_DTYPES, *WEAK]


def of_numpy(operand: Any) -> Any:
    return WEAK[operand] if isinstance(operand, str) else operand  # type: ignore[index]


def label(value: Any) -> str:
    return value if isinstance(value, str) else getattr(value, "name", None) or value.__name__


@pytest.mark.parametrize("left", operands, ids=label)
def test_results_of_two_numpy_operands_are_those_of_numpy(left: Any) -> None:
    for right in operands:
        assert result_dtype(left, right) == np.result_type(of_numpy(left), of_numpy(right))


def test_results_of_three_numpy_operands_are_those_of_numpy() -> None:
    for triple in itertools.product(operands, repeat=3):
        assert result_dtype(*triple) == np.result_type(*map(of_numpy, triple))


F32, F64, C64 = DTYPES["float32"], DTYPES["float64"], DTYPES["complex64"]


@pytest.mark.parametrize(
    ("mix", "expected"),
    [
        ((BFLOAT16,), BFLOAT16),
        ((BFLOAT16, BFLOAT16), BFLOAT16),
        ((BFLOAT16, "bool"), BFLOAT16),
        ((BFLOAT16, "int"), BFLOAT16),
        ((BFLOAT16, "float"), BFLOAT16),
        ((BFLOAT16, DTYPES["bool"]), BFLOAT16),
        ((BFLOAT16, DTYPES["int8"]), BFLOAT16),
        ((BFLOAT16, DTYPES["uint8"]), BFLOAT16),
        ((BFLOAT16, F32), F32),
        ((BFLOAT16, F64), F64),
        ((BFLOAT16, F32, F64), F64),
        ((BFLOAT16, F32, "float"), F32),
        ((BFLOAT16, F32, DTYPES["int8"]), F32),
    ],
)
def test_bfloat16_mixes_by_the_small_table(mix: tuple[Any, ...], expected: DType) -> None:
    for order in itertools.permutations(mix):
        assert result_dtype(*order) == expected


STRANGERS = [d for d in NUMPY_DTYPES if d.name not in {"bool", "int8", "uint8", "float32", "float64"}]


@pytest.mark.parametrize("other", ["complex", *STRANGERS], ids=label)
def test_other_mixes_with_bfloat16_ask_for_a_cast(other: Any) -> None:
    for mix in ((BFLOAT16, other), (other, BFLOAT16)):
        with pytest.raises(DTypeError, match=r"bfloat16.*cast"):
            result_dtype(*mix)


@pytest.mark.parametrize("dtype", [d for d in ML_DTYPES if d != BFLOAT16], ids=label)
def test_narrow_dtypes_mix_with_themselves_only(dtype: DType) -> None:
    assert result_dtype(dtype, dtype) == dtype
    for other in (F32, BFLOAT16, DTYPES["int8"], "float", "int"):
        with pytest.raises(DTypeError, match="cast"):
            result_dtype(dtype, other)


# --- ufunc loops -----------------------------------------------------------------------------------------------------


def numpy_says(ufunc: np.ufunc, *given: Any) -> DType | None:
    """The dtype of the ufunc's result over arrays of ones, or None where NumPy refuses."""
    try:
        with np.errstate(all="ignore"):
            result: Any = ufunc(*(WEAK[o] if isinstance(o, str) else np.ones(2, o) for o in given))  # type: ignore[index]
            dtype: DType = np.asarray(result).dtype
            return dtype
    except TypeError:
        return None


def ours(ufunc: np.ufunc, *given: Any) -> DType | None:
    try:
        return loop_dtypes(ufunc, *given)[-1]
    except DTypeError:
        return None


@pytest.mark.parametrize("name", UNARY)
def test_unary_results_are_those_of_numpy(name: str) -> None:
    for dtype in NUMPY_DTYPES:
        assert ours(UNARY[name], dtype) == numpy_says(UNARY[name], dtype), dtype


@pytest.mark.parametrize("name", BINARY)
def test_binary_results_are_those_of_numpy(name: str) -> None:
    for left, right in itertools.product(operands, repeat=2):
        if isinstance(left, str) and isinstance(right, str):
            continue  # two Python scalars are not an array
        assert ours(BINARY[name], left, right) == numpy_says(BINARY[name], left, right), (left, right)


@pytest.mark.parametrize("name", BINARY)
def test_operands_are_cast_to_the_loop_that_numpy_chooses(name: str) -> None:
    for left, right in itertools.product(NUMPY_DTYPES, repeat=2):
        if ours(BINARY[name], left, right) is None:
            continue
        loop = loop_dtypes(BINARY[name], left, right)
        cast = [np.ones(2, dtype).astype(to) for dtype, to in zip((left, right), loop, strict=False)]
        assert BINARY[name](*cast).dtype == loop[-1]


@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_bfloat16_computes_and_answers_in_itself(name: str) -> None:
    ufunc = (UNARY | BINARY)[name]
    loop = loop_dtypes(ufunc, *(BFLOAT16,) * ufunc.nin)
    compares = name in {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}
    assert loop == (BFLOAT16,) * ufunc.nin + (DTYPES["bool"] if compares else BFLOAT16,)


@pytest.mark.parametrize("partner", [F32, F64])
def test_bfloat16_beside_a_wider_float_computes_in_that(partner: DType) -> None:
    assert loop_dtypes(np.add, BFLOAT16, partner) == (partner,) * 3
    assert loop_dtypes(np.less, partner, BFLOAT16) == (partner, partner, DTYPES["bool"])


@pytest.mark.parametrize("dtype", [d for d in ML_DTYPES if d != BFLOAT16], ids=label)
def test_narrow_dtypes_do_not_compute(dtype: DType) -> None:
    with pytest.raises(DTypeError, match=f"add does not compute in {name_of(dtype)}; cast"):
        loop_dtypes(np.add, dtype, dtype)


def test_a_missing_loop_names_the_dtypes() -> None:
    with pytest.raises(DTypeError, match="subtract is not defined for bool, bool, as in NumPy"):
        loop_dtypes(np.subtract, DTYPES["bool"], DTYPES["bool"])


@pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=label)
def test_totals_and_means_have_the_dtypes_of_numpy(dtype: DType) -> None:
    array = np.ones(3, dtype)
    assert sum_dtype(dtype) == array.sum().dtype
    assert mean_dtype(dtype) == array.mean().dtype


def test_totals_of_half_floats_are_kept_in_float32() -> None:
    assert sum_dtype(BFLOAT16) == mean_dtype(BFLOAT16) == BFLOAT16
    assert accumulator(BFLOAT16) == accumulator(DTYPES["float16"]) == F32
    assert all(accumulator(dtype) == dtype for dtype in (F32, F64, C64, DTYPES["int8"]))


@pytest.mark.parametrize("total", [sum_dtype, mean_dtype])
def test_totals_of_narrow_dtypes_ask_for_a_cast(total: Any) -> None:
    with pytest.raises(DTypeError, match=r"does not compute in int4; cast"):
        total(DTYPES["int4"])


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(6.0).reshape(2, 3).T,
        np.arange(6.0)[::-1],
        np.arange(6.0).reshape(2, 3)[:, ::2],
        np.broadcast_to(np.float32(3), (2, 3)),
        np.array(0.7),
        np.array([1, 2], ">i4"),
        np.arange(4).astype(ml_dtypes.bfloat16)[::2],
        np.zeros((0, 3)),
    ],
)
def test_any_memory_layout_becomes_c_order_with_the_same_shape_and_values(array: np.ndarray[Any, DType]) -> None:
    sent = to_wire_order(array)
    assert sent.shape == array.shape
    assert sent.flags.c_contiguous
    assert sent.dtype.isnative
    np.testing.assert_array_equal(sent, array)


def test_an_array_that_is_ready_is_not_copied() -> None:
    array = np.arange(10.0)
    assert np.shares_memory(to_wire_order(array), array)
