"""`.npy` files: NumPy's own are read and written alike; anything else is refused by name and never executed."""

from __future__ import annotations

import asyncio
import contextlib
import io
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shardserve_proto.dtypes import DTYPES
from shardserve_proto.errors import (
    DTypeError,
    InvalidRequest,
    ShapeError,
    ShardserveError,
    TooLarge,
    UnsupportedMediaType,
)
from shardserve_server.front.npy import MAGIC, NpyHeader, encode_header, parse_header, read_header

NAMES = [name for name, dtype in DTYPES.items() if dtype.isbuiltin == 1]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4)


def read(raw: bytes, *, length: int | None = None) -> NpyHeader:
    stream = io.BytesIO(raw)

    async def take(nbytes: int) -> bytes:
        return stream.read(nbytes)

    return asyncio.run(read_header(take, length=len(raw) if length is None else length))


def saved(array: Any, version: tuple[int, int] | None = None) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version=version)
    return stream.getvalue()


def text(descr: str = "'<f4'", order: str = "False", shape: str = "(3, 4)", end: str = ", }") -> bytes:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}{end}".encode()


@given(name=st.sampled_from(NAMES), shape=SHAPES, version=st.sampled_from([None, (1, 0), (2, 0), (3, 0)]))
def test_what_numpy_saves_is_read(name: str, shape: tuple[int, ...], version: tuple[int, int] | None) -> None:
    array = np.zeros(shape, name)
    raw = saved(array, version)
    header = read(raw)
    assert (header.dtype, header.shape) == (name, shape)
    assert len(raw) - header.header_bytes == header.segment.nbytes == array.nbytes


