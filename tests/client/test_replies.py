"""Replies are read piece by piece, straight into arrays; nothing they say is trusted."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardserve as ss
from shardserve._config import JSON_REPLY_BYTES
from shardserve._replies import FrameReader, check_json_size, read_error, read_json
from shardserve_proto.abstract import Aval
from shardserve_proto.frames import MAGIC, PRELUDE, VERSION, encode_header
from shardserve_proto.messages import DeviceInfo

from .replies import frame, header

X = np.arange(12.0).reshape(3, 4)
SMALL = np.array(5, np.int16)
EMPTY = np.empty((0, 3), np.float32)


def read(data: bytes, sizes: Any = (), *, expected: Any = None, declared: int | None = None) -> list[Any]:
    """Feed a reply in pieces of the given sizes, the last one again and again."""
    reader = FrameReader(expected, declared_bytes=declared)
    position = 0
    steps = iter(sizes)
    step = len(data) or 1
    while position < len(data):
        step = next(steps, step)
        reader.feed(data[position : position + step])
        position += step
    return reader.finish()[0]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=20))
@settings(deadline=None)
def test_a_reply_may_come_in_any_pieces(sizes: list[int]) -> None:
    found = read(frame(X, EMPTY, SMALL, X.astype(ml_dtypes.bfloat16)), sizes)
    np.testing.assert_array_equal(found[0], X)
    assert found[1].shape == (0, 3)
    assert found[2] == 5
    assert found[3].dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("results", [(X,), (SMALL,), (EMPTY,), (EMPTY, EMPTY), (EMPTY, X), (X, EMPTY), (X, SMALL, X)])
def test_results_of_any_size_come_whole_and_byte_by_byte(results: tuple[Any, ...]) -> None:
    data = frame(*results)
    for sizes in ((len(data),), (1,), (63, 64, 65)):
        for found, wanted in zip(read(data, sizes), results, strict=True):
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(found, wanted)


def test_results_are_writable_arrays_of_the_caller_s_own() -> None:
    """B14."""
    first, second = read(frame(X, X))
    first += 1
    assert first.flags.writeable
    assert first.flags.owndata
    assert not np.shares_memory(first, second)
    np.testing.assert_array_equal(second, X)


@pytest.mark.parametrize("dtype", ["float64", "bool", "complex64", "bfloat16", "float8_e5m2", "int4"])
def test_results_of_rank_0_are_numpy_scalars(dtype: str) -> None:
    """B07."""
    wanted = np.array(1).astype(dtype)
    (found,) = read(frame(wanted))
    assert not isinstance(found, np.ndarray)
    assert type(found) is wanted.dtype.type
    assert found == wanted


GOOD = frame(X)
HEADER_BYTES = len(encode_header(header([X])))
LIES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "ended after 0 bytes"),
    "half a prelude": (GOOD[:7], "ended after 7 bytes"),
    "half a header": (GOOD[:40], "within its header"),
    "half a segment": (GOOD[:-5], "truncated"),
    "too long": (GOOD + b"\0", "bytes follow the last segment"),
    "no magic": (b"HTTP" + GOOD[4:], "magic"),
    "another version": (PRELUDE.pack(MAGIC, 9, 0, 10, 1) + GOOD[16:], "version 9"),
    "a header of 4 GiB": (PRELUDE.pack(MAGIC, VERSION, 0, 2**32 - 1, 1) + GOOD[16:], "header declares"),
    "many segments": (PRELUDE.pack(MAGIC, VERSION, 0, 100, 2**32 - 1) + GOOD[16:], "segments"),
    "another count": (PRELUDE.pack(MAGIC, VERSION, 0, HEADER_BYTES, 2) + GOOD[16:], "declares 2 segments"),
    "a huge shape": (frame(X, shape=(2**32, 2**32), nbytes=2**67 % 2**63), "more than any array"),
    "a shape that overflows": (frame(X, shape=(2**31, 2**28), nbytes=96), "takes"),
    "nbytes off by one": (frame(X, nbytes=97), "declares 97 bytes"),
    "a negative size": (frame(X, shape=(-3, -4)), "not negative"),
    "rank 33": (frame(X, shape=(1,) * 33), "segments.0.shape"),
    "an unknown dtype": (frame(X, dtype="object"), "unknown dtype 'object'"),
    "a record dtype": (frame(X, dtype="f4," * 10), "unknown dtype"),
    "a long dtype": (frame(X, dtype="f" * 10_000), "dtype"),
    "over the frame limit": (frame(X, shape=(2**36,), nbytes=2**39), "at most"),
    "a gap that is not zero": (GOOD[: -X.nbytes - 1] + b"x" + GOOD[-X.nbytes :], "are zero"),
    "no msgpack": (PRELUDE.pack(MAGIC, VERSION, 0, 20, 1) + b"\xc1" * 20, "msgpack"),
    "nested arrays": (PRELUDE.pack(MAGIC, VERSION, 0, 15_000, 1) + b"\xdd\x00\x00\xff\xff" * 3000, "claims|deeper"),
    "no report": (PRELUDE.pack(MAGIC, VERSION, 0, 1, 0) + b"\x80", "segments|report"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_lie_in_a_reply_is_a_bad_reply_within_little_memory(name: str) -> None:
    """Promise B6."""
    data, message = LIES[name]
    for sizes in ((len(data) or 1,), (13,)):
        tracemalloc.start()
        try:
            with pytest.raises(ss.BadReply, match=message):
                read(data, sizes)
            assert tracemalloc.get_traced_memory()[1] < 2**20
        finally:
            tracemalloc.stop()


def test_a_result_that_the_program_does_not_give_is_a_bad_reply() -> None:
    wanted = [Aval((3, 4), np.dtype(np.float64))]
    np.testing.assert_array_equal(read(frame(X), expected=wanted)[0], X)
    for wrong in (X.T.copy(), X.astype(np.float32)):
        with pytest.raises(ss.BadReply, match=r"result 0 of the server is .*, but the program gives float64\[3, 4\]"):
            read(frame(wrong), expected=wanted)
    with pytest.raises(ss.BadReply, match="2 arrays, the program has 1"):
        read(frame(X, X), expected=wanted)


def test_a_content_length_that_contradicts_the_header_is_a_bad_reply() -> None:
    read(GOOD, declared=len(GOOD))
    with pytest.raises(ss.BadReply, match="its header describes"):
        read(GOOD, declared=len(GOOD) + 1)


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_no_bytes_make_the_reader_fail_in_another_way(data: st.DataObject) -> None:
    spoiled = bytearray(frame(*data.draw(st.lists(st.sampled_from([X, SMALL, EMPTY]), min_size=1, max_size=3))))
    for _ in range(data.draw(st.integers(1, 4))):
        spoiled[data.draw(st.integers(0, len(spoiled) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(spoiled)))
    with contextlib.suppress(ss.BadReply):
        read(bytes(spoiled[:cut]) if data.draw(st.booleans()) else bytes(spoiled))


# --- JSON ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [b"", b"[" * 100_000, b"1" * 5000, b"{}", b'[{"id": "x"}]', b"\xff\xfe", b"[[[]]]", b"null"],
    ids=lambda body: body[:10],
)
def test_json_that_is_not_what_was_asked_for_is_a_bad_reply(body: bytes) -> None:
    with pytest.raises(ss.BadReply, match="not what was asked for"):
        read_json(list[DeviceInfo], body)


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[" * 100_000, b"1" * 5000, b'{"error": {"code": "bad_reply", "message": "x"}}', b'{"error": 3}'],
    ids=lambda body: body[:10],
)
def test_an_error_that_is_none_of_shardserve_s_is_a_bad_reply(body: bytes) -> None:
    error = read_error(502, body, None)
    assert isinstance(error, ss.BadReply)
    assert "HTTP 502" in str(error)


def test_an_error_of_the_server_keeps_class_details_and_time() -> None:
    wire = ss.Overloaded("full", details={"queue": 3}, retry_after_s=2.5, error_id="abc")
    found = read_error(503, json.dumps(wire.to_wire()).encode(), "7")
    assert isinstance(found, ss.Overloaded)
    assert (found.details, found.retry_after_s, found.error_id) == ({"queue": 3}, 2.5, "abc")
    assert str(found) == "full (error id abc)"
    bare = read_error(503, json.dumps(ss.Overloaded("full").to_wire()).encode(), "7")
    assert bare.retry_after_s == 7.0


def test_a_server_s_text_cannot_steer_a_terminal() -> None:
    body = json.dumps(ss.ShapeError("bad \x1b[31mred\x07").to_wire()).encode()
    assert str(read_error(422, body, None)) == "bad ?[31mred?"


def test_json_is_read_up_to_a_limit() -> None:
    check_json_size(JSON_REPLY_BYTES)
    with pytest.raises(ss.BadReply, match="longer than"):
        check_json_size(JSON_REPLY_BYTES + 1)
