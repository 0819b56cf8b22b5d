"""Any array a user has arrives with the same shape, dtype and values; what cannot be carried is refused by name."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import shardserve as ss
from shardserve._arrays import arguments_of, as_leaf, buffers_of, describe
from shardserve._options import Defaults
from shardserve._requests import Outgoing, function_call, kernel_call
from shardserve_proto.dtypes import DTYPES, dtype_named
from shardserve_proto.frames import PRELUDE_BYTES, decode_header, decode_prelude, split_segments
from shardserve_proto.messages import CallRequest, SegmentArgument, frame_layout
from shardserve_proto.programs import Constant, validate

BASE = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


def sent(outgoing: Outgoing) -> list[Any]:
    """The arguments as a server reads them from the frame."""
    frame = b"".join(bytes(part) for part in outgoing.frame())
    prelude = decode_prelude(frame)
    header = frame[PRELUDE_BYTES : PRELUDE_BYTES + prelude.header_bytes]
    call = validate(CallRequest, decode_header(header))
    layout = frame_layout(len(header), call.segments, declared=prelude.segments, body_bytes=2**30)
    views = split_segments(frame, len(header), layout)
    arguments: list[Any] = []
    for argument in call.arguments:
        if isinstance(argument, SegmentArgument):
            segment = call.segments[argument.segment]
            array = np.frombuffer(views[argument.segment], np.uint8).view(dtype_named(segment.dtype))
            arguments.append(array.reshape(segment.shape))
        elif isinstance(argument, Constant):
            arguments.append(argument.scalar)
    return arguments


def carried(x: Any) -> Any:
    """One argument, there and read."""
    (found,) = sent(kernel_call("identity", [x], {}, {}, Defaults()))
    return found


LAYOUTS: dict[str, Callable[[], Any]] = {
    "fortran": lambda: np.asfortranarray(BASE),
    "transposed": lambda: BASE.T,
    "reversed": lambda: BASE[::-1],
    "strided": lambda: BASE[:, ::2],
    "broadcast": lambda: np.broadcast_to(np.float32(3), (2, 3)),
    "rank 0": lambda: np.array(0.7, np.float32),
    "numpy scalar": lambda: np.float64(3.0),
    "empty": lambda: np.empty((3, 0, 2), np.int16),
    "big-endian floats": lambda: np.array([0, 1, 0.4, 5.7], ">f8"),
    "big-endian ints": lambda: np.array([1, 2**20], ">i4"),
    "little-endian": lambda: np.array([0, 1, 0.4], "<f8"),
    "over a bytearray": lambda: np.frombuffer(bytearray(4000), np.float32),
    "zeros": lambda: np.zeros(1000, np.uint8),
    "nested list": lambda: [[1, 2], [3, 4]],
    "matrix": lambda: np.eye(2, dtype=np.complex64),
    "NaN and infinities": lambda: np.array([np.nan, np.inf, -np.inf, -0.0]),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_any_layout_arrives_with_shape_dtype_and_values(name: str) -> None:
    """B05, B06, B07, B69."""
    given_ = np.asarray(LAYOUTS[name]())
    found = carried(LAYOUTS[name]())
    assert found.shape == given_.shape
    assert found.dtype == given_.dtype.newbyteorder("=")
    np.testing.assert_array_equal(found, given_)


def test_read_only_and_memory_mapped_arrays_arrive() -> None:
    """B69."""
    frozen = BASE.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(carried(frozen), BASE)
    with tempfile.TemporaryFile() as file:
        file.write(bytes(range(100)))
        file.flush()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
            mapped = np.frombuffer(mapping, np.uint8)
            np.testing.assert_array_equal(carried(mapped), np.arange(100))
            del mapped


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_of_the_table_arrives_by_its_name(name: str) -> None:
    """B08, B09."""
    x = np.array([0, 1, 1, 0]).astype(DTYPES[name])
    found = carried(x)
    assert found.dtype.name == x.dtype.name
    assert found.tobytes() == x.tobytes()


@given(hnp.arrays(st.sampled_from(["<f8", ">f4", "i2", "bool", ">c16"]), hnp.array_shapes(min_dims=0)), st.randoms())
@settings(deadline=None, max_examples=50)
def test_random_views_of_random_arrays_arrive(x: np.ndarray[Any, Any], random: Any) -> None:
    view = x.transpose(random.sample(range(x.ndim), x.ndim))[
        tuple([slice(None, None, random.choice([1, -1, 2]))] * x.ndim)
    ]
    found = carried(view)
    assert found.shape == view.shape
    np.testing.assert_array_equal(found, view)


def test_arrays_in_c_order_are_sent_from_their_own_memory() -> None:
    x = np.arange(1000.0)
    (buffer,) = buffers_of([x])
    assert np.shares_memory(np.frombuffer(buffer, np.uint8), x)
    segments = arguments_of([x])[1]
    assert segments[0].nbytes == x.nbytes


@pytest.mark.parametrize("scalar", [True, 3, -(2**63), 2**64 - 1, 2.5, 1 + 2j, float("inf")])
def test_python_scalars_travel_as_weak_constants(scalar: complex) -> None:
    found = carried(scalar)
    assert type(found) is type(scalar)
    assert found == scalar


@pytest.mark.parametrize("scalar", [2**64, -(2**63) - 1, 10**300])
def test_integers_beyond_64_bits_are_refused_by_position(scalar: int) -> None:
    with pytest.raises(ss.UnsupportedArray, match="argument 1 of add is a Python integer of .* bits"):
        kernel_call("add", [np.ones(2), scalar], {}, {}, Defaults())


REFUSED: dict[str, Callable[[], Any]] = {
    "structured": lambda: np.zeros(2, [("a", "u4"), ("b", "S1")]),
    "text": lambda: np.array(["hi"]),
    "object": lambda: np.array([None, 1], object),
    "bytes": lambda: np.array([b"x"]),
    "datetime": lambda: np.array(["2020-01-01"], "M8[D]"),
    "longdouble": lambda: np.ones(2, np.longdouble),
    "a str": lambda: "hi",
    "None": lambda: None,
    "a set": lambda: {1, 2},
    "a big list": lambda: [1, 2**70],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_carried_is_refused_with_dtype_and_position(name: str) -> None:
    """B10, B11."""
    with pytest.raises(
        ss.UnsupportedArray, match=r"argument 1 of dot .*dtype .*cannot be carried \(supported: bool, int8"
    ) as e:
        kernel_call("dot", [np.ones(2), REFUSED[name]()], {}, {}, Defaults())
    assert isinstance(e.value, TypeError)


def test_a_leaf_of_a_tree_is_named_by_its_path() -> None:
    with pytest.raises(ss.UnsupportedArray, match=r"argument 1\['w'\]\[0\] has the dtype object"):
        function_call(lambda x, _: x, (np.ones(2), {"w": [np.array([None])]}), {}, Defaults())


def test_ragged_lists_and_masked_arrays_are_refused() -> None:
    with pytest.raises(ss.UnsupportedArray, match="NumPy makes no array of argument 0 of identity, a list"):
        carried([[1, 2], [3]])
    with pytest.raises(ss.UnsupportedArray, match="masked array"):
        carried(np.ma.masked_array([1, 2], [True, False]))


def test_an_array_of_too_many_dimensions_is_refused() -> None:
    with pytest.raises(ss.ShapeError, match="argument 0 of identity has rank 40"):
        carried(np.ones((1,) * 40))


def test_equal_descriptions_are_those_of_equal_headers() -> None:
    assert describe([np.ones(2), 1]) == describe([np.zeros(2), 1])
    assert describe([1]) != describe([True])
    assert describe([0.0]) != describe([-0.0])
    assert describe([np.ones(2)]) != describe([np.ones(2, ml_dtypes.bfloat16)])
    assert as_leaf(np.float64(1), what="x").shape == ()  # type: ignore[union-attr]
