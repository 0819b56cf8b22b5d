"""An Arrow Flight server that keeps arrays as they arrive, and computes with JAX."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from ..base import announce, end_with_parent
from ..formulas import dot
from .tensors import SCHEMA, batch_of, read_array


class Server(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow is untyped
    """put, get and dot of whole arrays, each one record batch."""

    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._arrays: dict[str, Any] = {}

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Keep the array under the path of the descriptor."""
        self._arrays[descriptor.path[0].decode()] = read_array(reader)

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Send the array of the ticket."""
        batch = batch_of(self._arrays[ticket.ticket.decode()])
        return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(SCHEMA, [batch]))

    def do_action(self, context: Any, action: Any) -> Any:
        """Forget the array that the body names."""
        del self._arrays[action.body.to_pybytes().decode()]
        return iter(())

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Two arrays in, their dot out, as often as the stream brings them."""
        writer.begin(SCHEMA)
        while True:
            try:
                x = read_array(reader)
            except StopIteration:
                return
            writer.write_batch(batch_of(np.asarray(dot(x, read_array(reader)))))


def main() -> None:
    end_with_parent()
    server = Server()
    announce(port=server.port)
    threading.Event().wait()


if __name__ == "__main__":
    main()
