"""Bug reports about calls, each asked of a real server through the client: NumPy's answer, or a named error.

The ids are those of the project's collection of cases (section B sharding, C named axes, E transport).
"""

from __future__ import annotations

import mmap
import tempfile
from multiprocessing import shared_memory
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import shardserve as ss
from shardserve import P

GRID = {"x": 4, "y": 2}
LINE = {"d": 8}


# --- B. sharding -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["identity", "add"])
def test_a_size_need_not_divide_the_mesh(client: ss.Client, kernel: str) -> None:
    """B16."""
    x = np.arange(5.0)
    operands = (x,) if kernel == "identity" else (x, x)
    found = getattr(client, kernel)(*operands, mesh=GRID, in_shardings=P("x"), out_shardings=P("x"))
    np.testing.assert_array_equal(found, x if kernel == "identity" else x + x)


def test_nothing_is_replicated_in_silence(client: ss.Client) -> None:
    """B17: the report says 3 rows on each device, 24 padded."""
    x = np.random.default_rng(0).random((17, 16), np.float32)
    result = client.call("add", x, x, mesh=LINE, in_shardings=P("d"), out_shardings=P("d"))
    np.testing.assert_array_equal(result.value, x + x)
    (out,) = result.report.outputs
    assert out.padded_shape == (24, 16)
    assert out.shard_shape == (3, 16)


@pytest.mark.parametrize("shape", [(7, 1), (1, 1), (3, 0), (0, 5)])
def test_tiny_and_empty_arrays_can_be_split_and_fetched(client: ss.Client, shape: tuple[int, int]) -> None:
    """B18."""
    x = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    found = client.identity(x, mesh=LINE, in_shardings=P("d"), out_shardings=P("d"))
    assert found.shape == shape
    np.testing.assert_array_equal(found, x)


def test_a_rank_0_result_cannot_be_split_and_the_answer_says_what_can(client: ss.Client) -> None:
    """B24."""
    a = np.ones(3)
    with pytest.raises(ss.ShardingError, match=r"rank 0.*batch axis"):
        client.dot(a, a, mesh=LINE, out_shardings=P("d"))
    assert client.dot(a, a, mesh=LINE, out_shardings=P()) == 3
    assert client.dot(a, a, mesh=LINE, out_shardings=None) == 3
    v = np.random.default_rng(0).random((10, 3))
    rows = client.dot(v, v, in_axes=(0, 0), mesh=LINE, out_shardings=P("d"))
    np.testing.assert_allclose(rows, (v * v).sum(1), rtol=1e-14)


@pytest.mark.parametrize(
    ("x", "mesh", "spec", "message"),
    [
        (np.ones((2, 2)), LINE, P("nope"), r"'nope'.*not on the mesh \(d=8\)"),
        (np.ones((2, 2)), LINE, P("d", "d"), r"'d' stands twice"),
        (np.ones(2), GRID, P("x", "y", None), r"3 entries, but the array has rank 1"),
    ],
)
def test_a_wrong_spec_is_named_without_internal_objects(
    client: ss.Client, x: Any, mesh: dict[str, int], spec: P, message: str
) -> None:
    """B25."""
    with pytest.raises(ss.ShardingError, match=message) as raised:
        client.identity(x, mesh=mesh, in_shardings=spec)
    assert "0x" not in str(raised.value)


# --- C. named axes ---------------------------------------------------------------------------------------------------


def test_a_forgotten_name_is_an_error_and_not_element_0(client: ss.Client) -> None:
    """B29."""
    x = np.arange(3.0)
    for function in (lambda x: x, lambda x: x + ss.axis_index("i")):
        with pytest.raises(ss.AxisError, match="varies along axis 'i'"):
            client.run(ss.xmap(function, in_axes=["i"], out_axes=[...]), x)
    assert client.run(ss.xmap(lambda x: ss.psum(x, "i"), in_axes=["i"], out_axes=[...]), x) == 3.0


@pytest.mark.parametrize("resources", [{}, {"i": "x"}])
def test_a_constant_is_summed_once_for_each_position(client: ss.Client, resources: dict[str, str]) -> None:
    """B30."""
    options: dict[str, Any] = {"axis_sizes": {"i": 4}, "axis_resources": resources}
    square = ss.xmap(lambda: ss.psum(np.array(2) ** 2, "i"), in_axes=(), out_axes=[...], **options)
    one = ss.xmap(lambda: ss.psum(1, "i"), in_axes=(), out_axes=[...], **options)
    with client.mesh(GRID):
        assert client.run(square) == 16
        assert client.run(one) == 4


