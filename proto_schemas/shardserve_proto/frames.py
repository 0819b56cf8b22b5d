"""The frame: a 16-byte prelude, a msgpack header, then raw segments, each on a 64-byte boundary.

    offset  0  magic, 4 bytes: 93 53 53 46 (0x93 "SSF")
            4  version, uint16 little-endian: 1
            6  reserved, uint16: 0
            8  header length in bytes, uint32 little-endian
           12  segment count, uint32 little-endian
           16  header (msgpack map), padded with zeros to a multiple of 64 from the start of the frame
               segments, padded likewise; nothing follows the last one

Array bytes are never inside msgpack. The header is scanned before it is decoded, so no header makes the decoder
allocate more than its own size allows (`LIMITS`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from .errors import BadFrame, InvalidRequest, TooLarge
from .limits import LIMITS

MEDIA_TYPE = "application/vnd.shardserve.frame"
MAGIC = b"\x93SSF"
VERSION = 1
ALIGNMENT = 64
PRELUDE = struct.Struct("<4sHHII")
PRELUDE_BYTES = PRELUDE.size

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Prelude:
    """What the first 16 bytes say: lengths only, checked against the limits."""

    header_bytes: int
    segments: int


@dataclass(frozen=True)
class Layout:
    """Where the segments of a frame lie, from the frame's start.

    Attributes:
        offsets: the first byte of each segment.
        sizes: bytes of each segment.
        total: bytes of the whole frame.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    total: int


def align(position: int) -> int:
    """The next 64-byte boundary."""
    return -(-position // ALIGNMENT) * ALIGNMENT


def lay_out(header_bytes: int, sizes: Sequence[int]) -> Layout:
    """Place segments of the given sizes behind a header: in order, aligned, without holes or overlap."""
    position = PRELUDE_BYTES + header_bytes
    offsets = []
    for size in sizes:
        offsets.append(align(position))
        position = offsets[-1] + size
    return Layout(tuple(offsets), tuple(sizes), position)


def encode_header(header: dict[str, Any]) -> bytes:
    """The msgpack form of a header.

    Raises:
        TooLarge: it is over the limit, which a program of too many steps is.
        InvalidRequest: it holds an integer beyond 64 bits, or a text that is no UTF-8.
    """
    try:
        packed: bytes = msgpack.packb(header, use_bin_type=True)
    except (OverflowError, ValueError) as error:
        raise InvalidRequest(f"the header cannot be written as msgpack: {error}") from None
    if len(packed) > LIMITS.header_bytes:
        raise TooLarge(
            f"the header takes {len(packed)} bytes, at most {LIMITS.header_bytes} are allowed; send a smaller program"
        )
    return packed


def encode_prelude(header_bytes: int, segments: int) -> bytes:
    """The first 16 bytes of a frame."""
    return PRELUDE.pack(MAGIC, VERSION, 0, header_bytes, segments)


def encode_frame(header: bytes, segments: Sequence[memoryview]) -> list[Buffer]:
    """A frame as a list of buffers to send one after another; segments are not copied.

    Arguments:
        header: of `encode_header`.
        segments: flat byte views of C-ordered arrays.
    """
    layout = lay_out(len(header), [segment.nbytes for segment in segments])
    parts: list[Buffer] = [encode_prelude(len(header), len(segments)) + header]
    position = PRELUDE_BYTES + len(header)
    for offset, segment in zip(layout.offsets, segments, strict=True):
        if offset > position:
            parts.append(bytes(offset - position))
        if segment.nbytes:
            parts.append(segment)
        position = offset + segment.nbytes
    return parts


def decode_prelude(data: Buffer) -> Prelude:
    """Read the first 16 bytes.

    Raises:
        BadFrame: too short, another magic or version, or a count over the limit.
        TooLarge: the header's length is over the limit.
    """
    if len(data) < PRELUDE_BYTES:
        raise BadFrame(f"a frame begins with {PRELUDE_BYTES} bytes of prelude; the body has {len(data)}")
    magic, version, reserved, header_bytes, segments = PRELUDE.unpack_from(data)
    if magic != MAGIC:
        raise BadFrame("the body is no frame: it does not begin with the magic bytes 93 53 53 46")
    if version != VERSION:
        raise BadFrame(f"frame version {version} is not spoken here; this side speaks version {VERSION}")
    if reserved:
        raise BadFrame(f"bytes 6 and 7 of a frame are reserved and 0, not {reserved}")
    if header_bytes > LIMITS.header_bytes:
        raise TooLarge(f"the header declares {header_bytes} bytes, at most {LIMITS.header_bytes} are allowed")
    if segments > LIMITS.segments:
        raise BadFrame(f"the frame declares {segments} segments, at most {LIMITS.segments} are allowed")
    return Prelude(header_bytes, segments)


def decode_header(data: Buffer) -> dict[str, Any]:
    """Decode a header within the limits.

    Raises:
        BadFrame: no msgpack map, too deep, too many values, an extension type, or a key given twice.
    """
    _scan(bytes(data))
    try:
        header = msgpack.unpackb(data, raw=False, use_list=False, max_ext_len=0, object_pairs_hook=_distinct)
    except (ValueError, msgpack.UnpackException) as error:
        raise BadFrame(f"the header is not valid msgpack: {error}") from None
    if not isinstance(header, dict):
        raise BadFrame(f"the header is a msgpack map, not {type(header).__name__}")
    return header


def split_segments(frame: Buffer, header_bytes: int, layout: Layout) -> list[memoryview]:
    """The segments of a whole frame in memory, as views.

    Raises:
        BadFrame: the frame is shorter or longer than its header says, or a gap is not zero.
    """
    view = memoryview(frame)
    if len(view) != layout.total:
        raise BadFrame(f"the frame has {len(view)} bytes, but its header describes {layout.total}")
    position = PRELUDE_BYTES + header_bytes
    segments = []
    for offset, size in zip(layout.offsets, layout.sizes, strict=True):
        check_gap(view[position:offset])
        position = offset + size
        segments.append(view[offset:position])
    return segments


def check_gap(gap: Buffer) -> None:
    """Hold the bytes between two parts of a frame to zero.

    Raises:
        BadFrame: they are not.
    """
    if any(gap):
        raise BadFrame("the bytes between two parts of a frame are zero; these are not")


def _distinct(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    decoded = dict(pairs)
    if len(decoded) < len(pairs):
        raise ValueError("a key stands twice in one map")
    return decoded


# First byte -> bytes of a token that holds no other and has no length field; 0 for the rest.
_PLAIN = [0] * 256
_PLAIN[0x00:0x80] = [1] * 0x80  # positive fixint
_PLAIN[0xA0:0xC0] = range(1, 0x21)  # fixstr
_PLAIN[0xE0:0x100] = [1] * 0x20  # negative fixint
_PLAIN[0x80] = _PLAIN[0x90] = 1  # an empty map, an empty array
_PLAIN[0xC0] = _PLAIN[0xC2] = _PLAIN[0xC3] = 1  # nil, false, true
_PLAIN[0xCA:0xCC] = [5, 9]  # float32, float64
_PLAIN[0xCC:0xD4] = [2, 3, 5, 9] * 2  # uint8 to uint64, int8 to int64

# First byte -> (bytes of the length field, values for each unit of length): str, array and map with a length.
_SIZED: dict[int, tuple[int, int]] = {
    0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0), 0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2),
}  # fmt: skip


