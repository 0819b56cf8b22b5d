"""Large results by windows: in order they are the array, and none is larger than it may be."""

from __future__ import annotations

import gc
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardserve_server.engine import call, stream
from shardserve_server.engine.engine import Engine
from shardserve_server.engine.transfer import blocks
from tests.residents import TRANSFER, put, run


@given(
    shape=st.lists(st.integers(0, 9), max_size=5), itemsize=st.sampled_from([1, 2, 8, 16]), most=st.integers(16, 3000)
)
@settings(max_examples=300, deadline=None)
def test_blocks_are_bounded_contiguous_and_follow_each_other(shape: list[int], itemsize: int, most: int) -> None:
    x = np.arange(math.prod(shape)).reshape(shape)
    cut = blocks(shape, itemsize=itemsize, most_bytes=most)
    parts = [x[block] for block in cut]
    assert all(part.size * itemsize <= most for part in parts)
    joined = np.concatenate([part.ravel() for part in parts]) if parts else np.zeros(0, int)
    np.testing.assert_array_equal(joined, x.ravel())


def test_few_blocks_cover_an_array_of_long_rows() -> None:
    assert len(blocks((3, 10_000_000), itemsize=4, most_bytes=4 * 2**20)) <= 3 * 10
    assert len(blocks((10_000_000, 3), itemsize=4, most_bytes=4 * 2**20)) <= 29


@pytest.mark.parametrize("spec", [("devices",), (None, "devices"), None])
def test_a_large_result_comes_window_by_window(engine: Engine, monkeypatch: pytest.MonkeyPatch, spec: Any) -> None:
    monkeypatch.setattr(call, "STREAM_BYTES", 1000)
    monkeypatch.setattr(stream, "WINDOW_BYTES", 4096)
    x = np.random.default_rng(0).random((101, 37))
    handle = put(engine, x, out_shardings=(spec,))
    reply = run(engine, TRANSFER, handle, streams=True).reply
    assert reply.segments == []
    assert reply.stream is not None
    found = bytearray()
    for window, nbytes in enumerate(reply.stream.windows[0]):
        assert 0 < nbytes <= 4096
        memory = bytearray(nbytes)
        reply.stream.fill(0, window, memoryview(memory))
        found += memory
    assert bytes(found) == x.tobytes()
    engine.delete("", [handle.id])
    gc.collect()
    before = engine.memory()["resident_bytes"]
    reply.stream.close()
    gc.collect()
    assert engine.memory()["resident_bytes"] < before, "the array counts as long as it is read, deleted or not"
