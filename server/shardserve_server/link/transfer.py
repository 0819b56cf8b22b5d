"""What travels with a call: the segments on their way in, and the reply on its way out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from shardserve_proto.frames import Buffer, Layout, align
from shardserve_proto.messages import EngineInfo

from .buffers import BufferPool, Lease
from .messages import Kept, Ranges
from .stream import ReplyStream

EngineState = Literal["starting", "ready", "down"]


@dataclass(frozen=True)
class Upload:
    """The segments of a call, received in one piece from the first segment on.

    Attributes:
        segments: offset and bytes of each segment in that piece.
        payload: the piece itself, when it is small enough to ride in the message.
        lease: else the lease of the shared buffer that holds it.
    """

    segments: Ranges
    payload: Buffer = b""
    lease: Lease | None = None

    @classmethod
    def prepare(cls, layout: Layout, *, header_bytes_end: int, pool: BufferPool, inline_bytes: int) -> Upload:
        """Room for the segments of a frame.

        Arguments:
            header_bytes_end: where the frame's header ends.
            inline_bytes: up to this size the piece rides in the message.

        Raises:
            TooLarge, OutOfMemory: the pool has no such buffer, ever or now.
        """
        start = align(header_bytes_end)
        segments = tuple((offset - start, size) for offset, size in zip(layout.offsets, layout.sizes, strict=True))
        total = max(0, layout.total - start)
        if total <= inline_bytes:
            return cls(segments, payload=bytearray(total))
        return cls(segments, lease=pool.lease(total))

    @property
    def view(self) -> memoryview:
        """Where the piece goes."""
        return self.lease.view if self.lease is not None else memoryview(self.payload)

    def release(self) -> None:
        """The front needs the bytes no more; an engine may still hold them."""
        if self.lease is not None:
            self.lease.release()


@dataclass(frozen=True)
class EngineReply:
    """The reply of an engine; its segments stay valid until `release`.

    Attributes:
        header: the bytes of a `CallReply`.
        segments: these outputs; empty when they are read from the stream.
        stream: large outputs, window by window.
        lease: of the buffer that the segments lie in, if they did not come with the message.
        stored: id and description of each output that the engine keeps, and whether this call made it.
        adopted: one of these lies in the memory of the call's own upload.
        engine_s: seconds between handing over the call and this reply.
    """

    header: bytes
    segments: tuple[memoryview, ...]
    engine_s: float
    stream: ReplyStream | None = None
    lease: Lease | None = None
    stored: tuple[Kept, ...] = ()
    adopted: bool = False
    _release: Callable[[], None] = field(default=lambda: None, repr=False)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The bytes of each output that is data."""
        return tuple(map(len, self.segments)) if self.stream is None else self.stream.sizes

    def release(self) -> None:
        """Let the outputs' buffer go; call it only when no byte of the segments is still to be sent."""
        self._release()


@dataclass(frozen=True)
class CallOptions:
    """What goes with a call beside its header and segments.

    Attributes:
        owner: the label of the key.
        ids: of the resident arrays that the call refers to.
        streams: whether large outputs may come as a stream.
        deadline: on the monotonic clock.
        receive_s: seconds that the front took to receive the call, for the report.
    """

    owner: str = ""
    ids: tuple[bytes, ...] = ()
    streams: bool = False
    deadline: float | None = None
    receive_s: float = 0.0


NO_OPTIONS = CallOptions()


class EngineLink(Protocol):
    """An engine as the front uses it, wherever it runs.

    Attributes:
        state, reason: where it stands, and why.
        info: what it told of itself when it was last ready.
        starts: how often it was started.
        on_change: called after each change of state.
        on_first_refusal: called with the reason when the first engine cannot start with its settings.
        may_leave: whether nothing that was accepted may still need the engine, which somebody else wants to stop.
        before_ready: awaited with a new life of the engine before anybody else may call it.
    """

    state: EngineState
    reason: str
    info: EngineInfo | None
    starts: int
    on_change: Callable[[EngineState], None] | None
    on_first_refusal: Callable[[str], None] | None
    may_leave: Callable[[], bool] | None
    before_ready: Callable[[Any], Awaitable[None]] | None

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def check_ready(self) -> EngineInfo: ...

    def check_usable(self) -> EngineInfo: ...

    async def call(self, header: bytes, upload: Upload, options: CallOptions) -> EngineReply: ...

    def delete(self, owner: str, ids: Sequence[bytes], *, undo: bool = False) -> None: ...

    def drop_queued(self) -> None: ...

    def give_up(self) -> None: ...

    def kill(self) -> None: ...

    async def memory(self) -> dict[str, Any]: ...
