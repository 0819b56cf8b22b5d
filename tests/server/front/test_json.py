"""Calls in JSON: the forms that are read, exact arrays both ways, and texts that are refused."""

from __future__ import annotations

import json
import math
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shardserve_proto.dtypes import DTYPES, dtype_named
from shardserve_proto.errors import AxisError, DTypeError, InvalidRequest, ShapeError, ShardserveError
from shardserve_proto.messages import CallRequest, SegmentArgument
from shardserve_proto.programs import validate
from shardserve_proto.specs import Axes
from shardserve_server.front.json_arrays import read_argument, write_array
from shardserve_server.front.json_calls import read_call
from shardserve_server.front.json_text import parse_json

from .serving import Served


def read(value: Any) -> Any:
    return read_argument(value, "argument 0")


@pytest.mark.parametrize(
    "value",
    [
        [], [[]], [[], []], [1, 2], [1, 2.5], [True, False], [True, 2], [[1], [2]], [[[0]]], [2**63], [2**63 - 1],
        [-(2**63)], [1e300, -0.0], [[1.5, 2], [3, 4]],
    ],
)  # fmt: skip
def test_nested_lists_get_numpys_default_dtype(value: list[Any]) -> None:
    array, expected = read(value), np.array(value)
    assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(array, expected)


def test_numbers_that_are_not_finite_are_texts() -> None:
    np.testing.assert_array_equal(read([1, "NaN", "Infinity", "-Infinity"]), [1, math.nan, math.inf, -math.inf])
    assert read("Infinity") == math.inf


@pytest.mark.parametrize(
    ("dtype", "data", "expected"),
    [
        ("float32", [1, "NaN", 2.5], np.array([1, math.nan, 2.5], np.float32)),
        ("int8", [-128, 127], np.array([-128, 127], np.int8)),
        ("uint64", [2**64 - 1], np.array([2**64 - 1], np.uint64)),
        ("int4", [-8, 7], np.array([-8, 7], DTYPES["int4"])),
        ("bool", [True], np.array([True])),
        ("complex64", [[1, 2], [3, "Infinity"]], np.array([complex(1, 2), complex(3, math.inf)], np.complex64)),
        ("complex128", [1, 2], np.array(1 + 2j)),
        ("bfloat16", [1.5, "-Infinity"], np.array([1.5, -math.inf], DTYPES["bfloat16"])),
        ("float64", [], np.array([], np.float64)),
        ("complex64", [], np.array([], np.complex64)),
        ("float64", 3, np.array(3.0)),
        ("float32", [1e300], np.array([math.inf], np.float32)),
    ],
)
def test_an_array_may_name_its_dtype(dtype: str, data: Any, expected: Any) -> None:
    array = read({"dtype": dtype, "data": data})
    assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(array, expected)


