"""Parts of resident arrays are NumPy's slices, whatever the layout, and no index is compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardserve_proto.errors import ShapeError
from shardserve_proto.programs import Program, Step
from shardserve_server.engine.engine import Engine
from tests.residents import Handle, put, run

LAYOUTS: list[dict[str, Any]] = [
    {},
    {"mesh": "default", "out_shardings": (("devices",),)},
    {"mesh": "default", "out_shardings": ((None, "devices"),)},
    {"mesh": "grid", "out_shardings": (("x", "y"),)},
    {"mesh": "grid", "out_shardings": (None,)},
    {"mesh": (("d", 5),), "out_shardings": (("d",),)},
]


def slicing(bounds: list[tuple[int, int, int]], shape: tuple[int, ...] | None = None) -> Program:
    starts, stops, steps = zip(*bounds, strict=True)
    taken = Step(kernel="slice", operands=(0,), params={"starts": starts, "stops": stops, "steps": steps})
    reshaped = () if shape is None else (Step(kernel="reshape", operands=(1,), params={"shape": shape}),)
    return Program(inputs=1, steps=(taken, *reshaped), outputs=(1 + len(reshaped),))


@st.composite
def slices(draw: st.DrawFn) -> slice:
    bound = st.one_of(st.none(), st.integers(-15, 15))
    return slice(draw(bound), draw(bound), draw(st.sampled_from([None, 1, 2, 5, -1, -3])))


@given(
    layout=st.sampled_from(LAYOUTS),
    shape=st.tuples(st.integers(0, 13), st.integers(1, 11)),
    rows=slices(),
    cols=slices(),
)
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_part_is_the_slice_of_numpy(
    engine: Engine, layout: dict[str, Any], shape: tuple[int, int], rows: slice, cols: slice
) -> None:
    x = np.random.default_rng(0).random(shape)
    handle = put(engine, x, **layout)
    before = engine.cache.compilations
    (found,) = run(engine, slicing([rows.indices(shape[0]), cols.indices(shape[1])]), handle).values
    np.testing.assert_array_equal(found, x[rows, cols])
    assert engine.cache.compilations == before
    engine.delete("", [handle.id])


def test_an_integer_index_drops_its_dimension(engine: Engine) -> None:
    x = np.arange(12.0).reshape(3, 4)
    outcome = run(engine, slicing([(1, 2, 1), (0, 4, 1)], (4,)), put(engine, x, **LAYOUTS[1]))
    np.testing.assert_array_equal(outcome.values[0], x[1])
    assert outcome.report.arguments[0].spec == ("devices",)
    assert not outcome.report.compiled


def test_a_part_beyond_the_array_is_refused(engine: Engine) -> None:
    with pytest.raises(ShapeError, match="leaves dimension 0"):
        run(engine, slicing([(0, 4, 1)]), put(engine, np.arange(3.0)))


def test_a_part_that_stays_on_the_devices_is_a_program(engine: Engine) -> None:
    x = np.arange(24.0).reshape(6, 4)
    kept = Handle(b"k" * 16)
    run(engine, slicing([(1, 5, 2), (0, 4, 1)]), put(engine, x, **LAYOUTS[1]), keep=[kept.id])
    (found,) = run(engine, slicing([(0, 2, 1), (3, 4, 1)]), kept).values
    np.testing.assert_array_equal(found, x[1:5:2, 3:])
    engine.delete("", [kept.id])


@given(
    layout=st.sampled_from(LAYOUTS),
    shape=st.tuples(st.integers(1, 16), st.integers(1, 5)),
    rows=slices(),
    cols=slices(),
)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_kernel_slice_takes_the_same_elements_on_any_layout(
    engine: Engine, layout: dict[str, Any], shape: tuple[int, int], rows: slice, cols: slice
) -> None:
    """XLA's partitioner takes another element where one is taken with a step."""
    x = np.arange(float(np.prod(shape))).reshape(shape)
    handle, kept = put(engine, x, **layout), Handle(b"s" * 16)
    run(engine, slicing([rows.indices(shape[0]), cols.indices(shape[1])]), handle, keep=[kept.id])
    (found,) = run(engine, Program(inputs=1, outputs=(0,)), kept).values
    engine.delete("", [handle.id, kept.id])
    np.testing.assert_array_equal(found, x[rows, cols])


@pytest.mark.parametrize(
    ("rows", "size"), [(slice(1, None, 8), 8), (slice(4, 8, 8), 8), (slice(9, 11, 5), 16), (slice(-1, -2, -5), 8)]
)
def test_one_element_with_a_step_is_that_element(engine: Engine, rows: slice, size: int) -> None:
    x = np.arange(1.0, size + 1)
    handle, kept = put(engine, x, mesh="default", out_shardings=(("devices",),)), Handle(b"o" * 16)
    run(engine, slicing([rows.indices(size)]), handle, keep=[kept.id])
    (found,) = run(engine, Program(inputs=1, outputs=(0,)), kept).values
    engine.delete("", [handle.id, kept.id])
    np.testing.assert_array_equal(found, x[rows])
