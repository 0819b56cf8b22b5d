"""The epoch of a server: what a handle remembers of it, and where it is told again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import shardserve as ss
from shardserve_proto.errors import EngineStarting
from shardserve_proto.handles import EPOCH_FIELD

from .conftest import RawServer
from .handles import answer, handle, kept
from .replies import frame, http, refusal

ONE, TWO = "1" * 16, "2" * 16
INFO = {
    "id": "ab" * 16, "name": "w", "dtype": "float64", "shape": [3], "spec": None, "mesh": [], "shard_shape": [3],
    "nbytes": 24, "device_bytes": 24, "ttl_s": 5.0,
}  # fmt: skip
Start = Callable[..., RawServer]


def told(epoch: str, whole: bytes) -> bytes:
    """The same answer, of a server that tells its epoch."""
    head, _, body = whole.partition(b"\r\n\r\n")
    return head + f"\r\n{EPOCH_FIELD.title()}: {epoch}".encode("latin-1") + b"\r\n\r\n" + body


def epochs_in(request: bytes) -> list[str]:
    lines = request.partition(b"\r\n\r\n")[0].decode("latin-1").lower().split("\r\n")
    return [line.partition(": ")[2] for line in lines if line.startswith(f"{EPOCH_FIELD}:")]


def test_a_handle_remembers_the_epoch_of_the_answer_that_gave_it(raw_server: Start) -> None:
    server = raw_server(told(ONE, kept((3,), dtype="float64")), told(TWO, answer(INFO)), told(TWO, answer(INFO)))
    with ss.Client(server.url) as client:
        made, attached = client.put(np.zeros(3), name="w"), client.attach("w")
        assert (made.epoch, attached.epoch) == (ONE, TWO)
        assert made.lease.ttl_s == 5.0
        made.renew(5)
    assert [epochs_in(request) for request in server.requests] == [[], [], [ONE], [ONE]]


def test_of_several_tries_the_answer_that_counts_gives_the_epoch(raw_server: Start) -> None:
    busy = refusal(EngineStarting("the engine is loading", retry_after_s=0.01))
    server = raw_server(told(ONE, busy), told(TWO, kept((3,), dtype="float64")))
    with ss.Client(server.url) as client:
        assert client.put(np.zeros(3), name="w").epoch == TWO
    assert len(server.requests) == 2


def test_a_call_tells_the_epochs_of_all_its_handles_and_no_other_does(raw_server: Start) -> None:
    server = raw_server(http(frame(np.zeros(3))))
    with ss.Client(server.url, keep=False) as client:
        handles = [handle(client, (3,), "float64", epoch=epoch) for epoch in (TWO, ONE, TWO, "")]
        client.add(handles[0], handles[1])
        client.add(handles[0], handles[2])
        client.add(handles[3], np.zeros(3))
        client.add(np.zeros(3), np.zeros(3))
    assert [epochs_in(request) for request in server.requests] == [[f"{ONE}, {TWO}"], [TWO], [], []]


def test_an_async_client_tells_them_too(raw_server: Start) -> None:
    server = raw_server(told(ONE, kept((3,), dtype="float64")), http(frame(np.zeros(3))))

    async def put_and_get() -> Any:
        async with ss.AsyncClient(server.url) as client:
            made = (await client.put(np.zeros(3), name="w")).detach()
            await made.numpy()
            return made.epoch

    assert asyncio.run(put_and_get()) == ONE
    assert [epochs_in(request) for request in server.requests] == [[], [ONE]]


@pytest.mark.parametrize("epoch", ["", "banana", ONE + "0", "A" * 16, "a" * 30_000, "\xff" * 16, f"{ONE}, {TWO}"])
def test_what_is_no_epoch_is_not_told_again(raw_server: Start, epoch: str) -> None:
    server = raw_server(told(epoch, kept((3,), dtype="float64")), http(frame(np.zeros(3))))
    with ss.Client(server.url) as client:
        made = client.put(np.zeros(3), name="w")
        assert made.epoch == ""
        made.numpy()
    assert epochs_in(server.requests[1]) == []