@given(name=st.sampled_from(NAMES), shape=SHAPES)
def test_what_is_written_is_what_numpy_loads_on_a_64_byte_boundary(name: str, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(name)
    beginning = encode_header(name, shape)
    assert len(beginning) % 64 == 0
    loaded = np.load(io.BytesIO(beginning + array.tobytes()), allow_pickle=False)
    assert (loaded.dtype, loaded.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(loaded, array)


def test_the_longest_shape_is_written_and_read() -> None:
    shape = (1,) * 31 + (2**40,)
    header = encode_header("complex128", shape)
    assert parse_header(header[10:]) == ("complex128", shape)


@pytest.mark.parametrize(
    "header",
    [
        text(end="}"),
        text(end=",}"),
        b"{'shape': (3, 4), 'descr': '<f4', 'fortran_order': False}",
        b'{"descr": "<f4", "fortran_order": False, "shape": (3,4)}\n',
        b"{'descr':'<f4','fortran_order':False,'shape':(3,4,),}      \n",
    ],
)
def test_what_other_programs_write_is_read(header: bytes) -> None:
    assert parse_header(header) == ("float32", (3, 4))


def test_one_dimension_has_the_same_bytes_in_either_order() -> None:
    assert parse_header(text(order="True", shape="(5,)")) == ("float32", (5,))
    assert parse_header(text(order="True", shape="(1, 5, 1)")) == ("float32", (1, 5, 1))


@pytest.mark.parametrize(
    ("header", "error", "says"),
    [
        (text("'>f4'"), DTypeError, "big-endian.*newbyteorder"),
        (text("'>c16'"), DTypeError, "big-endian"),
        (text("'|O'"), DTypeError, "'|O' cannot be stored"),
        (text("'O'"), DTypeError, "cannot be stored"),
        (text("'<U5'"), DTypeError, "cannot be stored"),
        (text("'|S5'"), DTypeError, "cannot be stored"),
        (text("'<V2'"), DTypeError, "bfloat16.*POST /v1/call"),
        (text("'<M8[ns]'"), DTypeError, "these are"),
        (text("'<f16'"), DTypeError, "these are"),
        (text("'f4,f4'"), DTypeError, "these are"),
        (text("'(1000,1000)f4'"), DTypeError, "these are"),
        (text("[('a', '<f4'), ('b', '<i4')]"), DTypeError, "structured"),
        (text("('<f4', (2,))"), DTypeError, "structured"),
        (text(order="True"), ShapeError, "Fortran order.*ascontiguousarray"),
        (text(order="'True'"), InvalidRequest, "neither True nor False"),
        (text(shape="(3)"), InvalidRequest, "tuple of sizes"),
        (text(shape="True"), InvalidRequest, "tuple of sizes"),
        (text(shape="(-3,)"), InvalidRequest, "not read"),
        (text(shape="(3.0,)"), InvalidRequest, "not read"),
        (text(shape="(,)"), InvalidRequest, "tuple of sizes"),
        (text(shape="(3 4,)"), InvalidRequest, "tuple of sizes"),
        (text(shape="(" + "9" * 5000 + ",)"), InvalidRequest, "tuple of sizes"),
        (text(shape="(4294967296, 4294967296)"), ShapeError, "more than any array"),
        (text(shape="(0, 9223372036854775808)"), ShapeError, "more than any array"),
        (text(shape="(" + "1, " * 33 + ")"), ShapeError, "rank 33"),
        (text(end=", 'more': True}"), InvalidRequest, "not read"),
        (text(end=", 'shape': (3, 4)}"), InvalidRequest, "not read"),
        (text(end=""), InvalidRequest, "not read"),
        (text(end="} + {}"), InvalidRequest, "not read"),
        (text("__import__('os').system('true')"), InvalidRequest, "not read"),
        (b"", InvalidRequest, "not read"),
        (b"{}", InvalidRequest, "not read"),
        (b"\xff\xfe\x00", InvalidRequest, "not read"),
    ],
)
def test_a_header_that_no_plain_array_has_is_refused_by_name(
    header: bytes, error: type[ShardserveError], says: str
) -> None:
    with pytest.raises(error, match=says) as caught:
        parse_header(header)
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "begins with"),
        (b"PK\x03\x04" + bytes(100), "begins with"),
        (MAGIC + b"\x04\x00" + bytes(100), "version 4"),
        (saved(np.zeros(5))[:50], "cut off: its header"),
        (saved(np.zeros(5))[:-1], "cut off: it takes 168 bytes"),
        (saved(np.zeros(5)) + b"x", "1 bytes follow"),
        (saved(np.zeros(5)) * 2, "bytes follow"),
    ],
)
def test_a_body_that_is_no_whole_file_is_refused(raw: bytes, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        read(raw)


def test_a_header_of_more_than_64_kib_is_refused_before_it_is_read() -> None:
    with pytest.raises(TooLarge, match="at most 65536"):
        read(MAGIC + b"\x02\x00" + (65537).to_bytes(4, "little"), length=10**9)
    padded = text() + b" " * (65536 - len(text()))
    raw = MAGIC + b"\x02\x00" + (65536).to_bytes(4, "little") + padded + bytes(48)
    assert read(raw).shape == (3, 4)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "int4"])
def test_a_dtype_without_an_npy_form_is_refused_with_what_works(name: str) -> None:
    with pytest.raises(UnsupportedMediaType, match="frame.*astype"):
        encode_header(name, (3,))


@given(st.binary(max_size=200) | st.text(alphabet="{}'\":,()[] descrfotnhapTFu<4|10O", max_size=200).map(str.encode))
def test_no_header_is_anything_but_read_or_refused(header: bytes) -> None:
    """B2."""
    with contextlib.suppress(ShardserveError):
        parse_header(header)


@pytest.mark.parametrize("piece", [b" ", b"'", b"(", b"'descr': ", b"1, ", b"{", b"\n", b"'a': (1,), ", b"9"])
def test_the_largest_header_takes_milliseconds(piece: bytes) -> None:
    """B1."""
    began = time.perf_counter()
    for header in (
        b"{" + piece * (65000 // len(piece)),
        text(shape="(" + (piece * (60000 // len(piece))).decode() + ")"),
    ):
        with contextlib.suppress(ShardserveError):
            parse_header(header)
    assert time.perf_counter() - began < 0.5