def test_data_may_be_flat_when_the_shape_is_given() -> None:
    expected = np.arange(6).reshape(2, 3)
    for data in ([0, 1, 2, 3, 4, 5], [[0, 1, 2], [3, 4, 5]]):
        np.testing.assert_array_equal(read({"shape": [2, 3], "data": data}), expected)
    assert read({"shape": [0, 5], "data": []}).shape == (0, 5)
    assert read({"shape": [], "data": [7]}).shape == ()
    assert read({"dtype": "complex64", "shape": [2, 1], "data": [[1, 2], [3, 4]]}).shape == (2, 1)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ([1, [2]], ShapeError),
        ([[1], [2, 3]], ShapeError),
        ([[[1]], [2]], ShapeError),
        ({"shape": [2, 3], "data": [1]}, ShapeError),
        ({"shape": [2, 3], "data": [[1, 2], [3, 4], [5, 6]]}, ShapeError),
        ({"shape": [-1], "data": []}, ShapeError),
        ({"shape": [2**32, 2**32], "data": []}, ShapeError),
        ({"shape": [0, 2**70], "data": []}, ShapeError),
        ({"shape": [1] * 33, "data": [1]}, ShapeError),
        ({"dtype": "complex64", "data": [1, 2, 3]}, ShapeError),
        ({"dtype": "complex64", "data": 1}, ShapeError),
        ({"shape": "2", "data": [1, 2]}, InvalidRequest),
        ({"shape": [True], "data": [1]}, InvalidRequest),
        ({"shape": [1.0], "data": [1]}, InvalidRequest),
        ({"dtype": 1, "data": [1]}, InvalidRequest),
        ({"dtype": "float32"}, InvalidRequest),
        ({"data": [1], "dtyp": "int8"}, InvalidRequest),
        ([None], InvalidRequest),
        (None, InvalidRequest),
        (["1"], InvalidRequest),
        ("nan", InvalidRequest),
        ([{"data": [1]}], InvalidRequest),
        ([2**64], DTypeError),
        ([10**4000], DTypeError),
        (2**64, DTypeError),
        (-(10**400), DTypeError),
        ({"dtype": "O", "data": [1]}, DTypeError),
        ({"dtype": "(1000,1000)f4", "data": [1]}, DTypeError),
        ({"dtype": "x" * 10_000, "data": [1]}, DTypeError),
        ({"dtype": "int8", "data": [300]}, DTypeError),
        ({"dtype": "int8", "data": [1.5]}, DTypeError),
        ({"dtype": "int8", "data": ["NaN"]}, DTypeError),
        ({"dtype": "int8", "data": [True]}, DTypeError),
        ({"dtype": "uint8", "data": [-1]}, DTypeError),
        ({"dtype": "uint4", "data": [16]}, DTypeError),
        ({"dtype": "bool", "data": [1]}, DTypeError),
        ({"dtype": "float64", "data": [10**4000]}, DTypeError),
    ],
)
def test_what_is_no_array_is_named(value: Any, error: type[ShardserveError]) -> None:
    with pytest.raises(error) as caught:
        read(value)
    assert str(caught.value).startswith(("argument 0", "unknown dtype"))
    assert len(str(caught.value)) < 500


@given(
    st.sampled_from(sorted(DTYPES)).flatmap(
        lambda name: st.tuples(
            st.just(name), hnp.arrays(np.float64, hnp.array_shapes(max_dims=3, max_side=4, min_side=0))
        )
    )
)
def test_any_array_survives_the_way_out_and_in_again(drawn: tuple[str, Any]) -> None:
    name, values = drawn
    with np.errstate(all="ignore"):
        array = np.nan_to_num(values).astype(np.int8) % 2 if "int" in name or name == "bool" else values
        array = array.astype(dtype_named(name))
    text = json.dumps(write_array(array), allow_nan=False)
    again = read(parse_json(text.encode()))
    assert (again.dtype, again.shape) == (array.dtype, array.shape)
    wide = np.complex128 if array.dtype.kind == "c" else np.float64  # isnan does not know every float of 8 bits
    np.testing.assert_array_equal(again.astype(wide), array.astype(wide))


def request(kernel: str = "dot", **body: Any) -> CallRequest:
    call = read_call(kernel, json.loads(json.dumps(body)), {})
    return validate(CallRequest, msgpack.unpackb(call.header, use_list=False))


def test_a_json_call_is_the_same_request_as_a_frame() -> None:
    call = request(
        arguments=[[1.0, 2.0], 3, {"dtype": "int8", "data": [[1]]}],
        params={"axis": [0, "rows"], "norm": "sum"},
        mesh={"x": 4, "y": -1},
        precision="default",
        timeout_s=5,
        in_shardings=["auto", None, [["x", "y"], None]],
        out_shardings=[["x"]],
    )
    assert call.program.steps[0].operands == (0, 1, 2)
    assert call.program.outputs == (3,)
    assert call.program.steps[0].params == {"axis": (0, "rows"), "norm": "sum"}
    assert call.arguments[0] == SegmentArgument(segment=0)
    assert getattr(call.arguments[1], "value", None) == 3
    assert call.arguments[2] == SegmentArgument(segment=1)
    assert [segment.dtype for segment in call.segments] == ["float64", "int8"]
    assert call.mesh == (("x", 4), ("y", -1))
    assert (call.precision, call.timeout_s) == ("default", 5.0)
    assert call.in_shardings == ("auto", None, (("x", "y"), None))
    assert call.out_shardings == (("x",),)
    assert call.mapping is None


