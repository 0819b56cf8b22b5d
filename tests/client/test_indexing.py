"""`x[...]` in terms of ranges: NumPy's own answer, for every index of integers, slices, dots and None."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardserve._indexing import BadIndex, part_of

BOUND = st.none() | st.integers(-7, 7)
ENTRY = (
    st.integers(-6, 6)
    | st.just(Ellipsis)
    | st.none()
    | st.builds(slice, BOUND, BOUND, st.none() | st.integers(-3, 3).filter(bool))
)
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)


def numpy_s(x: np.ndarray[Any, Any], key: Any) -> np.ndarray[Any, Any] | None:
    try:
        return np.asarray(x[key])
    except IndexError:
        return None


def ours(x: np.ndarray[Any, Any], key: Any) -> np.ndarray[Any, Any] | None:
    try:
        part = part_of(x.shape, key)
    except IndexError:
        return None
    taken = [list(range(*bounds)) for bounds in zip(part.starts, part.stops, part.steps, strict=True)]
    cut = x[np.ix_(*taken)] if taken else x
    assert cut.shape == part.sizes
    return cut.reshape(part.shape)


@settings(max_examples=500)
@given(shape=SHAPES, key=ENTRY | st.lists(ENTRY, max_size=4).map(tuple))
def test_every_basic_index_takes_what_numpy_takes(shape: tuple[int, ...], key: Any) -> None:
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    wanted, found = numpy_s(x, key), ours(x, key)
    assert (wanted is None) == (found is None)
    if wanted is not None and found is not None:
        assert wanted.shape == found.shape
        np.testing.assert_array_equal(wanted, found)


@pytest.mark.parametrize("key", [[0, 1], np.array([0]), np.array(0), True, (0, [1]), "a", 1.0, np.ones(3, bool)])
def test_other_indices_are_refused_by_their_kind(key: Any) -> None:
    with pytest.raises(BadIndex, match=r"integers, slices, \.\.\. and None, not of a"):
        part_of((3, 3), key)


def test_numpy_s_integers_are_integers() -> None:
    assert part_of((3, 3), (np.int64(1), np.uint8(2))).shape == ()


def test_a_step_of_zero_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="zero"):
        part_of((3,), slice(None, None, 0))
