"""Who may use which connections: one transport for each process, and for each event loop.

A forked child must not read the answers of its parent, and sockets of an event loop end with it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from shardserve_proto.errors import ConnectFailed

from ._blocking import blocking_transport
from ._config import Address

if TYPE_CHECKING:
    from ._transport import AsyncTransport


class Connections:
    """The transports of a `Client` and its copies, by process.

    Attributes:
        has_answered: whether a server has answered at this address.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._of_process: dict[int, Any] = {}
        self._is_closed = False
        self.has_answered = False

    def here(self) -> Any:
        """The blocking transport of this process.

        Raises:
            ConnectFailed: the client is closed.
        """
        _check_open(is_closed=self._is_closed)
        process = os.getpid()
        if process not in self._of_process:
            self._of_process.setdefault(process, blocking_transport(self._address))
        return self._of_process[process]

    def close(self) -> None:
        """Close the connections of this process; calls fail from now on."""
        self._is_closed = True
        transport = self._of_process.get(os.getpid())
        if transport is not None:
            transport.close()


def _check_open(*, is_closed: bool) -> None:
    if is_closed:
        raise ConnectFailed("the client is closed")


class AsyncConnections:
    """The transports of an `AsyncClient` and its copies, by event loop; each is closed when its loop ends.

    Attributes:
        has_answered: whether a server has answered at this address.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._of_loop: dict[
            tuple[int, asyncio.AbstractEventLoop], tuple[AsyncTransport, AsyncGenerator[None, None]]
        ] = {}
        self._is_closed = False
        self.has_answered = False

    async def here(self) -> AsyncTransport:
        """The transport of the running event loop.

        Raises:
            ConnectFailed: the client is closed.
        """
        from ._transport import AsyncTransport  # httpx takes most of the time of an import

        _check_open(is_closed=self._is_closed)
        place = (os.getpid(), asyncio.get_running_loop())
        if place not in self._of_loop:
            self._of_loop = {other: kept for other, kept in self._of_loop.items() if not other[1].is_closed()}
            transport = AsyncTransport(self._address)
            self._of_loop[place] = transport, (until_the_end := _closing(transport.close))
            await anext(until_the_end)
        return self._of_loop[place][0]

    async def close(self) -> None:
        """Close the connections of the running event loop; calls fail from now on."""
        self._is_closed = True
        _, until_the_end = self._of_loop.pop((os.getpid(), asyncio.get_running_loop()), (None, None))
        if until_the_end is not None:
            await until_the_end.aclose()


async def _closing(close: Callable[[], Awaitable[None]]) -> AsyncGenerator[None, None]:
    """Open until somebody closes it; `asyncio.run` closes every asynchronous generator before its loop."""
    try:
        yield
    finally:
        await close()
