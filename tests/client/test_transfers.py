"""put, get, attach, delete and the rest as requests, against a scripted server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import shardserve as ss
from shardserve._downloads import cut_call
from shardserve_proto.frames import decode_header
from shardserve_proto.messages import ArrayInfo, Holder, MemoryInfo

from .handles import NOWHERE, answer, handle, header_of, ids_of, kept
from .replies import frame, http, refusal

X = np.arange(12, dtype=np.float32).reshape(4, 3)
INFO = ArrayInfo(
    id="ab" * 16, name="w", dtype="float32", shape=(4, 3), spec=None, mesh=(), shard_shape=(4, 3), nbytes=48,
    device_bytes=48, ttl_s=60.0, expires_in_s=59.0,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _releases_wait_for_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardserve._releases.PAUSE_S", 60.0)


@pytest.fixture
def nobody() -> Iterator[ss.Client]:
    with ss.Client(NOWHERE) as client:
        yield client


def told(info: ArrayInfo = INFO) -> bytes:
    return answer(info.model_dump(mode="json"))


def first_line(request: bytes) -> str:
    return request.partition(b"\r\n")[0].decode()


def body_of(request: bytes) -> Any:
    return json.loads(request.partition(b"\r\n\r\n")[2])


# --- put -------------------------------------------------------------------------------------------------------------


def test_a_put_is_a_call_that_computes_nothing_and_keeps_its_results(raw_server: Any) -> None:
    server = raw_server(kept((4, 3)))
    with ss.Client(server.url) as client:
        h = client.put(X, ss.P("x", None), mesh={"x": 2, "y": 4}, name="w", ttl=3600, replace=True)
    header = header_of(server.requests[0])
    assert header["program"] == {"inputs": 1, "outputs": (0,)}
    assert header["results"] == ({"array": 0, "name": "w", "replace": True, "ttl_s": 3600.0},)
    assert header["out_shardings"] == (("x", None),)
    assert header["mesh"] == (("x", 2), ("y", 4))
    assert "in_shardings" not in header
    assert ids_of(server.requests[0]) == [h.id]
    assert (h.name, h.shape) == ("w", (4, 3))


def test_a_tree_is_put_by_one_call(raw_server: Any) -> None:
    server = raw_server(kept((4, 3), (3,), ()))
    with ss.Client(server.url) as client:
        tree = client.put({"w": X, "rest": (X[0], np.float32(2))}, {"w": ss.P("devices"), "rest": None})
        assert [leaf.shape for leaf in (tree["w"], *tree["rest"])] == [(4, 3), (3,), ()]
    assert len([request for request in server.requests if "/v1/call" in first_line(request)]) == 1
    assert header_of(server.requests[0])["out_shardings"] == (("devices",), None, None)


def test_a_large_tree_is_put_and_fetched_by_several_calls(raw_server: Any) -> None:
    first, second = [(1,)] * 255, [(1,)] * 45
    one = np.ones(1, np.float32)
    server = raw_server(kept(*first), kept(*second), http(frame(*[one] * 255)), http(frame(*[2 * one] * 45)))
    with ss.Client(server.url) as client:
        names = {"layers": [f"layer{n}" for n in range(300)]}
        tree = client.put({"layers": [one] * 300}, {"layers": [ss.P("x")] * 300}, name=names)
        assert [leaf.name for leaf in tree["layers"]] == names["layers"]
        out = {"layers": [np.zeros(1, np.float32) for _ in range(300)]}
        assert client.get(tree, out=out)["layers"][299] is out["layers"][299]
        assert (out["layers"][254][0], out["layers"][255][0]) == (1.0, 2.0)
        with pytest.raises(ss.ProgramError, match="more than 255 arrays beside its ids"):
            client.run(lambda xs: xs[0], [one] * 256, keep=True)
    assert [len(header_of(request)["arguments"]) for request in server.requests[:4]] == [255, 45] * 2


def test_labels_of_a_tree_are_a_tree(raw_server: Any, nobody: ss.Client) -> None:
    server = raw_server(kept((4, 3), (3,)))
    with ss.Client(server.url) as client:
        tree = client.put({"w": X, "b": X[0]}, name={"w": "model.w", "b": "model.b"}, pinned=True)
    assert (tree["w"].name, tree["b"].name) == ("model.w", "model.b")
    with pytest.raises(ss.InvalidRequest, match="one label for one array, or a tree"):
        nobody.put({"w": X, "b": X[0]}, name="model")
    with pytest.raises(ss.InvalidRequest, match=r"name gives 'model' to several arrays"):
        nobody.put({"w": X, "b": X[0]}, name={"w": "model", "b": "model"}, replace=True)


def test_put_takes_what_numpy_takes_for_an_array(raw_server: Any) -> None:
    server = raw_server(kept((), dtype="float64"))
    with ss.Client(server.url) as client:
        assert client.put(2.5).dtype == np.float64
    assert header_of(server.requests[0])["segments"][1] == {"dtype": "float64", "shape": (), "nbytes": 8}


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"ttl": 0}, "ttl is a positive number"),
        ({"ttl": float("nan")}, "ttl is a positive number"),
        ({"ttl": True}, "ttl is a positive number"),
        ({"ttl": 5, "pinned": True}, "not both"),
        ({"name": "9lives"}, "an array's name is a letter"),
        ({"name": "ab" * 16}, "32 hex digits are an id"),
        ({"name": 3}, "one label"),
        ({"replace": True}, "replace moves a name, and none is given"),
    ],
)
def test_what_no_array_can_have_is_refused_here(nobody: ss.Client, keywords: Any, message: str) -> None:
    with pytest.raises(ss.InvalidRequest, match=message):
        nobody.put(X, **keywords)


def test_arrays_that_cannot_be_carried_are_named_by_their_place(nobody: ss.Client) -> None:
    with pytest.raises(ss.UnsupportedArray, match=r"the array x\['names'\]\[1\]"):
        nobody.put({"names": [X, np.array(["a"])]})
    with pytest.raises(ss.ProgramError, match="no array"):
        nobody.put({})
    with pytest.raises(ss.ProgramError, match="did you mean 'timeout'"):
        nobody.put(X, timeot=3)  # type: ignore[call-arg]


def test_reshard_moves_an_array_where_it_lies(raw_server: Any) -> None:
    server = raw_server(kept((4, 3)))
    with ss.Client(server.url, mesh="grid") as client:
        h = handle(client)
        h.reshard(ss.P(None, "x"))
        h.reshard(None, mesh={"x": 8})
        assert client.put(h, name="w").name == "w"
    headers = [header_of(request) for request in server.requests if "/v1/call" in first_line(request)]
    assert [header.get("mesh") for header in headers] == [None, (("x", 8),), None]
    assert headers[0]["out_shardings"] == ((None, "x"),)
    assert all(header["arguments"] == ({"array": 0},) for header in headers)


# --- get -------------------------------------------------------------------------------------------------------------


def test_get_fills_the_caller_s_array(raw_server: Any) -> None:
    server = raw_server(http(frame(X)))
    with ss.Client(server.url) as client:
        h = handle(client)
        for out in (
            np.empty_like(X),
            np.empty((3, 4), np.float32).T,
            np.empty((4, 3), ">f4"),
            np.empty((8, 3), "f4")[::2],
        ):
            assert client.get(h, out=out) is out
            np.testing.assert_array_equal(out, X)
        out = np.empty_like(X)
        assert h.numpy(out) is out
        assert h.numpy().flags.writeable


def test_a_plain_target_is_received_in_place(nobody: ss.Client) -> None:
    out = np.empty_like(X)
    outgoing = nobody._get_steps(handle(nobody), out, {}).send(None)
    assert outgoing.targets == (out,)
    outgoing = nobody._get_steps(handle(nobody), out.T.reshape(4, 3, order="F"), {}).send(None)
    assert outgoing.targets == (None,)


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (np.empty((3, 4), np.float32), ss.ShapeError, r"out has the shape \(3, 4\), the array \(4, 3\)"),
        (np.empty((4, 3)), ss.DTypeError, "out has the dtype float64, the array float32"),
        ([np.empty_like(X)], ss.InvalidRequest, "a tree of them"),
        (5, ss.InvalidRequest, "not a int"),
        (np.broadcast_to(np.float32(0), (4, 3)), ss.InvalidRequest, "read-only"),
    ],
)
def test_a_target_that_does_not_fit_is_refused_before_anything_is_sent(
    nobody: ss.Client, out: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        nobody.get(handle(nobody), out=out)


def test_whole_arrays_come_by_one_call_and_parts_by_another(raw_server: Any) -> None:
    server = raw_server(http(frame(X, X)), http(frame(X[0], X[1:])))
    with ss.Client(server.url) as client:
        h = handle(client)
        got = client.get({"w": h, "parts": [h[0], h, h[1:]]})
        assert [value.shape for value in got["parts"]] == [(3,), (4, 3), (3, 3)]
        assert client.get([]) == []
    whole, parts = (header_of(request)["program"] for request in server.requests)
    assert whole == {"inputs": 2, "outputs": (0, 1)}
    assert [step["kernel"] for step in parts["steps"]] == ["slice", "reshape", "slice"]
    assert (parts["inputs"], parts["outputs"]) == (2, (3, 4))


def test_a_large_part_stays_split_as_its_array_is(nobody: ss.Client) -> None:
    info = INFO.model_copy(
        update={"shape": (4096, 64), "mesh": (("x", 4), ("y", 2)), "spec": ("x", "y"), "shard_shape": (1024, 32)}
    )
    h = ss.RemoteArray.attached(nobody, info)
    assert h[1:, None, ::2].spec == ss.P("x", None, "y")
    assert h[..., 3].spec == ss.P("x")
    assert h[5].spec == ss.P("y")
    for part, specs in ((h[1:], (("x", "y"),)), (h[1:][:, None], (("x", None, "y"),)), (h[:2], None), (h, None)):
        outgoing = nobody._get_steps(part, None, {}).send(None)
        assert decode_header(outgoing.header).get("out_shardings") == specs


def test_a_small_part_that_stays_is_split_as_its_array_is(nobody: ss.Client) -> None:
    info = INFO.model_copy(
        update={"shape": (1000, 3), "mesh": (("x", 8),), "spec": ("x", None), "shard_shape": (125, 3)}
    )
    h = ss.RemoteArray.attached(nobody, info)
    for part, spec in ((h[1:4], ("x", None)), (h[:, 0], ("x",)), (h[0], (None,)), (handle(nobody)[1:], None)):
        specs = decode_header(cut_call(part, nobody._current()).header).get("out_shardings")
        assert specs == (spec and (spec,))


def test_parts_of_parts_are_cut_by_one_program_and_whole_ones_not_at_all(nobody: ss.Client) -> None:
    h = handle(nobody)
    cases = [
        (h[:], []),
        (h[1:][::-1], ["slice", "slice"]),
        (h[None], ["reshape"]),
        (h[..., 0], ["slice", "reshape"]),
    ]
    for part, kernels in cases:
        outgoing = nobody._get_steps(part, None, {}).send(None)
        steps = decode_header(outgoing.header)["program"].get("steps", ())
        assert [step["kernel"] for step in steps] == kernels


def test_get_takes_nothing_else(nobody: ss.Client) -> None:
    with pytest.raises(ss.InvalidRequest, match=r"client\.put makes one"):
        nobody.get(X)


# --- names, leases, listings -----------------------------------------------------------------------------------------


def test_attach_asks_by_name_or_id(raw_server: Any) -> None:
    server = raw_server(told())
    with ss.Client(server.url) as client:
        assert client.attach("w").id == "ab" * 16
        assert client.attach("ab" * 16).name == "w"
        for bad in ("../w", "w w", "", 7):
            with pytest.raises(ss.InvalidRequest, match="known by its id"):
                client.attach(bad)  # type: ignore[arg-type]
    lines = [first_line(request) for request in server.requests]
    assert lines == ["GET /v1/arrays/w/info HTTP/1.1", f"GET /v1/arrays/{'ab' * 16}/info HTTP/1.1"]


def test_get_by_name_attaches_first(raw_server: Any) -> None:
    server = raw_server(told(), http(frame(X)))
    with ss.Client(server.url) as client:
        np.testing.assert_array_equal(client.get("w"), X)


def test_lease_renew_and_pin_ask_the_server(raw_server: Any) -> None:
    pinned = INFO.model_copy(update={"pinned": True, "ttl_s": None, "expires_in_s": None})
    server = raw_server(told(), told(), told(), told(), told(pinned), told(pinned))
    with ss.Client(server.url) as client:
        h = handle(client, releases=client._releases)
        assert h.lease == ss.Lease(60.0, 59.0)
        h.renew(30)
        h.renew()
        assert h.pin().pinned
        with pytest.raises(ss.InvalidRequest, match="no lease to renew"):
            h.renew()
        assert h._releases is None, "a pinned array stays"
    bodies = [body_of(request) for request in server.requests if first_line(request).startswith("PUT")]
    assert bodies == [{"ttl_s": 30.0}, {"ttl_s": 60.0}, {"pinned": True}]
    assert f"/v1/arrays/{h.id}/lease" in first_line(server.requests[1])


def test_arrays_prints_as_a_table(raw_server: Any) -> None:
    other = INFO.model_copy(update={"id": "cd" * 16, "name": None, "mesh": (("x", 8),), "spec": ("x",), "pinned": True})
    shown = [INFO.model_dump(mode="json"), other.model_dump(mode="json")]
    server = raw_server(answer(shown), answer([]))
    with ss.Client(server.url) as client:
        found = client.arrays()
        assert (len(found), found[0]) == (2, INFO)
        assert repr(client.arrays()) == "no arrays"
    head, rule, named, unnamed = repr(found).splitlines()
    assert head.split() == ["name", "id", "array", "spec", "mesh", "bytes", "on", "devices", "lease"]
    assert set(rule) == {"-", " "}
    assert ("w " in named, "abababab " in named, "59 s of 1 min left" in named) == (True, True, True)
    assert ("cd" * 16 in unnamed, "P('x')" in unnamed, "x=8" in unnamed, "pinned" in unnamed) == (True,) * 4


def test_a_declared_array_is_nobody_s_to_change(nobody: ss.Client) -> None:
    h = ss.RemoteArray.attached(nobody, INFO.model_copy(update={"is_declared": True}))
    for change in (h.delete, h.renew, h.pin, lambda: h.renew(3), lambda: nobody.delete({"a": [h]})):
        with pytest.raises(ss.Forbidden, match=r"array 'w' is declared by the operator"):
            change()
    assert not h.is_deleted


def test_delete_takes_handles_names_and_trees(raw_server: Any) -> None:
    server = raw_server(answer({"released": 2}), b"HTTP/1.1 204 No Content\r\n\r\n", refusal(ss.NotFound("no array")))
    with ss.Client(server.url) as client:
        first, second = handle(client), handle(client, key=b"\2" * 16)
        client.delete({"a": first, "b": [second]}, "w")
        with pytest.raises(ss.NotFound):
            client.delete("w")
        with pytest.raises(ss.InvalidRequest, match="handles, names and ids"):
            client.delete(X)
        client.delete(first, second)
    assert body_of(server.requests[0]) == {"ids": ["01" * 16, "02" * 16]}
    assert [first_line(request) for request in server.requests[1:]] == ["DELETE /v1/arrays/w HTTP/1.1"] * 2


def test_memory_is_the_ledger(raw_server: Any) -> None:
    ledger = MemoryInfo(
        device_limit_bytes=8, resident_bytes=1, reserved_bytes=2, own_resident_bytes=1, transit_bytes=3,
        transit_limit_bytes=4, spare_bytes=5, pinned_bytes=6, arrays=1,
        holders=(
            Holder(what="array", device_bytes=2000, age_s=90.0, is_own=False),
            Holder(what="array", device_bytes=1000, age_s=90.0, is_own=False, id="ab" * 16, name="vectors"),
        ),
    )  # fmt: skip
    with ss.Client(raw_server(answer(ledger.model_dump(mode="json"))).url) as client:
        found = client.memory()
    assert found.model_dump() == ledger.model_dump()
    assert str(found).count("array of another key") == 1
    assert "declared array        vectors" in str(found)
    assert "2.0 kB" in str(found)


def test_the_async_client_awaits_the_same(raw_server: Any) -> None:
    server = raw_server(kept((4, 3)), http(frame(X)), kept((2, 3)), kept((2, 4)), told(), answer({"released": 1}))

    async def run() -> None:
        async with ss.AsyncClient(server.url) as client:
            h = await client.put(X)
            np.testing.assert_array_equal(await h.numpy(), X)
            with pytest.raises(ss.UnsupportedArray, match=r"await array\.numpy\(\)"):
                np.asarray(h)
            assert (await client.matmul(h[:2], X.T)).shape == (2, 4)
            assert (await h.lease).ttl_s == 60.0
            async with h:
                pass
            assert h.is_deleted

    asyncio.run(run())
    assert "/v1/arrays/release" in first_line(server.requests[5])
