"""Bytes to the devices and back: values survive any layout, padding never comes out."""

from __future__ import annotations

from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardserve_proto.abstract import Aval
from shardserve_proto.specs import P
from shardserve_server.engine.engine import Engine, allocate_on_heap
from shardserve_server.engine.mesh import Meshes, sharding
from shardserve_server.engine.placement import place
from shardserve_server.engine.transfer import gather, put_copy, slots, upload, view
from tests.residents import aligned

LAYOUTS: list[tuple[tuple[tuple[str, int], ...], P]] = [
    ((("d", 8),), P("d")), ((("d", 8),), P(None, "d")), ((("d", 5),), P("d")), ((("x", 4), ("y", 2)), P("x", "y")),
    ((("x", 4), ("y", 2)), P("y", "x")), ((("x", 4), ("y", 2)), P(("x", "y"))), ((("x", 4), ("y", 2)), P(("y", "x"))),
    ((("x", 4), ("y", 2)), P(None, "y")), ((("x", 4), ("y", 2)), P()),
]  # fmt: skip


@given(layout=st.sampled_from(LAYOUTS), shape=st.tuples(st.integers(0, 20), st.integers(0, 20)))
@settings(max_examples=60, deadline=None)
def test_an_array_goes_up_and_comes_down_unchanged_in_any_layout(engine: Engine, layout: Any, shape: Any) -> None:
    mesh, spec = layout
    x = np.random.default_rng(0).random(shape)
    placed = place(Aval(shape, x.dtype), spec, mesh)
    where = sharding(engine_meshes(engine).build(mesh), spec)
    (there,) = upload([view(np.frombuffer(x.tobytes(), np.uint8), placed)], [placed], [where])
    assert there.shape == placed.padded_shape
    memory = allocate_on_heap(x.nbytes)
    gather(there, placed, memory)
    assert bytes(memory) == x.tobytes()


def engine_meshes(engine: Engine) -> Meshes:
    return engine._meshes


def test_padding_on_the_devices_is_zero(engine: Engine) -> None:
    x = np.ones((9, 2))
    mesh = (("d", 8),)
    placed = place(Aval(x.shape, x.dtype), P("d"), mesh)
    where = sharding(engine_meshes(engine).build(mesh), P("d"))
    (there,) = upload([x], [placed], [where])
    assert np.asarray(there)[9:].sum() == 0


def test_results_lie_on_64_byte_boundaries_of_one_buffer() -> None:
    outputs = [place(Aval(shape, np.dtype(np.float32)), P(), ()) for shape in [(3,), (17,), (0,), (1,)]]
    found, total = slots(outputs)
    assert [(place.start, place.stop) for place in found] == [(0, 12), (64, 132), (192, 192), (192, 196)]
    assert total == 196


@pytest.mark.parametrize("nbytes", [0, 1, 64, 1000])
def test_memory_of_the_engine_in_process_is_aligned(nbytes: int) -> None:
    memory = allocate_on_heap(nbytes)
    assert memory.nbytes == nbytes
    assert nbytes == 0 or np.frombuffer(memory, np.uint8).ctypes.data % 64 == 0


def test_a_copy_on_a_device_stays_when_the_host_memory_is_written_to() -> None:
    """D4: JAX shares aligned host memory on CPU even when it is told not to."""
    for dtype in (np.float32, np.int8, ml_dtypes.bfloat16):
        host = aligned(np.arange(4096, dtype=np.int64)).view(dtype).reshape(64, -1)
        before = host.tobytes()
        array = put_copy(host, jax.devices()[3])
        host[...] = 0
        assert np.asarray(array).tobytes() == before
        assert array.devices() == {jax.devices()[3]}
