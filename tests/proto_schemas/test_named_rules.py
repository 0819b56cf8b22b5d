"""Named axes in the rules of kernels: names ride along, meet by name, and leave through collectives."""

from __future__ import annotations

from typing import Any

import pytest

from shardserve_proto.abstract import Aval, Scope, constant_aval
from shardserve_proto.dtypes import DTYPES, DType
from shardserve_proto.errors import AxisError
from shardserve_proto.signatures import BUILTIN

F32, F64 = DTYPES["float32"], DTYPES["float64"]
ROWS = Scope(sizes={"i": 4, "j": 5})


def named(*names: str, shape: tuple[int, ...] = (3,), dtype: DType = F32) -> Aval:
    return Aval(shape, dtype, frozenset(names))


def result(kernel: str, *operands: Aval, **params: Any) -> Aval:
    (only,) = BUILTIN[kernel].evaluate(operands, params, ROWS)
    return only


@pytest.mark.parametrize("name", ["add", "where", "dot", "vecdot"])
def test_names_meet_by_name_and_never_by_position(name: str) -> None:
    operands = [named("i"), named("j")] if name != "where" else [named("i", dtype=DTYPES["bool"]), named("j"), named()]
    assert result(name, *operands).names == {"i", "j"}


@pytest.mark.parametrize("name", ["exp", "negative", "identity", "reshape", "transpose", "astype"])
def test_names_ride_along(name: str) -> None:
    given: dict[str, dict[str, Any]] = {"reshape": {"shape": (3, 1)}, "astype": {"dtype": "int32"}}
    params = given.get(name, {})
    assert result(name, named("i", "j"), **params).names == {"i", "j"}


@pytest.mark.parametrize("name", ["psum", "pmean", "pmax", "pmin"])
def test_a_collective_takes_its_names_away_and_leaves_the_shape(name: str) -> None:
    assert result(name, named("i", "j"), axis_name="i") == named("j")
    assert result(name, named("i", "j"), axis_name=("j", "i")) == named()
    assert result(name, named("j"), axis_name="i") == named("j")  # a value that does not vary along i


def test_psum_of_small_integers_widens_as_a_sum_does() -> None:
    assert result("psum", named("i", dtype=DTYPES["uint8"]), axis_name="i").dtype == DTYPES["uint64"]
    assert result("psum", named("i", dtype=DTYPES["bool"]), axis_name="i").dtype == DTYPES["int64"]
    assert result("pmean", named("i", dtype=DTYPES["int8"]), axis_name="i").dtype == F64
    assert result("psum", named("i", dtype=DTYPES["float16"]), axis_name="i").dtype == DTYPES["float16"]


def test_psum_of_a_constant_is_a_value_without_names() -> None:
    """Case B30."""
    assert result("psum", constant_aval(2), axis_name="i") == Aval((), DTYPES["int64"])


def test_reductions_take_dimensions_and_names_together() -> None:
    x = named("i", "j", shape=(2, 3))
    assert result("sum", x, axis=(0, "i")) == named("j", shape=(3,))
    assert result("mean", x, axis=("i", "j")) == named(shape=(2, 3))
    assert result("max", x, axis=None) == named("i", "j", shape=())
    assert result("sum", x, axis=(1, "j"), keepdims=True) == named("i", shape=(2, 1))


def test_axis_index_varies_along_its_names_and_axis_size_does_not() -> None:
    assert result("axis_index", axis_name=("i", "j")) == Aval((), DTYPES["int64"], frozenset({"i", "j"}))
    assert result("axis_size", axis_name="i") == Aval((), DTYPES["int64"])


@pytest.mark.parametrize("name", ["psum", "pmean", "pmax", "pmin", "axis_index", "axis_size"])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    """Case B35."""
    operands = () if name.startswith("axis") else (named("i"),)
    with pytest.raises(AxisError, match="unknown axis 'batch'; known axes: 'i', 'j'"):
        BUILTIN[name].evaluate(operands, {"axis_name": "batch"}, ROWS)
    with pytest.raises(AxisError, match="gives a name twice"):
        BUILTIN[name].evaluate(operands, {"axis_name": ("i", "i")}, ROWS)
