"""What runs beside small calls: `python -m benchmarks.peers.shardserve_sdk.load URL upload|compile SECONDS`."""

from __future__ import annotations

import sys
import time

import numpy as np

import shardserve as ss
from shardserve import P

UPLOAD_BYTES = 1 << 30
LONG = 200  # about five seconds of compiling


def upload(client: ss.Client, until: float) -> None:
    """Large arrays, one after the other."""
    payload = np.ones((UPLOAD_BYTES // 512, 128), np.float32)
    announce()
    while time.monotonic() < until:
        client.put(payload, P("devices", None)).delete()


def compile_programs(client: ss.Client, until: float) -> None:
    """Programs that the server has not seen, one after the other."""
    announce()
    length = 0
    while time.monotonic() < until:
        length += 1
        client.run(lambda x, length=length: chain(x, length), np.ones((64, 64), np.float32))


def chain(x: np.ndarray, length: int) -> np.ndarray:
    """A long program, another one for each length."""
    for number in range(LONG + length):
        x = np.tanh(x @ x) + x * (1.0 + number)
    return x


def announce() -> None:
    """Tell the process that waits that the load begins."""
    print("begins", flush=True)


def main() -> None:
    url, kind, seconds = sys.argv[1:]
    with ss.Client(url) as client:
        {"upload": upload, "compile": compile_programs}[kind](client, time.monotonic() + float(seconds))


if __name__ == "__main__":
    main()
