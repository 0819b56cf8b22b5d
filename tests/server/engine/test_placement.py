"""Placement: padding, merging of specs and resources, and the policy for what is left open."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardserve_proto.abstract import Aval
from shardserve_proto.errors import ShardingError
from shardserve_proto.specs import AUTO, P, parse_axes
from shardserve_server.engine.placement import (
    is_worth_spreading,
    merge,
    open_spec,
    place,
    place_freely,
)

F32 = np.dtype(np.float32)
GRID = (("x", 4), ("y", 2))
EIGHT = (("devices", 8),)
NOTHING = parse_axes([...])


@given(size=st.integers(0, 10_000), rows=st.integers(1, 9))
def test_a_split_dimension_is_padded_to_the_next_multiple(size: int, rows: int) -> None:
    placed = place(Aval((size, 3), F32), P("d"), (("d", rows),))
    assert placed.padded_shape[0] % rows == 0
    assert 0 <= placed.padded_shape[0] - size < rows
    assert placed.padded_shape[1] == 3


def test_a_dimension_on_two_mesh_axes_is_split_by_their_product() -> None:
    assert place(Aval((9, 9), F32), P(("x", "y")), GRID).padded_shape == (16, 9)


def test_resources_fill_the_named_dimensions_of_an_open_spec() -> None:
    axes = parse_axes({1: "batch"})
    assert merge(AUTO, axes, {"batch": ("x", "y")}, ndim=2, mesh=GRID, what="a") == P(None, ("x", "y"))
    assert merge(AUTO, NOTHING, {"batch": ("x",)}, ndim=2, mesh=GRID, what="a") is None


def test_a_spec_and_resources_may_say_the_same_but_not_two_things() -> None:
    axes = parse_axes(["rows", ...])
    agreed = merge(P("x", "y"), axes, {"rows": ("x",)}, ndim=2, mesh=GRID, what="a")
    assert agreed == P("x", "y")
    assert merge(P(None, "y"), axes, {"rows": ("x",)}, ndim=2, mesh=GRID, what="a") == P("x", "y")
    with pytest.raises(ShardingError, match="'rows', which axis_resources put on"):
        merge(P("y"), axes, {"rows": ("x",)}, ndim=2, mesh=GRID, what="a")
    with pytest.raises(ShardingError, match="'x' stands twice"):
        merge(P(None, "x"), axes, {"rows": ("x",)}, ndim=2, mesh=GRID, what="a")


def test_trailing_whole_dimensions_make_no_other_spec() -> None:
    assert merge(P("x", None), NOTHING, {}, ndim=2, mesh=GRID, what="a") == P("x")
    assert merge(P(None, None), NOTHING, {}, ndim=2, mesh=GRID, what="a") == P()


@pytest.mark.parametrize(
    ("spec", "ndim", "message"),
    [
        (P("nope"), 1, r"axis 'nope' of P\('nope'\) is not on the mesh \(x=4, y=2\)"),  # B25
        (P("x", "x"), 2, "'x' stands twice"),
        (P("x", "y", None), 1, "has 3 entries, but the array has rank 1"),
        (P("x"), 0, "rank 0 .* give the call a batch axis"),  # B24
    ],
)
def test_a_spec_that_the_array_or_mesh_does_not_allow_is_named(spec: P, ndim: int, message: str) -> None:
    with pytest.raises(ShardingError, match=message):
        merge(spec, NOTHING, {}, ndim=ndim, mesh=GRID, what="argument 0")


def test_the_policy_splits_the_longest_unnamed_dimension_of_large_arrays_only() -> None:
    assert open_spec(Aval((3, 10**6), F32), NOTHING, EIGHT) == P(None, "devices")
    assert open_spec(Aval((3, 10**6), F32), NOTHING, GRID) == P(None, ("x", "y"))
    assert open_spec(Aval((1000, 10**6), F32), parse_axes({1: "n"}), EIGHT) == P("devices")
    assert open_spec(Aval((100,), F32), NOTHING, EIGHT) == P()
    assert open_spec(Aval((2, 2, 2**20), F32), parse_axes({2: "n"}), EIGHT) == P()


def test_small_calls_stay_on_one_device_whatever_the_mesh() -> None:
    assert not is_worth_spreading([Aval((1000,), F32)], EIGHT)
    assert is_worth_spreading([Aval((10**7,), F32)], EIGHT)
    assert not is_worth_spreading([Aval((10**7,), F32)], (("d", 1),))


def test_an_output_left_to_the_compiler_is_padded_so_that_it_may_be_split() -> None:
    assert place_freely(Aval((17, 16), F32), EIGHT).padded_shape == (24, 16)
    assert place_freely(Aval((10**6 + 1, 3), F32), EIGHT).padded_shape == (10**6 + 8, 3)
    assert place_freely(Aval((), F32), EIGHT).padded_shape == ()
