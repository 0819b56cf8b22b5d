"""Blocks hold for one client and one thread of control."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable

import numpy as np
import pytest

import shardserve as ss
from shardserve_proto.frames import PRELUDE_BYTES, decode_header, decode_prelude

from .conftest import RawServer
from .replies import frame, http

X = np.arange(3.0)
GOOD = http(frame(X))
Start = Callable[..., RawServer]


def meshes(server: RawServer) -> list[object]:
    """The mesh of each request."""
    found = []
    for request in server.requests:
        body = request.partition(b"\r\n\r\n")[2]
        length = decode_prelude(body).header_bytes
        found.append(decode_header(body[PRELUDE_BYTES : PRELUDE_BYTES + length]).get("mesh"))
    return found


def test_a_mesh_block_holds_for_this_client_s_calls_until_it_ends(raw_server: Start) -> None:
    server = raw_server(GOOD)
    with ss.Client(server.url) as client, ss.Client(server.url) as other:
        client.identity(X)
        with client.mesh({"x": 4, "y": -1}):
            client.identity(X)
            other.identity(X)
            with client.mesh("grid"):
                client.identity(X)
                client.run(lambda x: x, X)
                client.call("identity", X)
                client.identity(X, mesh={"d": 8})
            client.identity(X)
        client.identity(X)
    block = (("x", 4), ("y", -1))
    assert meshes(server) == [None, block, None, "grid", "grid", "grid", (("d", 8),), block, None]


def test_a_block_ends_with_an_error_too(raw_server: Start) -> None:
    server = raw_server(GOOD)
    with ss.Client(server.url) as client:
        with pytest.raises(ss.ShapeError), client.mesh("grid"):
            client.matmul(X, np.ones(4))
        client.identity(X)
    assert meshes(server) == [None]


def test_a_block_goes_before_the_client_s_own_mesh(raw_server: Start) -> None:
    server = raw_server(GOOD)
    with ss.Client(server.url, mesh="own") as client:
        with client.mesh("block"):
            client.identity(X)
        client.identity(X)
        client.with_options(mesh="copy").identity(X)
    assert meshes(server) == ["block", "own", "copy"]


def test_a_block_does_not_reach_other_threads(raw_server: Start) -> None:
    server = raw_server(GOOD)
    with ss.Client(server.url) as client, client.mesh("grid"):
        thread = threading.Thread(target=client.identity, args=(X,))
        thread.start()
        thread.join(10)
        inside = contextvars.copy_context()
        thread = threading.Thread(target=inside.run, args=(client.identity, X))
        thread.start()
        thread.join(10)
    assert meshes(server) == [None, "grid"]


def test_blocks_of_concurrent_tasks_do_not_meet(raw_server: Start) -> None:
    server = raw_server(GOOD)

    async def use(client: ss.AsyncClient, mesh: str) -> None:
        with client.mesh(mesh), client.record() as log:
            await asyncio.sleep(0.01)
            await client.identity(X)
            assert len(log) == 1

    async def both() -> None:
        async with ss.AsyncClient(server.url) as client:
            await asyncio.gather(*(use(client, name) for name in ("a", "b", "c")))

    asyncio.run(both())
    assert sorted(map(str, meshes(server))) == ["a", "b", "c"]


def test_none_is_no_mesh_for_a_block(raw_server: Start) -> None:
    with ss.Client(raw_server(GOOD).url) as client, pytest.raises(ss.ShardingError, match="not None"):
        client.mesh(None)  # type: ignore[arg-type]


def test_a_record_holds_this_client_s_calls_in_their_order(raw_server: Start) -> None:
    server = raw_server(GOOD)
    with ss.Client(server.url) as client:
        client.identity(X)
        with client.record() as log:
            client.identity(X)
            client.run(lambda x: x * 1, X)
            with client.record() as inner:
                client.call("identity", X)
        client.identity(X)
    assert [call.title for call in log] == ["identity", "<lambda>", "identity"]
    assert [call.title for call in inner] == ["identity"]
    assert all(call.value is None and call.sent_bytes > 24 and call.received_bytes > 24 for call in log)


def test_a_call_by_name_has_value_report_and_traffic(raw_server: Start) -> None:
    server = raw_server(GOOD)
    with ss.Client(server.url) as client:
        call = client.call("identity", X)
    np.testing.assert_array_equal(call.value, X)
    assert call.report.device_kind == "cpu"
    assert call.received_bytes == len(frame(X))
    assert call.elapsed_s > 0
