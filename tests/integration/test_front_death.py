"""Promise F3, of a front that is killed: the next one tells old handles that their arrays are lost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardserve as ss
from shardserve_proto.handles import EPOCH_FIELD

from .serving import RunningServer, launch

X = np.arange(8.0)


def lost() -> pytest.RaisesExc[ss.Expired]:
    return pytest.raises(ss.Expired, match="lost when the server was started anew")


def kill(server: RunningServer) -> None:
    os.kill(server.pid, signal.SIGKILL)
    server.process.wait(20)


def test_old_handles_are_expired_and_ids_without_their_epoch_unknown() -> None:
    with launch(devices=2) as first, ss.Client(first.url, timeout=60) as client:
        old, attached, pinned = client.put(X, name="old"), client.attach("old"), client.put(X, pinned=True)
        kill(first)
        with launch("--port", str(first.port), devices=2, wait=False) as second:
            with pytest.raises(ss.Expired):
                old.numpy()  # it waits for the engine, which loads
            new = client.put(X, name="new")
            for handle in (old, attached, pinned):
                check(client, handle, new)
            path = f"/v1/arrays/{old.id}/info"
            assert second.request("GET", path, headers={EPOCH_FIELD: old.epoch}).status == 410
            for headers in ({}, {EPOCH_FIELD: new.epoch}):
                assert second.request("GET", path, headers=headers).status == 404
            for text in ("old", old.id):  # nobody says whose they were
                with pytest.raises(ss.NotFound):
                    client.attach(text)
            old.delete()
            np.testing.assert_array_equal(new.numpy(), X)


def check(client: ss.Client, old: ss.RemoteArray, new: ss.RemoteArray) -> None:
    uses: list[Callable[[], Any]] = [
        old.numpy,
        lambda: np.asarray(old[:2]),
        old[:2].keep,
        lambda: client.put(old),
        lambda: client.add(old, new),
        lambda: client.add(new, old, keep=False),
        lambda: client.add(new[:2], old[:2]),
        lambda: client.run(lambda x: x * 2, old),
        lambda: client.run(lambda tree: tree["a"] + tree["b"], {"a": new, "b": old}),
        lambda: client.get([new, old]),
        lambda: old.reshard(None),
        lambda: old.lease,
        lambda: old.renew(5),
        old.pin,
    ]
    for use in uses:
        with lost():
            use()


def test_an_async_client_that_lives_through_it_is_told_so_too() -> None:
    async def live(first: RunningServer) -> None:
        async with ss.AsyncClient(first.url, timeout=60) as client:
            old = await client.put(X)
            kill(first)
            with launch("--port", str(first.port), devices=2, wait=False):
                with lost():
                    await old.numpy()
                new = await client.put(X)
                assert new.epoch != old.epoch
                with lost():
                    await client.add(new, old)
                np.testing.assert_array_equal(await new.numpy(), X)

    with launch(devices=2) as first:
        asyncio.run(live(first))


def test_a_declared_array_is_waited_for_and_not_called_lost(tmp_path: Path) -> None:
    np.save(tmp_path / "vec.npy", X)
    (tmp_path / "arrays.toml").write_text('[vec]\nfile = "vec.npy"\n')
    options = ("--arrays-file", str(tmp_path / "arrays.toml"), "--arrays-root", str(tmp_path))
    with launch(*options, devices=2) as first, ss.Client(first.url, timeout=60) as client:
        vec = client.attach("vec")
        kill(first)
        with launch("--port", str(first.port), *options, devices=2, wait=False) as second:
            answer = second.request("GET", f"/v1/arrays/{vec.id}/info", headers={EPOCH_FIELD: vec.epoch})
            assert answer.status == 503 or second.is_ready()
            assert vec.lease == ss.Lease(ttl_s=None, expires_in_s=None)
            assert client.attach("vec").id == vec.id
            np.testing.assert_array_equal(vec.numpy(), X)
