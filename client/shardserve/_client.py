"""The blocking client."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar, Unpack

from shardserve_proto.errors import ShardserveError
from shardserve_proto.messages import DeviceInfo, KernelInfo, ServerInfo

from ._asks import release
from ._base import BaseClient
from ._calls import Call, Device
from ._config import Address
from ._connections import Connections
from ._exchanges import CallExchange, Exchange
from ._options import Defaults, RunOptions
from ._patience import Patience
from ._requests import Outgoing
from ._resident import Steps

T = TypeVar("T")


class Client(BaseClient[Any]):
    """A server's mesh, from Python: NumPy in, NumPy out. Threads may share a client, and so may forked processes.

    Arguments:
        url: of the server; default: SHARDSERVE_URL, else http://127.0.0.1:8000.
        api_key: default: SHARDSERVE_API_KEY. It is not sent in the clear to another host.
        allow_insecure: send it all the same, over plain HTTP.
        max_implicit_bytes: what NumPy's own conversions of a `RemoteArray` may download; `numpy()` has no limit.
        mesh, precision, timeout, progress, keep: defaults of this client's calls.

    Example:
        with ss.Client("https://tpu-host", api_key="…") as client:
            c = client.matmul(a, b)
    """

    def _prepare(self, address: Address, defaults: Defaults) -> None:
        self._connections = Connections(address)
        super()._prepare(address, defaults)

    def _connector(self) -> Callable[[], Any]:
        return self._connections.here

    def run(self, function: Callable[..., Any], *args: Any, **options: Unpack[RunOptions]) -> Any:
        """Run a function on the mesh.

        Arguments:
            function: of positional arguments; it is traced once for each form of its arguments: it sees shapes and
                dtypes, and every operator, NumPy function and `ss` function in it becomes a step of one program.
                `ss.xmap`, `ss.vmap` and `ss.jit` give it named axes and shardings.
            args: arrays and Python scalars, or trees of them (tuples, lists, dicts).
            options: mesh, precision, timeout, progress, keep.

        Returns: what the function returns, with NumPy arrays in it; with `RemoteArray`s if any argument is one.

        Raises:
            UntraceableFunction: the function needs values while it is traced; its line is named.
            ShapeError, DTypeError, AxisError, ShardingError: named by what does not fit.

        Example:
            client.run(lambda x: x / np.sum(x), np.ones(4))
        """
        return self._drive(self._run_steps(function, args, options))

    def call(self, kernel: str, *arrays: Any, **params: Any) -> Call:
        """Call any kernel of the server by its name.

        Arguments:
            kernel: as `client.kernels()` lists it.
            arrays: its operands.
            params: its static parameters, and the keywords of every call.

        Returns: an object with the `value` and the `report`.

        Raises:
            NotFound: no such kernel, with the nearest name.
        """
        done: Call = self._drive(self._call_steps(kernel, arrays, params))
        return done

    def devices(self) -> list[Device]:
        """The server's devices."""
        return [Device.of(info) for info in self._send(self._question("/v1/devices", list[DeviceInfo]))]

    def info(self) -> ServerInfo:
        """The server's versions, limits, meshes and numerical notes."""
        return self._send(self._question("/v1/info", ServerInfo))

    def kernels(self) -> list[KernelInfo]:
        """The server's kernels: signatures, parameters and documentation."""
        return self._send(self._question("/v1/kernels", list[KernelInfo]))

    def close(self) -> None:
        """Close the connections. A copy made by `with_options` leaves them open."""
        if self._owns_connections:
            self._releases.close()
            self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _drive(self, steps: Steps) -> Any:
        answer = None
        while True:
            try:
                wanted = steps.send(answer)
            except StopIteration as done:
                return done.value
            answer = self._send_call(wanted) if isinstance(wanted, Outgoing) else self._send(wanted)

    def _send_call(self, outgoing: Outgoing) -> Call:
        started = time.monotonic()
        self._release(self._releases.due())
        exchange = CallExchange(outgoing)
        answer = self._send(exchange, started)
        return self._answered(outgoing, exchange, answer, started)

    def _release(self, dropped: Sequence[str]) -> None:
        if dropped:
            with suppress(ShardserveError):  # their leases end
                self._send(release(dropped, self._defaults.timeout_s))

    def _send(self, exchange: Exchange[T], started: float | None = None) -> T:
        patience = Patience(exchange.timeout_s, started=started, has_answered=self._connections.has_answered)
        while True:
            transport = self._connections.here()
            try:
                answer: T = transport.send(exchange, patience)
                self._connections.has_answered = True
                return answer
            except ShardserveError as error:
                dropped = self._releases.room_after(error)
                pause = 0.0 if dropped else patience.pause_after(error)
            self._release(dropped)
            time.sleep(pause)
