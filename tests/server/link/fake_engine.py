"""A process that speaks the link as an engine does, without JAX: headers say what it should do.

{"do": "echo"}                 the segments come back
{"do": "zeros", "nbytes": n}   one output of n bytes
{"do": "sleep", "s": seconds}  echo, later; cancelled if it has not begun
{"do": "hold"} / {"do": "drop"} keep the segments alive / let them go
{"do": "fail", "code": code}   that error
{"do": "crash"}                the process ends at once
{"do": "environment"}          the names of the environment's variables, as one output
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from shardserve_proto.errors import BY_CODE, InvalidRequest
from shardserve_proto.messages import DeviceInfo, EngineInfo
from shardserve_server.link.channel import ThreadChannel
from shardserve_server.link.descriptors import MappedBuffers
from shardserve_server.link.engine_end import Bytes, EngineEnd
from shardserve_server.link.messages import LINK_VERSION, Hello, Refused, error_to_wire
from shardserve_server.link.parent_death import die_with_parent

INFO = EngineInfo(
    versions={"fake": "1"},
    devices=(DeviceInfo(id=0, kind="cpu", platform="cpu"),),
    meshes={},
    kernels=(),
    memory_bytes=2**30,
    compile_cache_entries=1,
    queue_depth=1,
    notes=(),
)


@dataclass(frozen=True)
class Done:
    """What a call gave."""

    header: bytes
    segments: list[memoryview]
    stream: None = None
    stored: tuple[()] = ()
    adopted: bool = False


class FakeEngine:
    """Does what headers say, in one thread."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(1)
        self._held: list[Bytes] = []

    def submit(
        self,
        header: bytes,
        segments: Sequence[Bytes],
        *,
        allocate: Callable[[int], memoryview],
        **options: Any,  # noqa: ARG002
    ) -> Future[Done]:
        order = msgpack.unpackb(header)
        if order["do"] == "refuse":
            raise InvalidRequest("refused before it was queued")
        return self._threads.submit(self._run, order, [list(segments)], allocate)

    def delete(self, owner: str, ids: Sequence[bytes], *, undo: bool = False) -> None:
        pass

    def memory(self) -> dict[str, Any]:
        return {}

    def _run(self, order: dict[str, Any], box: list[list[Bytes]], allocate: Callable[[int], memoryview]) -> Done:
        segments = box.pop()  # the pool's own references to its arguments live until the next call
        assert all(not segment.flags.writeable for segment in segments)
        match order["do"]:
            case "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            case "fail":
                raise BY_CODE[order["code"]]("as asked", details={"n": 1}, retry_after_s=2.0)
            case "bug":
                raise KeyError("a secret of the engine")
            case "hold":
                self._held += segments
                segments = []
            case "drop":
                self._held.clear()
            case "sleep":
                time.sleep(order["s"])
            case "zeros":
                segments = [np.zeros(order["nbytes"], np.uint8)]
            case "environment":
                segments = [np.frombuffer("\n".join(os.environ).encode(), np.uint8)]
        return _written(segments, allocate)


def _written(segments: Sequence[Bytes], allocate: Callable[[int], memoryview]) -> Done:
    room = allocate(sum(-(-segment.nbytes // 64) * 64 for segment in segments))
    views = []
    position = 0
    for segment in segments:
        view = room[position : position + segment.nbytes]
        view[:] = segment.data
        views.append(view)
        position += -(-segment.nbytes // 64) * 64
    return Done(msgpack.packb({"outputs": len(views)}), views)


def main(argv: list[str]) -> None:
    """Start as the settings say: well, badly, or not at all."""
    settings, messages, descriptors, parent = json.loads(argv[0]), *map(int, argv[1:])
    if settings.get("dies_with_parent", True):
        die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = ThreadChannel(socket.socket(fileno=messages))
    buffers = MappedBuffers(socket.socket(fileno=descriptors))
    match settings.get("start", "well"):
        case "crash":
            os._exit(3)
        case "refuse":
            channel.send(Refused(error_to_wire(InvalidRequest("a mesh of 9 devices"))))
            os._exit(2)
        case "silence":
            threading.Event().wait()
        case "garbage":
            channel._socket.sendall(b"\xff" * 4096)
            threading.Event().wait()
    channel.send(Hello(LINK_VERSION, INFO.model_dump()))
    EngineEnd(FakeEngine(), channel, buffers).run()
    time.sleep(settings.get("lingers_s", 0.0))
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