def _scan(data: bytes) -> None:
    """Walk the tokens without building a value: counts, depth and lengths are in bounds before anything is allocated.

    Nested array headers of 15 kB would else decode to 80 MB, since each claims its length before it has an element.
    """
    position, end = 0, len(data)
    open_containers: list[int] = []  # values still to come in each
    for _ in range(LIMITS.header_tokens):
        if position >= end:
            raise BadFrame("the header ends in the middle of a value")
        plain = _PLAIN[data[position]]
        if plain:
            position += plain
        else:
            position, elements = _token(data, position)
            if elements:
                if elements > end - position:
                    raise BadFrame("the header claims more than it has bytes")
                open_containers.append(elements)
                if len(open_containers) > LIMITS.header_depth:
                    raise BadFrame(f"the header nests deeper than {LIMITS.header_depth} levels")
                continue
        while open_containers:
            open_containers[-1] -= 1
            if open_containers[-1]:
                break
            open_containers.pop()
        if not open_containers:
            break
    else:
        raise BadFrame(f"the header holds more than {LIMITS.header_tokens} values")
    if position > end:
        raise BadFrame("the header claims more than it has bytes")
    if position < end:
        raise BadFrame("bytes follow the header's map")


def _token(data: bytes, position: int) -> tuple[int, int]:
    """The position behind one token that is not plain, and how many values it opens."""
    first = data[position]
    position += 1
    if 0x80 < first < 0x90:
        return position, 2 * (first & 0x0F)
    if 0x90 < first < 0xA0:
        return position, first & 0x0F
    sized = _SIZED.get(first)
    if sized is None:
        raise BadFrame(f"the header uses the msgpack type 0x{first:02x}, which the protocol does not")
    length_bytes, values = sized
    length = int.from_bytes(data[position : position + length_bytes], "big")
    position += length_bytes
    return (position, values * length) if values else (position + length, 0)
