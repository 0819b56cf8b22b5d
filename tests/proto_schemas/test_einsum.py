"""Subscripts are read as `numpy.einsum` reads them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardserve_proto.abstract import Aval, Scope
from shardserve_proto.dtypes import DTYPES
from shardserve_proto.einsum import parse_subscripts
from shardserve_proto.errors import ProgramError, ShapeError, ShardserveError
from shardserve_proto.signatures import BUILTIN

F64 = DTYPES["float64"]


def shape_of(subscripts: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    operands = [Aval(shape, F64) for shape in shapes]
    (result,) = BUILTIN["einsum"].evaluate(operands, {"subscripts": subscripts}, Scope())
    return result.shape


EXAMPLES: list[tuple[str, list[tuple[int, ...]]]] = [
    ("ki,ki->i", [(3, 10), (3, 10)]),
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("ii", [(3, 3)]),
    ("ii->i", [(3, 3)]),
    ("ij->ji", [(2, 3)]),
    ("ba", [(2, 3)]),
    ("i->", [(5,)]),
    ("", [()]),
    ("->", [()]),
    (",->", [(), ()]),
    (",i", [(), (4,)]),
    ("...ij,...jk->...ik", [(7, 2, 3), (7, 3, 4)]),
    ("...ij,...jk->...ik", [(7, 2, 3), (3, 4)]),
    ("...i,...i", [(2, 3), (3,)]),
    ("i...->...", [(3, 2)]),
    ("i->...i", [(3,)]),
    ("...->...", [(3, 2)]),
    ("...i,...i->...i", [(1, 3), (4, 3)]),
    ("a...b->b...a", [(2, 5, 6, 3)]),
    ("i,i->i", [(1,), (3,)]),
    ("i , j -> j i", [(2,), (3,)]),
    ("aA,AB->aB", [(2, 3), (3, 4)]),
    ("ij,ij,ij->i", [(2, 3), (2, 3), (2, 3)]),
    ("i,i->", [(0,), (0,)]),
    ("ij,kl,mn->nmlkji", [(1, 2), (3, 1), (2, 2)]),
]


@pytest.mark.parametrize(("subscripts", "shapes"), EXAMPLES)
def test_a_result_has_the_shape_that_numpy_gives(subscripts: str, shapes: list[tuple[int, ...]]) -> None:
    assert shape_of(subscripts, *shapes) == np.einsum(subscripts, *map(np.ones, shapes)).shape


BAD: list[tuple[str, list[tuple[int, ...]], type[ShardserveError], str]] = [
    ("ij,jk->ik", [(2, 3), (4, 5)], ShapeError, "label 'j' of 'ij,jk->ik' has size 3, but size 4 in operand 1"),
    ("ii->i", [(1, 3)], ShapeError, "label 'i'"),
    ("ij", [(2,)], ShapeError, "2 labels for an operand of rank 1"),
    ("i", [(2, 3)], ShapeError, "1 labels for an operand of rank 2"),
    ("...ij", [(2,)], ShapeError, "rank 1"),
    ("i,j->ij", [(2,)], ShapeError, "2 terms for 1 operands"),
    ("i", [(2,), (3,)], ShapeError, "1 terms for 2 operands"),
    ("i->j", [(2,)], ProgramError, "'j' of 'i->j' is in no operand"),
    ("i->ii", [(2,)], ProgramError, "twice"),
    ("i1->i", [(2, 3)], ProgramError, "labels are letters"),
    ("i.j->i", [(2, 3)], ProgramError, "labels are letters"),
    ("i->j->i", [(2,)], ProgramError, "labels are letters"),
    ("......i", [(2,)], ProgramError, "labels are letters"),
    ("ü->ü", [(2,)], ProgramError, "labels are letters"),
    ("...i->i", [(2, 3)], ProgramError, "no ..."),
]


@pytest.mark.parametrize(("subscripts", "shapes", "error", "text"), BAD)
def test_bad_subscripts_are_named_where_numpy_refuses_them(
    subscripts: str, shapes: list[tuple[int, ...]], error: type[ShardserveError], text: str
) -> None:
    with pytest.raises(ValueError):
        np.einsum(subscripts, *map(np.ones, shapes))
    with pytest.raises(error, match=text):
        shape_of(subscripts, *shapes)


def test_labels_of_an_ellipsis_are_counted_from_the_right() -> None:
    labels = parse_subscripts("...ij,j...->...i", [4, 2])
    assert labels.inputs == (("...1", "...0", "i", "j"), ("j", "...0"))
    assert labels.output == ("...1", "...0", "i")


@st.composite
def einsums(draw: st.DrawFn) -> tuple[str, list[tuple[int, ...]]]:
    """Subscripts over few letters and sizes, some of which do not fit."""
    count = draw(st.integers(1, 3))
    terms, shapes = [], []
    for _ in range(count):
        letters = draw(st.text("abc", max_size=3))
        dots = draw(st.integers(0, 2)) if draw(st.booleans()) else None
        place = draw(st.integers(0, len(letters)))
        terms.append(letters if dots is None else letters[:place] + "..." + letters[place:])
        rank = len(letters) + (dots or 0)
        shapes.append(tuple(draw(st.lists(st.integers(1, 2), min_size=rank, max_size=rank))))
    output = draw(st.none() | st.text("abc", max_size=3) | st.text("abc", max_size=2).map(lambda text: "..." + text))
    return ",".join(terms) + ("" if output is None else "->" + output), shapes


@settings(max_examples=500, deadline=None)
@given(einsums())
def test_random_subscripts_fit_or_fail_exactly_as_in_numpy(case: tuple[str, list[tuple[int, ...]]]) -> None:
    subscripts, shapes = case
    try:
        expected: tuple[int, ...] | None = np.einsum(subscripts, *map(np.ones, shapes)).shape
    except ValueError:
        expected = None
    try:
        given: tuple[int, ...] | None = shape_of(subscripts, *shapes)
    except (ShapeError, ProgramError):
        given = None
    assert given == expected
