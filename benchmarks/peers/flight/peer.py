"""Arrow Flight over gRPC: do_put, do_get, and one do_exchange stream that stays open for dots."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow.flight as flight

from ..base import Array, Plain, ServerProcess
from .tensors import SCHEMA, batch_of, read_array


class Contender(Plain):
    """The result of a get or a dot lies on the memory that Arrow received it in."""

    def start(self) -> None:
        self._server = ServerProcess("benchmarks.peers.flight.server")
        self._client = flight.FlightClient(f"grpc://127.0.0.1:{self._server.announced()['port']}")
        self._numbers = itertools.count()
        descriptor = flight.FlightDescriptor.for_command(b"dot")
        self._writer, self._reader = self._client.do_exchange(descriptor)
        self._writer.begin(SCHEMA)

    def stop(self) -> None:
        self._writer.close()
        self._client.close()
        self._server.stop()

    def put(self, array: Array) -> Any:
        name = str(next(self._numbers))
        writer, _ = self._client.do_put(flight.FlightDescriptor.for_path(name), SCHEMA)
        writer.write_batch(batch_of(array))
        writer.close()  # waits for the server's word
        return name

    def get(self, handle: Any, out: Array | None) -> Array:  # Arrow makes the memory
        return read_array(self._client.do_get(flight.Ticket(handle.encode())))

    def drop(self, handle: Any) -> None:
        list(self._client.do_action(flight.Action("drop", handle.encode())))

    def dot(self, x: Array, y: Array) -> Array:
        self._writer.write_batch(batch_of(x))
        self._writer.write_batch(batch_of(y))
        return read_array(self._reader)

    def server_pid(self) -> int | None:
        return self._server.pid
