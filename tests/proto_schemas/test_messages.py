"""Calls and replies: what is refused, what is ignored, and how bytes are counted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardserve_proto import frames, messages
from shardserve_proto.dtypes import DTYPES
from shardserve_proto.errors import BadFrame, DTypeError, InvalidRequest, ProgramError, ShapeError, TooLarge
from shardserve_proto.limits import LIMITS, Limits
from shardserve_proto.messages import (
    CallReply,
    CallRequest,
    Segment,
    ServerInfo,
    check_call,
    frame_layout,
    segment_bytes,
)
from shardserve_proto.programs import WireModel, validate

from .seeds import seed_calls
from .strategies import shapes

PLAIN, MAPPED, SHARDED, NESTED = seed_calls()


def changed(**fields: Any) -> dict[str, Any]:
    return PLAIN.to_wire() | fields


@pytest.mark.parametrize("call", [PLAIN, MAPPED, SHARDED, NESTED])
def test_a_call_that_is_right_passes_every_check(call: CallRequest) -> None:
    check_call(call)
    layout = frame_layout(100, call.segments, declared=2, body_bytes=LIMITS.body_bytes)
    assert layout.sizes == (12000, 12000)


def test_unknown_top_level_keys_are_ignored_so_that_a_newer_client_may_speak() -> None:
    assert validate(CallRequest, changed(priority=5, trace={"id": "x"})) == PLAIN


@pytest.mark.parametrize("path", ["program", "arguments", "segments"])
def test_unknown_keys_anywhere_else_are_refused(path: str) -> None:
    wire = PLAIN.to_wire()
    wire[path] = wire[path] | {"new": 1} if path == "program" else (wire[path][0] | {"new": 1}, *wire[path][1:])
    with pytest.raises(InvalidRequest, match="new"):
        validate(CallRequest, wire)


MODELS = [model for model in vars(messages).values() if isinstance(model, type) and issubclass(model, WireModel)]


def test_only_whole_messages_ignore_unknown_keys() -> None:
    lenient = {model.__name__ for model in MODELS if model.model_config.get("extra") == "ignore"}
    assert {"CallRequest", "CallReply", "Report", "ServerInfo"} <= lenient
    assert not lenient & {"Segment", "SegmentArgument", "Constant", "Program", "Step", "Mapping"}


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"program": None}, "program"),
        ({"arguments": None}, "arguments"),
        ({"arguments": ({"segment": -1},)}, "segment"),
        ({"arguments": ({"segment": True},)}, "segment"),
        ({"arguments": ({"segment": 0.0},)}, "segment"),
        ({"arguments": ({"segment": 0},) * 257}, "arguments"),
        ({"segments": ({"dtype": "float32", "shape": (2,), "nbytes": -8},)}, "nbytes"),
        ({"segments": ({"dtype": "float32", "shape": (2,), "nbytes": float("nan")},)}, "nbytes"),
        ({"segments": ({"dtype": "float32", "shape": (2,), "nbytes": 8.0},)}, "nbytes"),
        ({"segments": ({"dtype": "float32", "shape": (True,), "nbytes": 4},)}, "shape.0"),
        ({"segments": ({"dtype": "float32", "shape": (2.0,), "nbytes": 8},)}, "shape.0"),
        ({"segments": ({"dtype": "float32", "shape": ("2",), "nbytes": 8},)}, "shape.0"),
        ({"segments": ({"dtype": "float32", "shape": (1,) * 33, "nbytes": 4},)}, "shape"),
        ({"segments": ({"dtype": "float32", "shape": 2, "nbytes": 8},)}, "shape"),
        ({"segments": ({"dtype": 5, "shape": (2,), "nbytes": 8},)}, "dtype"),
        ({"segments": ({"dtype": "f4," * 20, "shape": (2,), "nbytes": 8},)}, "dtype"),
        ({"segments": ({"dtype": "float32", "shape": (2,)},)}, "nbytes"),
        ({"precision": "low"}, "precision"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": -1.0}, "timeout_s"),
        ({"timeout_s": float("nan")}, "timeout_s"),
        ({"timeout_s": float("inf")}, "timeout_s"),
        ({"timeout_s": True}, "timeout_s"),
        ({"timeout_s": "5"}, "timeout_s"),
        ({"mesh": ""}, "mesh"),
        ({"mesh": ()}, "mesh"),
        ({"in_shardings": (None,) * 257}, "in_shardings"),
        ({"results": ({"array": -1},)}, "results"),
        ({"results": ({"array": 0, "name": "a b"},)}, "name: an array's name is a letter"),
        ({"results": ({"array": 0, "replace": True},)}, "replace moves a name, and none is given"),
        ({"ids": "first"}, "ids"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_field_of_the_wrong_kind_is_named(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidRequest, match=place) as caught:
        validate(CallRequest, changed(**fields))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("wire", [None, [], (), 5, "x", {}])
def test_a_message_that_is_no_call_is_refused(wire: Any) -> None:
    with pytest.raises(InvalidRequest):
        validate(CallRequest, wire)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"arguments": ({"segment": 0},)}, "takes 2 inputs, the call gives 1"),
        ({"arguments": ({"segment": 0}, {"segment": 2})}, "argument 1 refers to segment 2 of 2"),
        ({"in_shardings": (None,)}, "in_shardings has 1 specs for 2 arguments"),
        ({"out_shardings": (None, None)}, "out_shardings has 2 specs for 1 outputs"),
        ({"results": ({"array": 0},) * 2}, "has an id of its own"),
        ({"results": ({"array": 0, "name": "a"}, {"array": 1, "name": "a"})}, "the name 'a' is given to two results"),
    ],
)
def test_counts_that_do_not_agree_are_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ProgramError, match=text):
        check_call(validate(CallRequest, changed(**fields)))


# --- bytes -----------------------------------------------------------------------------------------------------------


@given(shapes(), st.sampled_from(list(DTYPES)))
def test_bytes_are_shape_times_itemsize(shape: tuple[int, ...], dtype: str) -> None:
    nbytes = DTYPES[dtype].itemsize
    for size in shape:
        nbytes *= size
    assert segment_bytes(Segment(dtype=dtype, shape=shape, nbytes=nbytes), 0) == nbytes
    with pytest.raises(BadFrame, match=f"segment 3 declares {nbytes + 1} bytes.*takes {nbytes}"):
        segment_bytes(Segment(dtype=dtype, shape=shape, nbytes=nbytes + 1), 3)


@pytest.mark.parametrize(
    ("shape", "nbytes"),
    [((2**32, 2**32), 0), ((2**4, 2**60 + 2), 32 * 4), ((4, 2**60 + 2), 8 * 4), ((0, 2**63), 0), ((-1,), 0),
     ((-1, -4), 16), ((2**31, 2**31, 4), 0), ((2**32, 2**32, 2), 0)],
)  # fmt: skip
def test_sizes_do_not_overflow(shape: tuple[int, ...], nbytes: int) -> None:
    """Promise B3 and case B54: `np.prod([2**32, 2**32])` is 0."""
    with pytest.raises((ShapeError, BadFrame)):
        segment_bytes(Segment(dtype="float32", shape=shape, nbytes=nbytes), 0)


def test_a_number_of_30_digits_is_no_size() -> None:
    """JSON can spell it, msgpack cannot."""
    with pytest.raises(ShapeError):
        segment_bytes(Segment(dtype="int8", shape=(10**30,), nbytes=10**30), 0)


def test_an_unknown_dtype_of_a_segment_is_a_dtype_error() -> None:
    with pytest.raises(DTypeError, match="unknown dtype 'f4'"):
        segment_bytes(Segment(dtype="f4", shape=(2,), nbytes=8), 0)


@pytest.mark.parametrize("declared", [0, 1, 3])
def test_prelude_and_header_agree_on_the_number_of_segments(declared: int) -> None:
    with pytest.raises(BadFrame, match=f"declares {declared} segments, the header 2"):
        frame_layout(100, PLAIN.segments, declared=declared, body_bytes=10**9)


def test_the_limit_of_a_frame_is_exact() -> None:
    total = frame_layout(100, PLAIN.segments, declared=2, body_bytes=10**9).total
    assert frame_layout(100, PLAIN.segments, declared=2, body_bytes=total).total == total
    with pytest.raises(TooLarge, match=f"takes {total} bytes, at most {total - 1}") as caught:
        frame_layout(100, PLAIN.segments, declared=2, body_bytes=total - 1)
    assert caught.value.details == {"needed_bytes": total, "limit_bytes": total - 1}


def test_a_frame_of_five_gibibytes_is_refused_before_a_byte_of_it_is_read() -> None:
    """Case B55."""
    segment = Segment(dtype="uint8", shape=(5 * 2**30,), nbytes=5 * 2**30)
    with pytest.raises(TooLarge):
        frame_layout(100, (segment,), declared=1, body_bytes=2**30)


# --- replies ---------------------------------------------------------------------------------------------------------

REPORT = {
    "device_kind": "cpu", "mesh": (("x", 4),), "devices": (0, 1, 2, 3), "precision": "highest", "compiled": True,
    "arguments": ({"dtype": "float32", "shape": (3,), "spec": ("x",), "padded_shape": (4,), "shard_shape": (1,)},),
    "outputs": ({"dtype": "float32", "shape": (), "spec": None, "padded_shape": (), "shard_shape": ()},),
    "phases_s": {"receive": 0.001, "run": 0.002},
}  # fmt: skip
REPLY = {"segments": ({"dtype": "float32", "shape": (), "nbytes": 4},), "report": REPORT}


def test_a_reply_comes_back_from_the_wire() -> None:
    reply = validate(CallReply, REPLY)
    assert validate(CallReply, frames.decode_header(frames.encode_header(reply.to_wire()))) == reply
    assert reply.report.outputs[0].spec is None
    assert reply.report.arguments[0].spec == ("x",)


def test_a_newer_server_may_report_more() -> None:
    assert validate(CallReply, REPLY | {"report": REPORT | {"joules": 5}}) == validate(CallReply, REPLY)


@pytest.mark.parametrize("missing", ["segments", "report"])
def test_a_reply_without_its_parts_is_refused(missing: str) -> None:
    with pytest.raises(InvalidRequest, match=missing):
        validate(CallReply, {key: value for key, value in REPLY.items() if key != missing})


def test_the_limits_are_one_table_that_info_prints() -> None:
    assert LIMITS.as_dict().keys() == set(Limits.__dataclass_fields__)
    documented = Limits.__doc__ or ""
    assert all(f"{name}: " in documented for name in LIMITS.as_dict())
    info = ServerInfo(
        versions={}, limits=LIMITS.as_dict(), meshes={}, device_kind="cpu", device_count=8, notes=()
    )  # fmt: skip
    assert info.limits["header_bytes"] == 256 * 1024