def test_an_unknown_axis_is_named_with_the_known_ones(client: ss.Client) -> None:
    """B35."""
    with pytest.raises(ss.AxisError, match="unknown axis 'batch'; known axes: 'i'"):
        client.run(ss.xmap(lambda x: ss.psum(x, "batch"), in_axes=["i"], out_axes=["i"]), np.arange(3.0))


@pytest.mark.parametrize(
    ("in_axes", "resources", "message"),
    [
        ((["i"], ["i"]), {}, r"'i' has size 5 in argument 0 .*size 7 in argument 1"),
        ((["i", "j"], ["k"]), {}, "rank"),
        (({-1: "i"}, ["k"]), {}, "negative"),
        ((["i", "i"], ["k"]), {}, "twice"),
        ((["i"], ["k"]), {"i": ("x", "x")}, "twice"),
        ((["i"], ["k"]), {"i": "x", "k": "x"}, "both on mesh axis 'x'"),
    ],
)
def test_axes_that_do_not_agree_are_six_named_errors(
    client: ss.Client, in_axes: Any, resources: dict[str, Any], message: str
) -> None:
    """B36."""

    def call() -> Any:
        product = ss.xmap(lambda x, y: x * y, in_axes=in_axes, out_axes=["i", "k"], axis_resources=resources)
        return client.run(product, np.arange(5), np.arange(7))

    with client.mesh(GRID), pytest.raises(ss.AxisError, match=message):
        call()


def test_axes_may_be_given_as_any_prefix_of_the_arguments(client: ss.Client) -> None:
    """B38."""
    p = [np.arange(3.0), np.arange(3.0), np.ones(3)]
    spec = [["x"], ["x"], ["x"]]
    for in_axes in ([spec], (spec,)):
        found = client.run(ss.xmap(lambda q: q[0] + q[1] * q[2], in_axes=in_axes, out_axes=["x"]), p)
        np.testing.assert_array_equal(found, [0.0, 2.0, 4.0])
    both = ss.xmap(
        lambda d: {"sum": ss.psum(d["a"], "i"), "scaled": d["b"] * 2},
        in_axes=({"a": ["i"], "b": ["i", ...]},),
        out_axes={"sum": [...], "scaled": ["i", ...]},
    )
    found = client.run(both, {"a": np.arange(3.0), "b": np.ones((3, 2))})
    assert found["sum"] == 3.0
    np.testing.assert_array_equal(found["scaled"], np.full((3, 2), 2.0))
    with pytest.raises((ss.AxisError, TypeError), match=r"1-tuple|\(\.\.\.,\)|one argument"):
        client.run(ss.xmap(lambda q: q[0], in_axes=[["x"], ["x"], ["x"]], out_axes=["x"]), p)


# --- E. transport and service ----------------------------------------------------------------------------------------


def test_a_python_scalar_is_compiled_once(client: ss.Client) -> None:
    """B62."""
    x = np.arange(11, dtype=np.float32)
    compiled = []
    for two in (2.0, np.float32(2), np.array(2, np.float32)):
        result = client.call("multiply", x, two)
        assert result.value.dtype == np.float32
        np.testing.assert_array_equal(result.value, x * 2)
        compiled.append(result.report.compiled)
    assert sum(compiled) <= 1
    half = client.multiply(np.ones(3, ml_dtypes.bfloat16), 2.0)
    assert half.dtype.name == "bfloat16"


def test_what_can_never_fit_is_refused_with_the_bytes_it_needs(client: ss.Client) -> None:
    """B68."""
    x = np.ones((2**20, 1), np.float32)
    with pytest.raises(ss.TooLarge, match=str(2**42)):
        client.matmul(x, x.T)
    assert client.dot([1, 2], [3, 4]) == 11


def test_buffers_of_any_origin_arrive_whole(client: ss.Client) -> None:
    """B69; a body shorter than its header says is held by tests/server/front."""
    zeros = np.zeros(1000, np.uint8)
    np.testing.assert_array_equal(client.identity(zeros), zeros)
    over_bytearray = np.frombuffer(bytearray(4000), np.float32)
    np.testing.assert_array_equal(client.identity(over_bytearray), np.zeros(1000, np.float32))
    with tempfile.TemporaryFile() as file:
        file.write(np.arange(500, dtype=np.int64).tobytes())
        file.flush()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            x = np.frombuffer(mapped, np.int64)
            np.testing.assert_array_equal(client.identity(x), np.arange(500))
            del x
    block = shared_memory.SharedMemory(create=True, size=800)
    try:
        assert block.buf is not None
        y = np.frombuffer(block.buf, np.float64)
        y[:] = 3
        assert (client.identity(y) == 3).all()
        del y
    finally:
        block.close()
        block.unlink()
