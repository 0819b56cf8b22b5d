"""FastAPI on uvicorn as most people would write it: `await request.body()`, msgpack, `jnp`."""

from __future__ import annotations

import itertools
import socket
from typing import Any

import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import uvicorn
from fastapi import FastAPI, Request, Response

from ..base import announce, end_with_parent
from ..formulas import dot

app = FastAPI()
arrays: dict[int, Any] = {}
numbers = itertools.count()


def unpack(body: bytes) -> list[Any]:
    """The arrays of a message."""
    return [
        jnp.asarray(np.frombuffer(item["data"], item["dtype"]).reshape(item["shape"])) for item in msgpack.unpackb(body)
    ]


def pack(array: Any) -> bytes:
    """A message of one array."""
    value = np.asarray(array)
    packed: bytes = msgpack.packb([{"dtype": str(value.dtype), "shape": value.shape, "data": value.tobytes()}])
    return packed


@app.post("/arrays")
async def put(request: Request) -> dict[str, int]:
    (array,) = unpack(await request.body())
    number = next(numbers)
    arrays[number] = jax.block_until_ready(array)
    return {"number": number}


@app.get("/arrays/{number}")
async def get(number: int) -> Response:
    return Response(pack(arrays[number]), media_type="application/msgpack")


@app.delete("/arrays/{number}")
async def drop(number: int) -> None:
    del arrays[number]


@app.post("/dot")
async def compute(request: Request) -> Response:
    x, y = unpack(await request.body())
    return Response(pack(dot(x, y)), media_type="application/msgpack")


def main() -> None:
    end_with_parent()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        announce(port=listener.getsockname()[1])
        config = uvicorn.Config(app, log_level="warning", access_log=False)
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
