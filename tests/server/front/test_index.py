"""Slices in the query of a download mean what they mean between NumPy's brackets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shardserve_proto.errors import InvalidRequest, ShapeError, ShardserveError
from shardserve_server.front.index import MOST_CHARACTERS, Slice, parse_index
from tests.calls import Array


def written(index: object) -> str:
    """An index as a user types it."""
    if index is Ellipsis:
        return "..."
    if isinstance(index, slice):
        parts = ["" if part is None else str(part) for part in (index.start, index.stop)]
        return ":".join([*parts, str(index.step)] if index.step is not None else parts)
    return str(index)


def cut(array: Array, wanted: Slice) -> Array:
    """What the kernels `slice` and `reshape` make of it."""
    for dimension, bounds in enumerate(zip(wanted.starts, wanted.stops, wanted.steps, strict=True)):
        array = np.take(array, list(range(*bounds)), axis=dimension)
    return array.reshape(wanted.shape)


@given(data=st.data())
def test_any_basic_index_takes_what_numpy_takes(data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=5))
    index = data.draw(hnp.basic_indices(shape, allow_newaxis=False))
    entries = index if isinstance(index, tuple) else (index,)
    array = np.arange(int(np.prod(shape))).reshape(shape)
    if not entries:
        return  # nothing is written as no text, which is no index
    expected = np.asarray(array[entries])
    found = parse_index(", ".join(map(written, entries)), shape)
    assert found.shape == expected.shape
    np.testing.assert_array_equal(cut(array, found), expected)


def test_ranges_are_cut_to_the_array_and_positions_count_from_the_end() -> None:
    assert parse_index("0:10,::2,3", (4, 5, 6)) == Slice((0, 0, 3), (4, 5, 4), (1, 2, 1), (4, 3))
    assert parse_index("...,-1", (4, 5, 6)).shape == (4, 5)
    assert parse_index("::-1", (3,)) == Slice((2,), (-1,), (-1,), (3,))
    assert parse_index("2,", (3, 4)).shape == (4,)


@pytest.mark.parametrize("huge", [10**18, 10**20, 10**400], ids=["18", "20", "400"])
def test_ends_and_steps_of_any_size_are_cut_as_numpy_cuts_them(huge: int) -> None:
    array = np.arange(20).reshape(4, 5)
    for text, index in (
        (f"0:{huge}", np.s_[0:huge]),
        (f"-{huge}:{huge}:{huge}", np.s_[-huge:huge:huge]),
        (f"::-{huge}", np.s_[::-huge]),
        (f"3:-{huge}:-1,1::{huge}", np.s_[3:-huge:-1, 1::huge]),
        (f"{huge}:", np.s_[huge:]),
    ):
        found = parse_index(text, array.shape)
        np.testing.assert_array_equal(cut(array, found), array[index])
        assert all(abs(bound) < 2**63 for bound in (*found.starts, *found.stops, *found.steps)), "as the wire has it"


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("", InvalidRequest, "basic indexing"),
        ("a", InvalidRequest, "'a' is no position"),
        ("None", InvalidRequest, "no position"),
        ("[0]", InvalidRequest, "no position"),
        ("1.5", InvalidRequest, "no position"),
        ("0:1:2:3", InvalidRequest, "no position"),
        ("::0", InvalidRequest, "step of 0"),
        ("...,...", InvalidRequest, "more than one ellipsis"),
        ("0,,1", InvalidRequest, "no position"),
        ("9" * 30, ShapeError, "position 9{24} is out of bounds"),
        ("0," * MOST_CHARACTERS, InvalidRequest, "characters"),
        ("4", ShapeError, "position 4 is out of bounds for dimension 0, which has the size 4"),
        ("-5", ShapeError, "position -5"),
        ("0,0,0", ShapeError, "3 entries, but the array has rank 2"),
        ("...,0,0,0", ShapeError, "rank 2"),
    ],
)
def test_what_is_no_index_of_the_array_is_refused_by_name(text: str, error: type[ShardserveError], says: str) -> None:
    with pytest.raises(error, match=says):
        parse_index(text, (4, 5))
