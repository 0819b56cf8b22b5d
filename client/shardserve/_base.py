"""What the blocking and the async client share: everything but sending."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self, TypeVar, Unpack

from shardserve_proto.errors import ShardingError

from ._asks import Ask
from ._blocking import blocking_transport
from ._blocks import mesh_block, mesh_of, note, record_block
from ._calls import Call, Log
from ._config import MAX_IMPLICIT_BYTES, Address, check_address, resolve_address
from ._exchanges import CallExchange
from ._kernel_methods import KernelMethods
from ._keywords import check_keywords
from ._options import CALL_KEYWORDS, RUN_KEYWORDS, CallOptions, Defaults, RunOptions, check_bytes
from ._releases import Releases
from ._requests import Outgoing, function_call, kernel_call
from ._resident import ResidentMethods, Steps
from ._specs import read_mesh

R = TypeVar("R")
T = TypeVar("T")


class BaseClient(KernelMethods[R], ResidentMethods[R]):
    """Address, defaults, blocks and the calls themselves; a subclass sends them."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        allow_insecure: bool = False,
        max_implicit_bytes: int = MAX_IMPLICIT_BYTES,
        **options: Unpack[RunOptions],
    ) -> None:
        check_keywords(options, RUN_KEYWORDS, what=type(self).__name__)
        implicit = check_bytes(max_implicit_bytes, what="max_implicit_bytes")
        defaults = Defaults(max_implicit_bytes=implicit).updated(options)
        self._prepare(resolve_address(url, api_key, allow_insecure=allow_insecure), defaults)

    @classmethod
    def _at(cls, url: str, api_key: str | None = None) -> Self:
        """A client of exactly this address; nothing is read from the environment."""
        client = cls.__new__(cls)
        client._prepare(check_address(url, api_key, allow_insecure=False), Defaults())
        return client

    def _prepare(self, address: Address, defaults: Defaults) -> None:
        self._address = address
        self._defaults = defaults
        self._identity = object()  # of this client's blocks
        self._owns_connections = True
        self._releases = Releases(self._connector())

    def _connector(self) -> Callable[[], Any]:
        """Makes a blocking transport, without holding on to the client."""
        return functools.partial(blocking_transport, self._address)

    @property
    def url(self) -> str:
        """The server's address, without a path; what a curl beside this client would ask."""
        return self._address.url

    def with_options(self, **options: Unpack[RunOptions]) -> Self:
        """A cheap copy with other defaults, which shares the connections; closing it closes nothing.

        Arguments:
            options: mesh, precision, timeout, progress, keep, as of every call.
        """
        check_keywords(options, RUN_KEYWORDS, what="with_options")
        other = copy.copy(self)
        other._defaults = self._defaults.updated(options)
        other._identity = object()
        other._owns_connections = False
        return other

    def mesh(self, mesh: str | Mapping[str, int] | Sequence[tuple[str, int]]) -> AbstractContextManager[None]:
        """A block in which every call of this client uses this mesh: those of the thread or task that entered it.

        Tasks started inside are in the block; other threads are not: give them `with_options(mesh=...)`.

        Arguments:
            mesh: the name of one of the server's meshes, or axes and sizes, one of which may be -1.

        Example:
            with client.mesh({"x": 4, "y": -1}):
                out = client.run(normalize, arr)
        """
        wire = read_mesh(mesh)
        if wire is None:
            raise ShardingError("client.mesh takes a mesh's name or its axes and sizes, not None")
        return mesh_block(self._identity, wire)

    def record(self) -> AbstractContextManager[Log]:
        """A block whose calls of this client are kept in a log, which prints well.

        As with `mesh`, the calls of other threads are not in it, wherever they were started.

        Example:
            with client.record() as log:
                client.matmul(a, b)
            print(log)
        """
        return record_block(self._identity)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    # --- step by step, as in `_resident.py` --------------------------------------------------------------------------

    def _kernel(self, name: str, operands: Sequence[Any], params: dict[str, Any], options: CallOptions) -> Any:
        return self._drive(self._kernel_steps(name, operands, params, options))

    def _kernel_steps(self, name: str, operands: Sequence[Any], params: dict[str, Any], options: CallOptions) -> Steps:
        operands = yield from self._whole(operands)
        return (yield self._outgoing_kernel(name, operands, params, options)).value

    def _call_steps(self, kernel: str, arrays: Sequence[Any], params: Mapping[str, Any]) -> Steps:
        arrays = yield from self._whole(arrays)
        return (yield self._outgoing_call(kernel, arrays, params))

    def _run_steps(self, function: Callable[..., Any], args: tuple[Any, ...], options: RunOptions) -> Steps:
        args = yield from self._settled(args)
        return (yield self._outgoing_run(function, args, options)).value

    # --- from a user's call to an exchange, and back -----------------------------------------------------------------

    def _outgoing_kernel(
        self, kernel: str, operands: Sequence[Any], params: Mapping[str, Any], options: CallOptions
    ) -> Outgoing:
        known = [*CALL_KEYWORDS, *params]
        check_keywords(options, known, what=f"client.{kernel}")
        return self._checked(kernel_call(kernel, operands, params, options, self._current()))

    def _outgoing_call(self, kernel: str, operands: Sequence[Any], keywords: Mapping[str, Any]) -> Outgoing:
        """A call by name: what is no option is a parameter, which the kernel's own signature judges."""
        options = {name: value for name, value in keywords.items() if name in CALL_KEYWORDS}
        params = {name: value for name, value in keywords.items() if name not in CALL_KEYWORDS}
        return self._checked(kernel_call(kernel, operands, params, options, self._current()))

    def _outgoing_run(self, function: Any, args: tuple[Any, ...], options: RunOptions) -> Outgoing:
        check_keywords(options, RUN_KEYWORDS, what="client.run")
        return self._checked(function_call(function, args, options, self._current()))

    def _checked(self, outgoing: Outgoing) -> Outgoing:
        self._check_handles(outgoing.leaves)
        return outgoing

    def _current(self) -> Defaults:
        """The defaults of this moment: a block's mesh goes before the client's own."""
        mesh = mesh_of(self._identity)
        return self._defaults if mesh is None else self._defaults.updated({"mesh": mesh})

    def _answered(self, outgoing: Outgoing, exchange: CallExchange, answer: tuple[Any, ...], started: float) -> Call:
        values, report, received_bytes = answer
        elapsed_s = time.monotonic() - started
        value = outgoing.rebuild(self._handles(outgoing, report, exchange.epoch) if outgoing.kept else values)
        call = Call(outgoing.title, value, report, exchange.body_bytes, received_bytes, elapsed_s)
        note(self._identity, call)
        return call

    def _question(self, path: str, answer: type[T]) -> Ask[T]:
        return Ask("GET", path, answer, self._defaults.timeout_s)
