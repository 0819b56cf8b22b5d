"""What travels with a call: the segments on their way in, and the reply on its way out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from shardserve_proto.frames import Buffer, Layout, align
from shardserve_proto.messages import EngineInfo

from .buffers import BufferPool, Lease
from .messages import Ranges

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
        segments: the bytes of each output.
        engine_s: seconds between handing over the call and this reply.
    """

    header: bytes
    segments: tuple[memoryview, ...]
    engine_s: float
    _release: Callable[[], None] = field(default=lambda: None, repr=False)

    def release(self) -> None:
        """Let the outputs' buffer go; call it only when no byte of the segments is still to be sent."""
        self._release()


class EngineLink(Protocol):
    """An engine as the front uses it, wherever it runs.

    Attributes:
        state, reason: where it stands, and why.
        info: what it told of itself when it was last ready.
    """

    state: EngineState
    reason: str
    info: EngineInfo | None

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def check_ready(self) -> EngineInfo: ...

    async def call(
        self, header: bytes, upload: Upload, *, owner: str, deadline: float | None, receive_s: float
    ) -> EngineReply: ...
