"""One call, whatever form it came in: its header read once, its segments on their way to the engine, its reply back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

import msgpack
from cachetools import LRUCache
from starlette.types import Scope, Send

from shardserve_proto.errors import BadFrame, DeadlineExceeded
from shardserve_proto.frames import MEDIA_TYPE, PRELUDE_BYTES, Layout, align, decode_header, encode_frame
from shardserve_proto.limits import LIMITS
from shardserve_proto.messages import CallRequest, check_call, frame_layout
from shardserve_proto.programs import validate

from ..link.buffers import BufferPool
from ..link.transfer import EngineLink, EngineReply, Upload
from ..settings import Settings
from .body import BodyReader, ClientGone
from .protocol import Connection, connection_of
from .telemetry import server_timing

#: Headers up to this size are remembered once read; identical calls have identical headers.
REMEMBERED_HEADER_BYTES = 16 * 1024
REMEMBERED_HEADERS = 512
#: A reply up to this size is copied into one piece, which is cheaper than several writes.
SMALL_REPLY_BYTES = 128 * 1024
PIECE_BYTES = 2**20


@dataclass(frozen=True)
class CallHead:
    """What the front needs to know of a call: where its segments lie, and how long its caller waits."""

    layout: Layout
    header_end: int
    timeout_s: float | None


class Calls:
    """Runs calls on the engine.

    Arguments:
        engine: where they run.
        pool: the buffers that they travel in.
    """

    def __init__(self, settings: Settings, engine: EngineLink, pool: BufferPool) -> None:
        self.engine = engine
        self._settings = settings
        self._pool = pool
        self._heads: LRUCache[tuple[int, bytes], CallHead] = LRUCache(REMEMBERED_HEADERS)

    def head(self, header: bytes, *, declared: int) -> CallHead:
        """Read and check the header of a call.

        Arguments:
            declared: the segment count of the prelude.

        Raises:
            ShardserveError: named by what is wrong with it.
        """
        known = self._heads.get((declared, header))
        if known is not None:
            return known
        call = validate(CallRequest, decode_header(header))
        check_call(call)
        layout = frame_layout(len(header), call.segments, declared=declared, body_bytes=self._settings.body_bytes)
        head = CallHead(layout, PRELUDE_BYTES + len(header), call.timeout_s)
        if len(header) <= REMEMBERED_HEADER_BYTES:
            self._heads[(declared, header)] = head
        return head

    def prepare(self, head: CallHead) -> Upload:
        """Room for the call's segments."""
        return Upload.prepare(
            head.layout, header_bytes_end=head.header_end, pool=self._pool, inline_bytes=LIMITS.inline_bytes
        )

    async def receive(self, body: BodyReader, head: CallHead, upload: Upload, *, arrived: float) -> None:
        """Receive the segments into their room, and check that the gaps between them are zero.

        Raises:
            DeadlineExceeded: the caller's own timeout passed meanwhile.
        """
        limit = None if head.timeout_s is None else head.timeout_s - (time.monotonic() - arrived)
        try:
            async with asyncio.timeout(limit):
                leading = await body.read(min(head.layout.total, align(head.header_end)) - head.header_end)
                await body.read_into(upload.view)
        except TimeoutError:
            raise DeadlineExceeded("the call's timeout passed while its arrays were still arriving") from None
        _check_gaps(leading, upload)

    async def run(self, header: bytes, head: CallHead, upload: Upload, *, scope: Scope) -> EngineReply:
        """Run the call; it is dropped when its client goes away.

        Raises:
            ClientGone: the client went away.
            ShardserveError: what the engine or the link says.
        """
        arrived: float = scope["state"]["arrived"]
        now = time.monotonic()
        deadline = now + self._settings.timeout_s if head.timeout_s is None else arrived + head.timeout_s
        owner: str = scope["state"].get("owner", "")
        connection = connection_of(scope)
        task = asyncio.current_task()
        take_back = connection.when_lost(task.cancel) if connection is not None and task is not None else None
        try:
            return await self.engine.call(header, upload, owner=owner, deadline=deadline, receive_s=now - arrived)
        except asyncio.CancelledError:
            if connection is not None and connection.is_lost and task is not None and task.uncancel() == 0:
                raise ClientGone from None
            raise
        finally:
            if take_back is not None:
                take_back()


def _check_gaps(leading: bytes, upload: Upload) -> None:
    if any(leading):
        raise BadFrame("the gap behind the header is not zero")
    end = 0
    view = upload.view
    for index, (offset, nbytes) in enumerate(upload.segments):
        if offset > end and any(view[end:offset]):
            raise BadFrame(f"the gap before segment {index} is not zero")
        end = offset + nbytes


def reply_phases(reply: EngineReply, *, arrived: float) -> dict[str, float]:
    """Seconds of each phase of the report, and the totals that the front saw."""
    report: Mapping[str, float] = msgpack.unpackb(reply.header)["report"]["phases_s"]
    return {**report, "engine": reply.engine_s, "total": time.monotonic() - arrived}


async def send_reply(reply: EngineReply, *, scope: Scope, send: Send) -> None:
    """Send a reply as a frame, and release its buffer once the last byte is out of it."""
    connection = connection_of(scope)
    parts = encode_frame(reply.header, reply.segments)
    total = sum(len(part) for part in parts)
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", b"%d" % total),
        (b"server-timing", server_timing(reply_phases(reply, arrived=scope["state"]["arrived"]))),
    ]
    try:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if connection is None or total <= SMALL_REPLY_BYTES:
            await send({"type": "http.response.body", "body": b"".join(parts)})
        else:
            await _send_pieces(parts, total, connection=connection, send=send)
    finally:
        # A callback, not an await: a cancelled task must not let go of bytes that are still to be sent.
        if connection is None:
            reply.release()
        else:
            connection.when_flushed(reply.release)


async def _send_pieces(
    parts: list[bytes | bytearray | memoryview], total: int, *, connection: Connection, send: Send
) -> None:
    """The parts in pieces, as views; a slow reader holds back the next one."""
    sent = 0
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), PIECE_BYTES):
            if connection.is_lost:
                return
            piece = view[start : start + PIECE_BYTES]
            sent += len(piece)
            await send({"type": "http.response.body", "body": piece, "more_body": sent < total})
