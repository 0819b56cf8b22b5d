"""The front under a real uvicorn on loopback, with an engine that lives in the test; and clients that may misbehave."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
import uvicorn

from shardserve_proto.dtypes import dtype_named
from shardserve_proto.errors import (
    DeadlineExceeded,
    EngineLost,
    EngineStarting,
    InternalError,
    ShardserveError,
    from_wire,
)
from shardserve_proto.frames import MEDIA_TYPE, decode_header, decode_prelude, encode_frame, encode_header, lay_out
from shardserve_proto.limits import LIMITS
from shardserve_proto.messages import CallReply, DeviceInfo, EngineInfo, KernelInfo, Report, Segment
from shardserve_proto.programs import Program, validate
from shardserve_server.front.app import create_app
from shardserve_server.front.auth import Keys
from shardserve_server.front.server import bind, make_server
from shardserve_server.front.services import Services
from shardserve_server.link.buffers import BufferPool
from shardserve_server.link.transfer import CallOptions, EngineLink, EngineReply, EngineState, Upload
from shardserve_server.settings import Settings
from tests.calls import Array, encode

KERNELS = ("identity", "wait", "fault", "crash", "zeros")


def kernel_info(name: str) -> KernelInfo:
    return KernelInfo(
        name=name, signature=f"{name}(x)", operands=("x",), is_variadic=False, parameters=(), summary="s", doc="d"
    )


@dataclass
class FakeEngine:
    """An engine in the event loop: `identity` answers with its arguments, `wait` never does, `fault` is a bug."""

    pool: BufferPool
    state: EngineState = "ready"
    reason: str = ""
    owners: list[str] = field(default_factory=list)
    headers: list[bytes] = field(default_factory=list)
    waiting: int = 0
    cancelled: int = 0
    starts: int = 1
    on_change: Callable[[EngineState], None] | None = None
    on_first_refusal: Callable[[str], None] | None = None
    may_leave: Callable[[], bool] | None = None
    before_ready: Callable[[Any], Awaitable[None]] | None = None
    deleted: list[tuple[str, bytes]] = field(default_factory=list)
    info: EngineInfo | None = field(
        default_factory=lambda: EngineInfo(
            versions={"fake": "1"},
            devices=(DeviceInfo(id=0, kind="cpu", platform="cpu"),),
            meshes={"default": (("devices", 1),)},
            kernels=tuple(map(kernel_info, KERNELS)),
            memory_bytes=2**30,
            compile_cache_entries=1,
            queue_depth=7,
            notes=("a note",),
        )
    )

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    def drop_queued(self) -> None:
        pass

    def give_up(self) -> None:
        pass

    def kill(self) -> None:
        pass

    def check_ready(self) -> EngineInfo:
        if self.state == "starting":
            raise EngineStarting("the engine is loading; ask again", retry_after_s=3.0)
        if self.state == "down" or self.info is None:
            raise EngineLost(self.reason, retry_after_s=60.0)
        return self.info

    check_usable = check_ready

    def delete(self, owner: str, ids: Sequence[bytes], *, undo: bool = False) -> None:  # noqa: ARG002
        self.deleted += [(owner, key) for key in ids]

    async def memory(self) -> dict[str, Any]:
        return {"device_limit_bytes": 2**30, "resident_bytes": 0, "reserved_bytes": 0, "holders": ()}

    async def call(self, header: bytes, upload: Upload, options: CallOptions) -> EngineReply:
        self.check_ready()
        self.owners.append(options.owner)
        self.headers.append(header)
        call = msgpack.unpackb(header)
        match call["program"]["steps"][0]["kernel"]:
            case "wait":
                await self._wait(options.deadline)
            case "fault":
                raise KeyError("/a/secret/path")
            case "crash":
                raise InternalError("the engine failed in a way that it should not", error_id="abc123")
        view = upload.view
        segments = [bytes(view[offset : offset + nbytes]) for offset, nbytes in upload.segments]
        return self._reply(call.get("segments", []), segments)

    async def _wait(self, deadline: float | None) -> None:
        self.waiting += 1
        try:
            async with asyncio.timeout(None if deadline is None else deadline - time.monotonic()):
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        except TimeoutError:
            raise DeadlineExceeded("too late") from None
        finally:
            self.waiting -= 1

    def _reply(self, described: list[dict[str, Any]], segments: list[bytes]) -> EngineReply:
        report = Report(
            device_kind="cpu",
            mesh=(),
            devices=(0,),
            precision="highest",
            arguments=(),
            outputs=(),
            compiled=False,
            phases_s={"run": 0.001},
        )
        out = tuple(Segment(dtype=s["dtype"], shape=tuple(s["shape"]), nbytes=s["nbytes"]) for s in described)
        header = encode_header(CallReply(segments=out, report=report).model_dump())
        total = sum(map(len, segments))
        lease = self.pool.lease(max(1, total))
        views = []
        position = 0
        for segment in segments:
            lease.view[position : position + len(segment)] = segment
            views.append(lease.view[position : position + len(segment)])
            position += len(segment)
        shared = lease if total > LIMITS.inline_bytes else None
        return EngineReply(header, tuple(views), 0.001, lease=shared, _release=lease.release)


@dataclass
class Served:
    """A front that listens."""

    port: int
    engine: FakeEngine
    pool: BufferPool
    settings: Settings
    connections: set[Any] = field(default_factory=set)
    services: Services | None = None

    def connect(self, **options: int) -> socket.socket:
        """A raw connection; options of the socket by name, set before it connects."""
        stream = socket.socket()
        stream.settimeout(20)
        for name, value in options.items():
            stream.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        stream.connect(("127.0.0.1", self.port))
        return stream

    def request(
        self, method: str, path: str, *, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        return request(self.port, method, path, body=body, headers=headers)

    def json(self, path: str, body: Any, **headers: str) -> Answer:
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.request("POST", path, body=text, headers={"Content-Type": "application/json", **headers})

    def call(self, kernel: str, *arrays: Any, headers: dict[str, str] | None = None, **fields: Any) -> Answer:
        body = frame(kernel, *arrays, **fields)
        return self.request("POST", "/v1/call", body=body, headers={"Content-Type": MEDIA_TYPE, **(headers or {})})


@dataclass(frozen=True)
class Answer:
    """One response, read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of an error, which must have the whole form of one."""
        error = self.json["error"]
        assert set(error) >= {"code", "message", "details"}, error
        assert set(error) <= {"code", "message", "details", "retry_after_s", "id"}, error
        return str(error["code"])

    @property
    def arrays(self) -> list[Array]:
        """The outputs of a reply that is a frame."""
        assert self.status == 200, self.body[:500]
        prelude = decode_prelude(self.body)
        end = 16 + prelude.header_bytes
        reply = validate(CallReply, decode_header(self.body[16:end]))
        layout = lay_out(prelude.header_bytes, [segment.nbytes for segment in reply.segments])
        assert len(self.body) == layout.total
        return [
            np.frombuffer(self.body[offset : offset + segment.nbytes], dtype_named(segment.dtype)).reshape(
                segment.shape
            )
            for offset, segment in zip(layout.offsets, reply.segments, strict=True)
        ]


def request(
    port: int, method: str, path: str, *, body: bytes | None = None, headers: dict[str, str] | None = None
) -> Answer:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, body=body, headers=headers or {})
        response = connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


def frame(program: str | Program, *arrays: Any, **fields: Any) -> bytes:
    """A call as the body of a request."""
    header, segments = encode(program, *arrays, **fields)
    return b"".join(encode_frame(header, [memoryview(segment.tobytes()) for segment in segments]))


def post_head(path: str, length: int | None, media_type: str = MEDIA_TYPE, **more: str) -> bytes:
    """The head of a POST, for sockets that send what they like."""
    headers = {"Host": "127.0.0.1", "Content-Type": media_type, **more}
    if length is not None:
        headers["Content-Length"] = str(length)
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def read_answer(stream: socket.socket) -> Answer:
    """The next response on a raw socket."""
    response = http.client.HTTPResponse(stream)
    response.begin()
    return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())


def read_one(stream: socket.socket) -> Answer:
    """One response of several on the same socket; http.client would read into the next."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = stream.recv(1)
        if not byte:
            raise EOFError(head)
        head += byte
    lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
    body = b""
    while len(body) < int(headers["content-length"]):
        body += stream.recv(int(headers["content-length"]) - len(body))
    return Answer(int(lines[0].split()[1]), headers, body)


