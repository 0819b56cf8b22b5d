"""A stream goes on with as many windows as there are buffers for, and waits when there is none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shardserve_proto.errors import OutOfMemory
from shardserve_server.link import stream
from shardserve_server.link.buffers import Lease
from shardserve_server.link.stream import ReplyStream

from .harness import make_pool

MIB = 2**20


class Windows:
    """An engine that fills each window with its number."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.ended = False

    def ask_window(self, call: int, segment: int, window: int, nbytes: int) -> asyncio.Future[Lease]:  # noqa: ARG002
        future: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        try:
            lease = self.pool.lease(nbytes)
        except OutOfMemory as error:
            future.set_exception(error)
            return future
        lease.view[:1] = bytes([10 * segment + window])
        asyncio.get_running_loop().call_soon(future.set_result, lease)
        return future

    def end_stream(self, call: int) -> None:  # noqa: ARG002
        self.ended = True


async def read_all(replies: ReplyStream, segments: int) -> list[int]:
    await replies.begin()
    found = []
    for number in range(segments):
        async for lease in replies.segment(number):
            found.append(lease.view[0])
            await asyncio.sleep(0)
            lease.release()
    return found


@pytest.mark.parametrize("buffers", [1, 2, 3, 8])
def test_windows_come_in_order_whatever_room_there_is(buffers: int) -> None:
    windows = Windows(make_pool(limit_bytes=buffers * MIB, spare_bytes=0))
    replies = ReplyStream(windows, 1, ((MIB,) * 5, (), (MIB,) * 3))
    assert asyncio.run(read_all(replies, 3)) == [0, 1, 2, 3, 4, 20, 21, 22]
    assert windows.pool.usage().leases == 0


def test_a_stream_that_gets_no_window_at_all_says_so_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "ROOM_WAIT_S", 0.1)
    windows = Windows(make_pool(limit_bytes=MIB, spare_bytes=0))
    held = windows.pool.lease(MIB)

    async def check() -> None:
        with pytest.raises(OutOfMemory):
            await ReplyStream(windows, 1, ((MIB,),)).begin()

    asyncio.run(check())
    held.release()


def test_a_stream_waits_for_a_buffer_that_comes_back() -> None:
    windows = Windows(make_pool(limit_bytes=MIB, spare_bytes=0))
    held = windows.pool.lease(MIB)

    async def check() -> list[int]:
        asyncio.get_running_loop().call_later(0.1, held.release)
        return await read_all(ReplyStream(windows, 1, ((MIB,) * 2,)), 1)

    assert asyncio.run(check()) == [0, 1]
