"""The client for asyncio: the methods of `Client`, to be awaited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar, Unpack

from shardserve_proto.errors import ShardserveError
from shardserve_proto.messages import DeviceInfo, KernelInfo, ServerInfo

from ._asks import release
from ._base import BaseClient
from ._calls import Call, Device
from ._config import Address
from ._connections import AsyncConnections
from ._exchanges import CallExchange, Exchange
from ._options import Defaults, RunOptions
from ._patience import Patience
from ._requests import Outgoing
from ._resident import Steps

T = TypeVar("T")


class AsyncClient(BaseClient[Coroutine[Any, Any, Any]]):
    """A server's mesh, from asyncio. Arguments and methods are those of `Client`; arrays must not change until the
    await ends. Each event loop has connections of its own, so that one client serves `asyncio.run` after `asyncio.run`.

    Example:
        async with ss.AsyncClient() as client:
            c, d = await asyncio.gather(client.matmul(a, b), client.dot(v, w))
    """

    _is_blocking = False

    def _prepare(self, address: Address, defaults: Defaults) -> None:
        super()._prepare(address, defaults)
        self._connections = AsyncConnections(address)

    async def run(self, function: Callable[..., Any], *args: Any, **options: Unpack[RunOptions]) -> Any:
        """Run a function on the mesh; see `Client.run`."""
        return await self._drive(self._run_steps(function, args, options))

    async def call(self, kernel: str, *arrays: Any, **params: Any) -> Call:
        """Call any kernel of the server by its name; see `Client.call`."""
        done: Call = await self._drive(self._call_steps(kernel, arrays, params))
        return done

    async def devices(self) -> list[Device]:
        """The server's devices."""
        return [Device.of(info) for info in await self._send(self._question("/v1/devices", list[DeviceInfo]))]

    async def info(self) -> ServerInfo:
        """The server's versions, limits, meshes and numerical notes."""
        return await self._send(self._question("/v1/info", ServerInfo))

    async def kernels(self) -> list[KernelInfo]:
        """The server's kernels: signatures, parameters and documentation."""
        return await self._send(self._question("/v1/kernels", list[KernelInfo]))

    async def close(self) -> None:
        """Close the connections. A copy made by `with_options` leaves them open."""
        if self._owns_connections:
            await asyncio.to_thread(self._releases.close)
            await self._connections.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def _drive(self, steps: Steps) -> Any:
        answer: Any = None
        while True:
            try:
                wanted = steps.send(answer)
            except StopIteration as done:
                return done.value
            answer = await (self._send_call(wanted) if isinstance(wanted, Outgoing) else self._send(wanted))

    async def _send_call(self, outgoing: Outgoing) -> Call:
        started = time.monotonic()
        await self._release(self._releases.due())
        exchange = CallExchange(outgoing)
        answer = await self._send(exchange, started)
        return self._answered(outgoing, exchange, answer, started)

    async def _release(self, dropped: Sequence[str]) -> None:
        if dropped:
            with suppress(ShardserveError):  # their leases end
                await self._send(release(dropped, self._defaults.timeout_s))

    async def _send(self, exchange: Exchange[T], started: float | None = None) -> T:
        patience = Patience(exchange.timeout_s, started=started, has_answered=self._connections.has_answered)
        while True:
            transport = await self._connections.here()
            try:
                answer = await transport.send(exchange, patience)
                self._connections.has_answered = True
                return answer
            except ShardserveError as error:
                dropped = self._releases.room_after(error)
                pause = 0.0 if dropped else patience.pause_after(error)
            await self._release(dropped)
            await asyncio.sleep(pause)
