"""What runs beside small calls: `python -m benchmarks.peers.shardserve_sdk.load URL upload|compile SECONDS`."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

import shardserve as ss
from shardserve import P

UPLOAD_BYTES = 1 << 30
LONG = 200  # about five seconds of compiling


def upload(client: Any, seconds: float) -> None:
    """Large arrays, one after the other."""
    payload = np.ones((UPLOAD_BYTES // 512, 128), np.float32)
    until = begin(seconds)
    while time.monotonic() < until:
        client.put(payload, P("devices", None)).delete()


def compile_programs(client: Any, seconds: float) -> None:
    """Programs that the server has not seen, one after the other."""
    until = begin(seconds)
    length = 0
    while time.monotonic() < until:
        length += 1
        client.run(lambda x, length=length: chain(x, length), np.ones((64, 64), np.float32))


def chain(x: Any, length: int) -> Any:
    """A long program, another one for each length."""
    for number in range(LONG + length):
        x = np.tanh(x @ x) + x * (1.0 + number)
    return x


def begin(seconds: float) -> float:
    """Tell the process that waits that the load begins; when it is to be over."""
    print("begins", flush=True)
    return time.monotonic() + seconds


def main() -> None:
    url, kind, seconds = sys.argv[1:]
    with ss.Client(url) as client:
        {"upload": upload, "compile": compile_programs}[kind](client, float(seconds))


if __name__ == "__main__":
    main()