@contextmanager
def serving(
    *,
    settings: Settings | None = None,
    keys: Keys | None = None,
    pool: BufferPool | None = None,
    make_engine: Callable[[BufferPool], EngineLink] = FakeEngine,
    configure: Callable[[uvicorn.Config], None] = lambda _: None,
) -> Iterator[Served]:
    """A front in a thread, with an engine in its loop."""
    settings = settings or Settings(port=0, stop_grace_s=1)
    pool = pool or BufferPool(kind="memfd", limit_bytes=2**29, spare_bytes=2**28)
    engine = make_engine(pool)
    listening = threading.Event()
    with bind(settings) as listener:
        app = create_app(settings, keys, engine=engine, pool=pool)
        server = make_server(app, settings, on_listening=listening.set)
        configure(server.config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="front")
        thread.start()
        try:
            assert listening.wait(10)
            connections = server.server_state.connections
            services: Services = app.state.services
            yield Served(listener.getsockname()[1], engine, pool, settings, connections, services)  # type: ignore[arg-type]
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


def eventually(condition: Callable[[], bool], *, within_s: float = 10.0) -> float:
    """Wait for something to become true; the seconds that it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < within_s, "it did not happen in time"
        time.sleep(0.005)
    return time.monotonic() - started


def error_of(answer: Answer) -> ShardserveError:
    return from_wire(answer.json, status=answer.status)