@pytest.mark.parametrize(
    ("in_axes", "expected"),
    [
        ([{"1": "b"}, {"1": "b"}], [Axes(names=((1, "b"),))] * 2),
        ({"1": "b"}, [Axes(names=((1, "b"),))] * 2),
        (["a", "b", "..."], [Axes(names=((0, "a"), (1, "b")))] * 2),
        (["a", None], [Axes(names=((0, "a"),), rank=2)] * 2),
        ([["a", "..."], {}], [Axes(names=((0, "a"),)), Axes()]),
        ([{"0": "a"}, None], [Axes(names=((0, "a"),)), Axes()]),
    ],
)
def test_axes_come_in_the_human_forms(in_axes: Any, expected: list[Axes]) -> None:
    call = request(
        arguments=[[[1]], [[2]]],
        in_axes=in_axes,
        out_axes=["b", "..."],
        axis_sizes={"c": 3},
        axis_resources={"b": ["x", "y"], "a": "z"},
    )
    assert call.mapping is not None
    assert list(call.mapping.in_axes) == expected
    assert call.mapping.out_axes == (Axes(names=((0, "b"),)),)
    assert call.mapping.axis_sizes == (("c", 3),)
    assert call.mapping.axis_resources == (("b", ("x", "y")), ("a", ("z",)))


def test_one_specification_stands_for_the_arrays_and_not_for_the_numbers() -> None:
    call = request(arguments=[[1], 2], in_axes=["a"], out_axes=[["a"]])
    assert call.mapping is not None
    assert call.mapping.in_axes == (Axes(names=((0, "a"),), rank=1), Axes())
    assert call.mapping.out_axes == (Axes(names=((0, "a"),), rank=1),)


@pytest.mark.parametrize(("spec", "expected"), [(None, (None, None)), ("auto", ("auto", "auto"))])
def test_null_and_auto_stand_for_every_argument(spec: Any, expected: Any) -> None:
    assert request(arguments=[[1], [2]], in_shardings=spec).in_shardings == expected


@pytest.mark.parametrize(
    ("body", "error", "text"),
    [
        ([], InvalidRequest, "an object"),
        ({"meshh": "x"}, InvalidRequest, "did you mean 'mesh'"),
        ({"in_axis_resources": {}}, InvalidRequest, "did you mean 'axis_resources'"),
        ({"arguments": {}}, InvalidRequest, "arguments is a list"),
        ({"arguments": [1] * 257}, InvalidRequest, "at most 256"),
        ({"params": []}, None, ""),
        ({"params": [1]}, InvalidRequest, "params is an object"),
        ({"params": {"x": {}}}, InvalidRequest, "params"),
        ({"params": {"x": [[[1]]]}}, InvalidRequest, "params"),
        ({"mesh": {"x": "4"}}, InvalidRequest, "mesh"),
        ({"mesh": {"x": 1.5}}, InvalidRequest, "mesh"),
        ({"mesh": {}}, InvalidRequest, "mesh"),
        ({"mesh": 7}, InvalidRequest, "mesh"),
        ({"precision": "low"}, InvalidRequest, "precision"),
        ({"timeout_s": 0}, InvalidRequest, "timeout_s"),
        ({"timeout_s": "1"}, InvalidRequest, "timeout_s"),
        ({"timeout_s": True}, InvalidRequest, "timeout_s"),
        ({"in_axes": {"-1": "b"}, "arguments": [[1]]}, AxisError, "negative"),
        ({"in_axes": {"0": 1}, "arguments": [[1]]}, AxisError, "a text"),
        ({"in_axes": {"q": "b"}, "arguments": [[1]]}, AxisError, "integers"),
        ({"in_axes": ["a", "a"], "arguments": [[1]]}, AxisError, "twice"),
        ({"in_axes": ["...", "a"], "arguments": [[1]]}, AxisError, "last"),
        ({"in_axes": 3, "arguments": [[1]]}, InvalidRequest, "in_axes is a list"),
        ({"in_axes": ["a" * 65], "arguments": [[1]]}, AxisError, "64 bytes"),
        ({"axis_sizes": {"a": 1.5}}, InvalidRequest, "axis_sizes"),
        ({"axis_resources": {"a": 1}}, InvalidRequest, "axis_resources"),
        ({"axis_resources": {"a": [1]}}, AxisError, "axis_resources"),
        ({"in_shardings": ["x"], "arguments": [[1]]}, InvalidRequest, "in_shardings"),
        ({"in_shardings": {"x": 1}, "arguments": [[1]]}, InvalidRequest, "in_shardings"),
    ],
)
def test_a_body_that_is_no_call_is_named_by_its_field(body: Any, error: Any, text: str) -> None:
    if error is None:
        read_call("dot", body, {})
        return
    with pytest.raises(error, match=text):
        read_call("dot", body, {})


