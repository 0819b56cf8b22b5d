"""Promise F3, of a front that is killed: the next one tells old handles that their arrays are lost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import shardserve as ss
from shardserve_proto.handles import EPOCH_FIELD

from .serving import launch

X = np.arange(8.0)


def test_old_handles_are_expired_and_ids_without_their_epoch_unknown() -> None:
    with launch(devices=2) as first, ss.Client(first.url, timeout=60) as client:
        old, attached, pinned = client.put(X, name="old"), client.attach("old"), client.put(X, pinned=True)
        port = first.port
        os.kill(first.pid, signal.SIGKILL)
        first.process.wait(20)
        with launch("--port", str(port), devices=2) as second:
            new = client.put(X, name="new")
            for handle in (old, attached, pinned):
                check(client, handle, new)
            asyncio.run(check_async(second.url, old.id, old.epoch))
            path = f"/v1/arrays/{old.id}/info"
            assert second.request("GET", path, headers={EPOCH_FIELD: old.epoch}).status == 410
            for headers in ({}, {EPOCH_FIELD: new.epoch}):
                assert second.request("GET", path, headers=headers).status == 404
            with pytest.raises(ss.NotFound):
                client.attach("old")  # a name may be anybody's next
            old.delete()
            np.testing.assert_array_equal(new.numpy(), X)


def check(client: ss.Client, old: ss.RemoteArray, new: ss.RemoteArray) -> None:
    uses: list[Callable[[], Any]] = [
        old.numpy,
        lambda: np.asarray(old[:2]),
        lambda: client.add(old, new),
        lambda: client.add(new, old, keep=False),
        lambda: client.run(lambda x: x * 2, old),
        lambda: client.get([new, old]),
        lambda: old.reshard(None),
        lambda: old.lease,
        lambda: old.renew(5),
        old.pin,
    ]
    for use in uses:
        with pytest.raises(ss.Expired, match="lost when the server was started anew; put it again"):
            use()


async def check_async(url: str, key: str, epoch: str) -> None:
    """A handle of an `AsyncClient` that lived through it."""
    async with ss.AsyncClient(url) as client:
        handle = (await client.put(X)).detach()
        assert handle.epoch != epoch
        handle.id, handle.epoch = key, epoch
        with pytest.raises(ss.Expired, match="started anew"):
            await handle.numpy()
