"""Resident arrays through the SDK against a real server: what goes up comes down, and computes, as NumPy's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardserve as ss
from shardserve import P
from shardserve_proto.dtypes import DTYPES

MESH = {"x": 2, "y": 4}
SPECS = [ss.AUTO, None, P("x"), P(None, "y"), P("x", "y"), P("y", "x"), P(("x", "y")), P(None, ("y", "x"))]
SHAPES = [(16, 8), (17, 9), (1, 1), (3, 100), (0, 5), (5, 0), (2, 3, 5), (9,), ()]


def sample(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(len(shape))
    raw = rng.integers(0, 256, (*shape, DTYPES[dtype].itemsize), np.uint8)
    if dtype == "bool" or "int4" in dtype:
        return rng.integers(0, 2, shape).astype(DTYPES[dtype])
    return raw.view(DTYPES[dtype]).reshape(shape)


def fits(spec: Any, shape: tuple[int, ...]) -> bool:
    return not isinstance(spec, P) or len(spec) <= len(shape)


# --- round trips -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_dtype_comes_back_bit_for_bit(client: ss.Client, dtype: str) -> None:
    x = sample((13, 6), dtype)
    for spec in (ss.AUTO, P("x", "y")):
        got = client.put(x, spec, mesh=MESH).numpy()
        assert (got.dtype, got.shape) == (x.dtype, x.shape)
        assert got.tobytes() == x.tobytes()


@pytest.mark.parametrize("shape", SHAPES)
def test_every_spec_holds_uneven_and_empty_sizes(client: ss.Client, shape: tuple[int, ...]) -> None:
    x = sample(shape, "int32")
    for spec in (spec for spec in SPECS if fits(spec, shape)):
        h = client.put(x, spec, mesh=MESH)
        np.testing.assert_array_equal(h.numpy(), x)
        assert h.shape == shape
        assert isinstance(h.visualize(), str)
        if spec is None:
            assert h.spec == P()


LAYOUTS: dict[str, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = {
    "fortran": np.asfortranarray,
    "strided": lambda x: np.repeat(x, 2, axis=0)[::2],
    "reversed": lambda x: x[::-1, ::-1],
    "big-endian": lambda x: x.astype(">f4"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_arrives_with_its_values_and_fills_any_target(client: ss.Client, layout: str) -> None:
    x = LAYOUTS[layout](np.arange(96, dtype=np.float32).reshape(12, 8))
    h = client.put(x, P("x", "y"), mesh=MESH)
    target = LAYOUTS[layout](np.zeros((12, 8), np.float32))
    assert client.get(h, out=target) is target
    np.testing.assert_array_equal(target, x)
    np.testing.assert_array_equal(h.numpy(), x)


def test_several_megabytes_go_up_and_come_down_into_the_caller_s_array(client: ss.Client) -> None:
    x = np.random.default_rng(0).random((3001, 501))
    seen: list[ss.Progress] = []
    h = client.put(x, P("devices"), progress=seen.append)
    out = np.empty_like(x)
    assert client.get(h, out=out, progress=seen.append) is out
    np.testing.assert_array_equal(out, x)
    assert {p.direction for p in seen} == {"sent", "received"}


def test_trees_go_up_and_down_by_one_call_each(client: ss.Client) -> None:
    tree = {"w": np.ones((8, 4), np.float32), "rest": [np.arange(3), (np.float64(2.5),)], "none": None}
    with client.record() as log:
        handles = client.put(tree)
        found = client.get(handles)
    assert [call.title for call in log] == ["put", "get"]
    assert found["none"] is None
    np.testing.assert_array_equal(found["w"], tree["w"])
    np.testing.assert_array_equal(found["rest"][0], np.arange(3))
    assert found["rest"][1] == (2.5,)


# --- parts, and other layouts ----------------------------------------------------------------------------------------


KEYS: list[Any] = [np.s_[:10], np.s_[3], np.s_[-1, 2], np.s_[::-3, 1:], np.s_[5:5], np.s_[..., None, 0]]


@pytest.mark.parametrize("spec", [None, P("x"), P("y", "x")])
def test_a_part_is_cut_on_the_server_and_alone_comes_down(client: ss.Client, spec: Any) -> None:
    x = np.arange(17 * 9).reshape(17, 9)
    h = client.put(x, spec, mesh=MESH)
    for key in KEYS:
        with client.record() as log:
            got = np.asarray(h[key])
        np.testing.assert_array_equal(got, x[key])
        assert got.shape == x[key].shape
        assert log[0].received_bytes < 2000 + got.nbytes
    np.testing.assert_array_equal(h[2:9][1:3, ::-1].numpy(), x[2:9][1:3, ::-1])
    kept = h[3:].keep()
    assert isinstance(kept, ss.RemoteArray)
    np.testing.assert_array_equal(client.matmul(h[:4], x.T, keep=False), x[:4] @ x.T)
    np.testing.assert_array_equal(client.run(lambda a, b: a @ b["w"], h[:4], {"w": h[1:10]}).numpy(), x[:4] @ x[1:10])
    with pytest.raises(IndexError, match="out of bounds"):
        h[17]


def test_a_large_part_is_split_over_the_devices_as_its_array_is(client: ss.Client) -> None:
    x = np.random.default_rng(4).random((1001, 129))
    h = client.put(x, P("x", "y"), mesh=MESH)
    kept = h[3:-2].keep()
    assert kept.spec == P("x", "y")
    np.testing.assert_array_equal(kept.numpy(), x[3:-2])
    np.testing.assert_array_equal(h[::2, None, ::-1].numpy(), x[::2, None, ::-1])
    other = client.put(x, P("devices"))
    found = client.get([h[1:], other, other[:-1], h])
    for got, wanted in zip(found, (x[1:], x, x[:-1], x), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_small_part_takes_no_more_than_its_split_needs(client: ss.Client) -> None:
    x = np.random.default_rng(5).random((1000, 3))
    with client.put(x, P("devices")) as h:
        for part, rows in ((h[:500], 63), (h[1:4], 1), (h[1:1], 0)):
            kept = part.keep()
            assert kept.spec == P("devices")
            assert kept._placement.shard_shape == (rows, 3)
            np.testing.assert_array_equal(kept.numpy(), part.numpy())


def test_reshard_leaves_the_values_and_the_old_array_as_they_are(client: ss.Client) -> None:
    x = np.arange(60.0).reshape(12, 5)
    h = client.put(x, P("x"), mesh=MESH)
    other = h.reshard(P(None, "y"))
    assert (h.spec, other.spec, other.mesh) == (P("x"), P(None, "y"), MESH)
    elsewhere = other.reshard(P("devices"), mesh={"devices": 8})
    assert elsewhere.mesh == {"devices": 8}
    for array in (h, other, elsewhere, other.reshard(None)):
        np.testing.assert_array_equal(array.numpy(), x)


def test_a_call_on_another_mesh_moves_the_array_for_itself_and_says_so(client: ss.Client) -> None:
    x = np.arange(24.0).reshape(6, 4)
    h = client.put(x, P("x"), mesh=MESH)
    done = client.call("exp", h, mesh={"devices": 8}, keep=False)
    np.testing.assert_allclose(done.value, np.exp(x))
    assert done.report.arguments[0].moved
    assert "moved here for this call" in str(done)
    assert client.attach(h.id).spec == P("x")


# --- in calls --------------------------------------------------------------------------------------------------------


def either(client: ss.Client, arrays: list[np.ndarray[Any, Any]], resident: list[bool], spec: Any) -> list[Any]:
    """The arrays, some of them on the devices."""
    return [
        client.put(x, spec if fits(spec, x.shape) else ss.AUTO, mesh=MESH) if is_there else x
        for x, is_there in zip(arrays, resident, strict=True)
    ]


@ss.xmap(in_axes=["rows", "cols"], out_axes=["rows", "cols"], axis_resources={"rows": "x", "cols": "y"})
def normalize(x: Any) -> Any:
    return x / ss.psum(x, ("rows", "cols"))


@ss.jit(in_shardings=(P("x"), None), out_shardings=P(None, "y"))
def product(a: Any, b: Any) -> Any:
    return a @ b.T


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "xmap": (lambda a, b: normalize(a) + b * 0, lambda a, b: a / a.sum() + b * 0),
    "jit": (product, lambda a, b: a @ b.T),
    "vmap": (ss.vmap(ss.dot, in_axes=(0, 0)), lambda a, b: (a * b).sum(1)),
    "slices": (lambda a, b: a[::-1, :1] * b, lambda a, b: a[::-1, :1] * b),
    "several": (lambda a, b: {"a": a.sum(0), "b": (a * 2, b)}, lambda a, b: {"a": a.sum(0), "b": (a * 2, b)}),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=12, deadline=None)
@given(
    rows=st.integers(1, 9), cols=st.integers(1, 9), resident=st.lists(st.booleans(), min_size=2, max_size=2),
    spec=st.sampled_from(SPECS),
)  # fmt: skip
def test_functions_on_handles_equal_numpy(
    local_client: ss.Client, name: str, rows: int, cols: int, resident: list[bool], spec: Any
) -> None:
    function, reference = FUNCTIONS[name]
    arrays = [np.arange(1, rows * cols + 1, dtype=np.float64).reshape(rows, cols) / n for n in (1, 3)]
    got = local_client.run(function, *either(local_client, arrays, resident, spec), mesh=MESH)
    wanted = reference(*arrays)
    if name == "several":
        assert isinstance(got["a"], ss.RemoteArray) == any(resident)
        got = local_client.get(got) if any(resident) else got
        got, wanted = [got["a"], *got["b"]], [wanted["a"], *wanted["b"]]
    else:
        assert isinstance(got, ss.RemoteArray) == any(resident)
        got, wanted = [np.asarray(got)], [wanted]
    for mine, theirs in zip(got, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


def test_kernels_take_handles_with_axes_and_shardings(client: ss.Client) -> None:
    a, b = np.random.default_rng(1).random((2, 3, 50))
    ha, hb = client.put([a, b], P(None, "devices"))
    axes: dict[str, Any] = {
        "in_axes": ({1: "batch"}, {1: "batch"}), "out_axes": ["batch", ...], "axis_resources": {"batch": "devices"}
    }  # fmt: skip
    found = client.dot(ha, hb, **axes)
    assert isinstance(found, ss.RemoteArray)
    np.testing.assert_allclose(found.numpy(), np.einsum("ki,ki->i", a, b))
    np.testing.assert_allclose(client.dot(ha, b, keep=False, **axes), np.einsum("ki,ki->i", a, b))
    once = client.einsum("ki,ki->", ha, hb, keep=False)
    np.testing.assert_allclose(once, (a * b).sum())
    assert client.sum(ha, axis=0).shape == (50,)
    assert client.where(client.greater(ha, 0.5), ha, 0).shape == (3, 50)


def test_a_handle_may_stand_twice_in_a_call_and_results_feed_others(client: ss.Client) -> None:
    x = np.random.default_rng(2).random((6, 6))
    h = client.put(x)
    y = h
    for _ in range(3):
        y = client.matmul(y, h)
    np.testing.assert_allclose(client.add(y, y).numpy(), 2 * np.linalg.matrix_power(x, 4))
