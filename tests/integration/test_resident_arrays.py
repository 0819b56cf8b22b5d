"""Resident arrays through the SDK against a real server: what goes up comes down, and computes, as NumPy's own."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardserve as ss
from shardserve import P
from shardserve_proto.dtypes import DTYPES
from tests.server.front.serving import eventually

from .serving import launch

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


# --- names, leases, owners -------------------------------------------------------------------------------------------


def test_a_name_moves_to_a_new_array_and_old_handles_keep_the_old_one(client: ss.Client) -> None:
    old = client.put(np.zeros(5), name="moving")
    with pytest.raises(ss.NameTaken, match="replace=True moves it"):
        client.put(np.ones(5), name="moving")
    new = client.put(np.ones(5), name="moving", replace=True)
    assert client.attach("moving").id == new.id
    assert client.get("moving").tolist() == [1.0] * 5
    assert old.numpy().tolist() == [0.0] * 5
    client.delete("moving")
    with pytest.raises(ss.NotFound, match="no array has the name 'moving'"):
        client.attach("moving")


def test_calls_that_run_while_a_name_moves_have_the_old_array_or_the_new_one(client: ss.Client) -> None:
    size = 4096
    client.put(np.zeros(size), name="swapped")
    stop = threading.Event()

    def read() -> set[float]:
        seen: set[float] = set()
        while not stop.is_set():
            found = client.get("swapped")
            assert len(set(found.tolist())) == 1, "half of one array and half of another"
            seen.add(float(found[0]))
        return seen

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        for number in range(1, 20):
            client.put(np.full(size, float(number)), name="swapped", replace=True)
        stop.set()
        assert set.union(*(reader.result() for reader in readers)) <= set(map(float, range(20)))
    client.delete("swapped")


def test_a_lease_that_is_over_is_told_and_uses_renew_it(client: ss.Client) -> None:
    h = client.put(np.ones(3), ttl=0.6)
    lease = h.lease
    assert lease.ttl_s == 0.6
    for _ in range(4):
        time.sleep(0.25)
        assert client.sum(h, keep=False) == 3.0
    assert h.renew(0.2).ttl_s == 0.2
    time.sleep(0.4)
    with pytest.raises(ss.Expired, match=r"its lease of 0\.2 s is over"):
        client.sum(h)
    with pytest.raises(ss.Expired, match="lease"):
        client.attach(h.id)


def test_a_pinned_array_has_no_lease(client: ss.Client) -> None:
    h = client.put(np.ones(3), ttl=60)
    assert h.pin() == h.lease == ss.Lease(None, None, True)
    assert h.renew(60).ttl_s == 60
    h.delete()
    with pytest.raises(ss.Expired, match="it was deleted"):
        client.attach(h.id)


def test_arrays_and_memory_tell_what_is_there(client: ss.Client) -> None:
    before = client.memory()
    h = client.put(np.zeros((64, 64)), None, mesh=MESH, name="listed")
    (listed,) = [info for info in client.arrays() if info.name == "listed"]
    assert (listed.id, listed.nbytes, listed.device_bytes) == (h.id, 32768, 8 * 32768)
    assert "listed" in str(client.arrays())
    assert client.memory().own_resident_bytes - before.own_resident_bytes >= 8 * 32768
    client.delete(h)


KEYS_FILE = f"alice {'a1b2c3d4' * 5}\nbob {'e5f6a7b8' * 5}\n"


@pytest.fixture(scope="module")
def two_owners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ss.Client, ss.Client]]:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(KEYS_FILE)
    path.chmod(0o600)
    keys = [line.split()[1] for line in KEYS_FILE.splitlines()]
    with (
        launch("--key-file", str(path)) as server,
        ss.Client(server.url, api_key=keys[0]) as alice,
        ss.Client(server.url, api_key=keys[1]) as bob,
    ):
        yield alice, bob


def test_another_owner_s_array_is_not_found_by_id_or_name(two_owners: tuple[ss.Client, ss.Client]) -> None:
    alice, bob = two_owners
    h = alice.put(np.ones(4), name="secret")
    for asked in (h.id, "secret"):
        with pytest.raises(ss.NotFound):
            bob.attach(asked)
        with pytest.raises(ss.NotFound):
            bob.delete(asked)
    forged = ss.RemoteArray(bob, bytes.fromhex(h.id), h._placement, mesh=(), devices=(0,))
    with pytest.raises(ss.NotFound, match="there is no array"):
        bob.get(forged)
    assert bob.put(np.zeros(2), name="secret").shape == (2,), "names are of each owner's own"
    assert len(bob.arrays()) == 1
    assert alice.get("secret").tolist() == [1.0] * 4


# --- the end of arrays -----------------------------------------------------------------------------------------------


def ids(client: ss.Client) -> set[str]:
    return {info.id for info in client.arrays()}


def test_dropped_arrays_are_released_and_named_ones_stay(client: ss.Client) -> None:
    dropped = [client.put(np.ones(3)) for _ in range(5)]
    results = [client.exp(h) for h in dropped]
    named = client.put(np.ones(3), name="stays")
    keys, name_id = {h.id for h in (*dropped, *results)}, named.id
    del dropped, results, named
    until = time.monotonic() + 10
    while ids(client) & keys:
        assert time.monotonic() < until
        time.sleep(0.1)
    assert name_id in ids(client)
    client.delete("stays")


def test_a_loop_that_drops_its_results_does_not_fill_the_devices(client: ss.Client) -> None:
    h = client.put(np.ones((1024, 1024)))  # 8 MiB
    for _ in range(20):
        client.negative(h)
    assert len([info for info in client.arrays() if info.shape == (1024, 1024)]) <= 5


def test_threads_share_handles(client: ss.Client) -> None:
    x = np.random.default_rng(3).random((64, 64))
    h = client.put(x)

    def work(number: int) -> float:
        return float(np.asarray(client.sum(client.multiply(h, float(number)))))

    with ThreadPoolExecutor(8) as pool:
        totals = list(pool.map(work, range(40)))
    np.testing.assert_allclose(totals, [x.sum() * number for number in range(40)])


def test_the_async_client_shares_arrays_with_the_blocking_one(client: ss.Client) -> None:
    x = np.arange(12.0).reshape(3, 4)

    async def run() -> None:
        async with ss.AsyncClient(client.url) as other:
            h = await other.put(x, P("devices"))
            assert client.attach(h.id).numpy().tolist() == x.tolist()
            several = await asyncio.gather(*(other.matmul(h, x.T * n) for n in range(8)))
            for n, product in enumerate(await other.get(several)):
                np.testing.assert_allclose(product, x @ x.T * n)
            np.testing.assert_array_equal(await h[1:].numpy(), x[1:])

    asyncio.run(run())


def test_after_the_engine_s_death_an_unpinned_handle_says_so_and_a_pinned_one_works() -> None:
    with launch() as server, ss.Client(server.url) as client:
        lost, pinned = client.put(np.arange(5.0)), client.put(np.arange(6.0), P("devices"), name="kept", pinned=True)
        os.kill(server.engine_pid, signal.SIGKILL)
        eventually(lambda: not server.is_ready(), within_s=5)
        assert client.sum(pinned, keep=False) == 15.0, "the call waits for the new engine"
        with pytest.raises(ss.Expired, match="lost when the engine died; put it again, or pin it"):
            client.sum(lost)
        assert client.get("kept").tolist() == list(range(6))
        assert client.attach(pinned.id).spec == P("devices")


def test_a_name_that_moves_again_and_again_takes_the_room_of_what_it_left() -> None:
    """Replaced arrays have a last chance of a minute, but never at the cost of a call that finds no room."""
    with launch("--memory-bytes", "64MiB", devices=8) as server, ss.Client(server.url) as client:
        for turn in range(8):
            client.put(np.full(20 * 2**17, turn, np.float64), name="cat", replace=turn > 0, timeout=20)
        assert client.get("cat")[0] == 7