BOMBS = [
    b"", b"{", b"nope", b"[1,]", b"{'a': 1}", b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000,
    b"9" * 5000, b"[" + b"9" * 5000 + b"]", b"-" + b"9" * 5000, b"1e" + b"9" * 5000 + b"x", b"NaN", b"[Infinity]",
    b'{"a": 1, "a": 2}', b"\xff\xfe", '{"a": 1}'.encode("utf-16"), b'["\\ud800"]', b'{"\\udfff": 1}',
    b'"' + b"\\" * 100_001, b'"unclosed ' + b"[" * 1000, b"\x00", b'"\x01"', b"[1 2]", b"\xef\xbb\xbf{}",
]  # fmt: skip


@pytest.mark.parametrize("data", BOMBS, ids=range(len(BOMBS)))
def test_a_text_that_is_no_json_is_refused_quickly(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_json(data)


@pytest.mark.parametrize("data", BOMBS, ids=range(len(BOMBS)))
def test_the_server_lives_on_after_each_of_them(front: Served, data: bytes) -> None:
    answer = front.json("/v1/kernels/identity", data)
    assert (answer.status, answer.code) == (400, "bad_request")
    assert front.json("/v1/kernels/identity", {"arguments": [[1, 2]]}).json["results"][0]["data"] == [1, 2]


def test_depth_is_counted_outside_of_texts_and_its_limit_is_exact() -> None:
    assert parse_json(b'["' + b"[" * 1000 + b'\\"]"]') == ["[" * 1000 + '"]']
    assert parse_json(b"[" * 33 + b"]" * 33)
    with pytest.raises(InvalidRequest, match="33 levels"):
        parse_json(b"[" * 34 + b"]" * 34)


def test_a_call_goes_out_and_comes_back_with_its_report(front: Served) -> None:
    body = {
        "arguments": [
            {"dtype": "float32", "shape": [2], "data": ["NaN", 1.5]},
            {"dtype": "complex64", "data": [[1, 2]]},
        ]
    }
    answer = front.json("/v1/kernels/identity", body)
    assert answer.json["results"] == [
        {"dtype": "float32", "shape": [2], "data": ["NaN", 1.5]},
        {"dtype": "complex64", "shape": [1], "data": [[1.0, 2.0]]},
    ]
    assert answer.json["report"]["phases_s"] == {"run": 0.001}
    assert answer.headers["server-timing"].startswith("run;dur=1.000, engine;dur=")


def test_a_result_that_is_too_large_for_json_says_what_to_use(front: Served) -> None:
    body = {"arguments": [{"dtype": "complex128", "shape": [70_000], "data": [[0, 0]] * 70_000}]}
    answer = front.json("/v1/kernels/identity", json.dumps(body, separators=(",", ":")).encode())
    assert (answer.status, answer.code) == (413, "too_large")
    assert "/v1/call" in answer.json["error"]["message"]
    assert front.pool.usage().leases == 0


def test_an_unknown_kernel_is_404_with_the_nearest_name(front: Served) -> None:
    answer = front.json("/v1/kernels/identitty", {"arguments": []})
    assert (answer.status, answer.code) == (404, "not_found")
    assert "did you mean 'identity'" in answer.json["error"]["message"]
