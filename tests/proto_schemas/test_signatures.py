"""Signatures: operands are counted, parameters are bound, and mistakes are answered with the signature."""

from __future__ import annotations

from typing import Any

import pytest

from shardserve_proto.abstract import Aval, Scope
from shardserve_proto.dtypes import DTYPES
from shardserve_proto.errors import ProgramError
from shardserve_proto.messages import ParameterInfo
from shardserve_proto.signatures import BUILTIN

X = Aval((2, 3), DTYPES["float32"])

#: The kernels that the first version promises.
PROMISED = "dot vecdot matmul einsum normalize identity astype where exp log sqrt tanh abs maximum minimum".split()
PROMISED += "add subtract multiply divide power negative equal not_equal less less_equal greater greater_equal".split()
PROMISED += "sum max min mean reshape transpose broadcast_to psum pmean pmax pmin axis_index axis_size".split()


def test_every_promised_kernel_has_a_signature_under_its_name() -> None:
    assert set(PROMISED) <= set(BUILTIN)
    assert all(signature.name == name for name, signature in BUILTIN.items())
    assert all(name.isascii() and name.isidentifier() for name in BUILTIN)


@pytest.mark.parametrize(
    ("kernel", "written"),
    [
        ("dot", "dot(x, y, *, dtype=None)"),
        ("einsum", "einsum(*operands, subscripts, dtype=None)"),
        ("normalize", "normalize(x, *, norm, axis=None)"),
        ("exp", "exp(x)"),
        ("where", "where(condition, x, y)"),
        ("sum", "sum(x, *, axis=None, dtype=None, keepdims=False)"),
        ("psum", "psum(x, *, axis_name)"),
    ],
)
def test_a_signature_prints_as_python(kernel: str, written: str) -> None:
    assert str(BUILTIN[kernel]) == written


@pytest.mark.parametrize(
    ("kernel", "count", "text"),
    [
        ("dot", 1, r"takes 2 arrays \(dot\(x, y, \*, dtype=None\)\), 1 were given"),
        ("dot", 3, "takes 2 arrays"),
        ("exp", 0, "takes 1 arrays"),
        ("axis_index", 1, "takes 0 arrays"),
        ("einsum", 0, "takes at least 1 arrays"),
    ],
)
def test_a_wrong_number_of_operands_is_answered_with_the_signature(kernel: str, count: int, text: str) -> None:
    with pytest.raises(ProgramError, match=text):
        BUILTIN[kernel].evaluate((X,) * count, {}, Scope())


@pytest.mark.parametrize(
    ("kernel", "params", "text"),
    [
        ("sum", {"axes": 0}, r"unknown parameter 'axes'; did you mean 'axis'\? \(signature: sum"),
        ("dot", {"out": 1}, "unknown parameter 'out'"),
        ("exp", {"where": True}, r"unknown parameter 'where' \(signature: exp\(x\)\)"),
        ("reshape", {}, "parameter 'shape' is required"),
        ("psum", {}, "parameter 'axis_name' is required"),
        ("reshape", {"shape": True}, "'shape' is an integer, or a list of them, not True"),
        ("reshape", {"shape": (2, 1.5)}, "'shape' is an integer"),
        ("reshape", {"shape": None}, "'shape' is an integer"),
        ("sum", {"keepdims": 1}, "'keepdims' is true or false, not 1"),
        ("sum", {"axis": True}, "'axis' is a dimension"),
        ("sum", {"axis": 1.0}, "'axis' is a dimension"),
        ("sum", {"axis": (0, None)}, "'axis' is a dimension"),
        ("sum", {"dtype": 5}, "'dtype' is the name of a dtype"),
        ("psum", {"axis_name": 0}, "'axis_name' is an axis name"),
        ("psum", {"axis_name": None}, "'axis_name' is an axis name"),
        ("transpose", {"axes": 0}, "'axes' is a list of dimensions"),
        ("transpose", {"axes": (True, False)}, "'axes' is a list of dimensions"),
    ],
)
def test_a_wrong_parameter_is_named(kernel: str, params: dict[str, Any], text: str) -> None:
    with pytest.raises(ProgramError, match=text):
        BUILTIN[kernel].evaluate((X,) * len(BUILTIN[kernel].operands), params, Scope())


@pytest.mark.parametrize("kernel", BUILTIN)
def test_parameters_describe_themselves(kernel: str) -> None:
    for parameter in BUILTIN[kernel].parameters:
        info = parameter.info()
        assert isinstance(info, ParameterInfo)
        required = {"subscripts", "norm", "shape", "axis_name", "starts", "stops", "steps"}
        assert info.required == (parameter.name in required or kernel == "astype")


def test_defaults_are_filled_in_and_given_values_kept() -> None:
    assert BUILTIN["sum"].bind({"axis": (0, "i")}) == {"axis": (0, "i"), "dtype": None, "keepdims": False}


@pytest.mark.parametrize("kernel", BUILTIN)
def test_an_answer_never_echoes_a_whole_huge_parameter_on_the_wire(kernel: str) -> None:
    with pytest.raises(ProgramError) as caught:
        BUILTIN[kernel].evaluate((X,) * len(BUILTIN[kernel].operands), {"x" * 100_000: 1}, Scope())
    assert len(caught.value.to_wire()["error"]["message"]) <= 2000
