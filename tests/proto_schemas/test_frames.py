"""Frames: what is written is read again, and nothing else is read."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardserve_proto import frames
from shardserve_proto.errors import BadFrame, InvalidRequest, TooLarge
from shardserve_proto.limits import LIMITS

from .strategies import headers


def whole(header: bytes, segments: list[bytes]) -> bytes:
    """A frame as one piece of bytes."""
    return b"".join(bytes(part) for part in frames.encode_frame(header, [memoryview(s) for s in segments]))


@given(headers)
def test_a_header_comes_back_as_it_was_written(header: dict[str, Any]) -> None:
    assert frames.decode_header(frames.encode_header(header)) == header


@given(headers, st.lists(st.binary(max_size=200), max_size=5))
def test_a_frame_comes_back_with_its_segments_on_64_byte_boundaries(header: dict[str, Any], data: list[bytes]) -> None:
    packed = frames.encode_header(header)
    frame = whole(packed, data)
    prelude = frames.decode_prelude(frame)
    assert (prelude.header_bytes, prelude.segments) == (len(packed), len(data))
    layout = frames.lay_out(prelude.header_bytes, [len(piece) for piece in data])
    assert layout.total == len(frame)
    assert all(offset % 64 == 0 for offset in layout.offsets)
    assert [bytes(s) for s in frames.split_segments(frame, prelude.header_bytes, layout)] == data


@given(st.integers(0, 300_000), st.lists(st.integers(0, 2**40), max_size=6))
def test_segments_lie_in_order_without_overlap_and_gaps_are_under_64_bytes(header: int, sizes: list[int]) -> None:
    layout = frames.lay_out(header, sizes)
    end = frames.PRELUDE_BYTES + header
    for offset, size in zip(layout.offsets, layout.sizes, strict=True):
        assert 0 <= offset - end < 64
        end = offset + size
    assert layout.total == end


def test_segments_are_sent_as_views_and_never_copied() -> None:
    array = np.arange(1000, dtype=np.float32)
    view = array.data.cast("B")
    parts = frames.encode_frame(frames.encode_header({}), [view])
    array[0] = 7
    assert any(part is view for part in parts)


def test_an_empty_segment_adds_no_bytes() -> None:
    assert len(whole(frames.encode_header({}), [b""])) == 64


@pytest.mark.parametrize("spoiled", [17, 63, 67, 127])
def test_a_gap_that_is_not_zero_is_refused(spoiled: int) -> None:
    packed = frames.encode_header({})
    frame = bytearray(whole(packed, [b"abc", b"def"]))
    layout = frames.lay_out(len(packed), [3, 3])
    assert layout.offsets == (64, 128)
    frame[spoiled] = 1
    with pytest.raises(BadFrame, match="zero"):
        frames.split_segments(frame, len(packed), layout)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_frame_that_is_longer_or_shorter_than_its_header_says_is_refused(change: int) -> None:
    packed = frames.encode_header({})
    layout = frames.lay_out(len(packed), [8])
    frame = (whole(packed, [bytes(8)]) + b"\0")[: layout.total + change]
    with pytest.raises(BadFrame, match=f"{layout.total + change} bytes.*describes {layout.total}"):
        frames.split_segments(frame, len(packed), layout)


def prelude(**changed: int | bytes) -> bytes:
    fields: dict[str, Any] = {"magic": frames.MAGIC, "version": 1, "reserved": 0, "header": 1, "segments": 0} | changed
    return struct.pack("<4sHHII", *fields.values())


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (b"", BadFrame, "the body has 0"),
        (prelude()[:15], BadFrame, "the body has 15"),
        (prelude(magic=b"PK\x03\x04"), BadFrame, "magic"),
        (prelude(magic=b"\x80\x04\x95\x00"), BadFrame, "magic"),  # a pickle
        (prelude(version=0), BadFrame, "version 0"),
        (prelude(version=2), BadFrame, "version 2"),
        (prelude(reserved=1), BadFrame, "reserved"),
        (prelude(header=LIMITS.header_bytes + 1), TooLarge, "262145"),
        (prelude(header=2**32 - 1), TooLarge, "4294967295"),
        (prelude(segments=LIMITS.segments + 1), BadFrame, "257"),
        (prelude(segments=2**32 - 1), BadFrame, "4294967295"),
    ],
)
def test_a_prelude_over_a_limit_or_of_another_kind_is_refused(data: bytes, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        frames.decode_prelude(data)


def test_a_prelude_at_its_limits_is_read() -> None:
    assert frames.decode_prelude(prelude(header=LIMITS.header_bytes, segments=LIMITS.segments)) == frames.Prelude(
        LIMITS.header_bytes, LIMITS.segments
    )


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "ends in the middle"),
        (b"\x81", "claims more"),
        (b"\x81\xa1a", "ends in the middle"),
        (b"\x90", "map, not tuple"),
        (b"\xc0", "map, not NoneType"),
        (b"\x80\x00", "bytes follow"),
        (b"\x82\xa1a\x01\xa1a\x02", "twice"),
        (b"\x81\xa1a\x82\xa1b\x01\xa1b\x01", "twice"),
        (b"\x81\x01\x02", "not valid msgpack"),  # an integer as a key
        (b"\x81\xc0\x02", "not valid msgpack"),
        (b"\x81\xa2\xff\xff\x02", "not valid msgpack"),  # no UTF-8
        (b"\x81\xa3\xed\xa0\x80\x02", "not valid msgpack"),  # half of a surrogate pair
        (b"\x81\xa1a\xc1", "type 0xc1"),
        (b"\x81\xa1a\xc4\x01x", "type 0xc4"),  # bin
        (b"\x81\xa1a\xd4\x01x", "type 0xd4"),  # fixext
        (b"\x81\xa1a\xc7\x01\x01x", "type 0xc7"),  # ext
        (b"\x81\xa1a\xd6\xff\0\0\0\0", "type 0xd6"),  # a timestamp
        (b"\x81\xa1a\xd9", "claims more"),
        (b"\x81\xa1a\xdb\xff\xff\xff\xff", "claims more"),
        (b"\x81\xa1a\xdd\xff\xff\xff\xff", "claims more"),
        (b"\x81\xa1a\xdf\xff\xff\xff\xff", "claims more"),
        (b"\x81\xa1a\xcb\0\0", "claims more"),
    ],
)
def test_a_header_that_is_no_plain_map_is_refused_and_says_why(data: bytes, text: str) -> None:
    with pytest.raises(BadFrame, match=text):
        frames.decode_header(data)


def test_every_msgpack_form_of_the_protocol_is_read() -> None:
    values = (None, True, False, 5, -5, 200, 60000, 2**31, 2**63, -100, -1000, -(2**31), -(2**40), 1.5, "a" * 5)
    values += ("b" * 40, "c" * 300, "d" * 70_000, (0,) * 20, {str(i): i for i in range(20)})  # type: ignore[assignment]
    assert frames.decode_header(frames.encode_header({"v": values}))["v"] == values
    assert frames.decode_header(msgpack.packb({"v": 0.5}, use_single_float=True)) == {"v": 0.5}
    long = {"v": (0,) * 2000}
    assert frames.decode_header(b"\x81\xa1v\xdd\0\0\x07\xd0" + bytes(2000)) == long
    assert frames.decode_header(b"\xdf\0\0\0\x01\xa1v\xdc\x07\xd0" + bytes(2000)) == long


def test_the_same_header_is_the_same_bytes() -> None:
    header = {"program": {"inputs": 2, "outputs": (2,)}, "mesh": (("x", 4),)}
    assert frames.encode_header(header) == frames.encode_header(dict(header))


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, "\ud800"])
def test_what_msgpack_cannot_carry_is_a_named_error(value: object) -> None:
    with pytest.raises(InvalidRequest, match="cannot be written"):
        frames.encode_header({"v": value})


def test_a_header_over_the_limit_is_refused_before_it_is_sent() -> None:
    with pytest.raises(TooLarge, match="smaller program"):
        frames.encode_header({"v": "x" * LIMITS.header_bytes})
