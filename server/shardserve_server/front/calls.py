"""One call, whatever form it came in: its header read once, its segments on their way to the engine, its reply back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgpack
from cachetools import LRUCache
from starlette.types import Scope, Send

from shardserve_proto.errors import DeadlineExceeded, InvalidRequest, OutOfMemory, TooLarge
from shardserve_proto.frames import (
    MEDIA_TYPE,
    PRELUDE_BYTES,
    Layout,
    align,
    check_gap,
    decode_header,
    encode_frame,
    encode_prelude,
    lay_out,
)
from shardserve_proto.handles import ID_BYTES
from shardserve_proto.limits import LIMITS
from shardserve_proto.messages import ArrayArgument, CallRequest, Keep, Precision, check_call, frame_layout
from shardserve_proto.programs import validate

from ..link.buffers import BufferPool
from ..link.stream import ReplyStream
from ..link.transfer import CallOptions, EngineLink, EngineReply, Upload
from ..settings import Settings
from .arrays import Arrays
from .body import BodyReader, ClientGone
from .connection import connection_of
from .direct import direct_outputs, direct_reply
from .epoch import epochs_of
from .holders import told_to
from .pins import HostCopy, Pins, copied_segments
from .record import Record
from .sending import Sender
from .telemetry import server_timing

#: Headers up to this size are remembered once read; identical calls have identical headers.
REMEMBERED_HEADER_BYTES = 16 * 1024
REMEMBERED_HEADERS = 512
_PHASES = msgpack.packb("phases_s")


@dataclass(frozen=True)
class CallHead:
    """What the front needs to know of a call: where its segments lie, how long its caller waits, and its arrays.

    Attributes:
        ids: the segment of ids, and how many there are.
        used: rows of the ids of resident arguments.
        kept: what to keep of the outputs, with the segment that such an output is a copy of, if it is one.
        direct: of a call that only asks for the data of arrays: for each output, the argument that it is.
    """

    layout: Layout
    header_end: int
    timeout_s: float | None
    ids: int | None = None
    used: tuple[int, ...] = ()
    kept: tuple[tuple[Keep, int | None], ...] = ()
    direct: tuple[int, ...] | None = None
    precision: Precision = "highest"

    @classmethod
    def of(cls, call: CallRequest, layout: Layout, header_end: int) -> CallHead:
        used = tuple(argument.array for argument in call.arguments if isinstance(argument, ArrayArgument))
        kept = tuple(
            (keep, segment)
            for keep, segment in zip(call.kept(), copied_segments(call), strict=True)
            if keep is not None
        )
        direct = direct_outputs(call)
        return cls(layout, header_end, call.timeout_s, call.ids, used, kept, direct, call.precision)


class Calls:
    """Runs calls on the engine.

    Arguments:
        engine: where they run.
        pool: the buffers that they travel in.
        arrays, pins: the resident arrays that they refer to.
    """

    def __init__(self, settings: Settings, engine: EngineLink, pool: BufferPool, arrays: Arrays, pins: Pins) -> None:
        self.engine = engine
        self.arrays = arrays
        self._settings = settings
        self._pool = pool
        self._pins = pins
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
        head = CallHead.of(call, layout, PRELUDE_BYTES + len(header))
        if len(header) <= REMEMBERED_HEADER_BYTES:
            self._heads[(declared, header)] = head
        return head

    def admit(self, body_bytes: int) -> None:
        """Whether a body of this length has a chance, before a byte of it is read or `100 Continue` is said.

        Raises:
            TooLarge: for the devices or the shared buffers, ever.
            OutOfMemory: for the shared buffers now.
            EngineStarting, EngineLost: there is no engine that could take it.
        """
        limit = self.engine.check_ready().memory_bytes
        if body_bytes > limit + LIMITS.header_bytes:
            raise TooLarge(
                f"the arrays of the call take {body_bytes} bytes, but the devices hold {limit}; split the call",
                details={"needed_bytes": body_bytes, "limit_bytes": limit},
            )
        if body_bytes > LIMITS.inline_bytes + LIMITS.header_bytes:
            self._pool.check_room(body_bytes - LIMITS.header_bytes)

    def prepare(self, head: CallHead) -> Upload:
        """Room for the call's segments.

        Raises:
            TooLarge: for the shared buffers, ever.
            OutOfMemory: for the shared buffers now.
        """
        return Upload.prepare(
            head.layout, header_bytes_end=head.header_end, pool=self._pool, inline_bytes=LIMITS.inline_bytes
        )

    async def receive(self, body: BodyReader, head: CallHead, upload: Upload, *, arrived: float) -> None:
        """Receive the segments into their room, and check that the gaps between them are zero.

        Raises:
            DeadlineExceeded: the caller's own timeout passed meanwhile.
        """
        if head.timeout_s is None:
            await self._receive(body, head, upload)
            return
        try:
            async with asyncio.timeout(head.timeout_s - (time.monotonic() - arrived)):
                await self._receive(body, head, upload)
        except TimeoutError:
            raise DeadlineExceeded("the call's timeout passed while its arrays were still arriving") from None

    async def _receive(self, body: BodyReader, head: CallHead, upload: Upload) -> None:
        leading = await body.read(min(head.layout.total, align(head.header_end)) - head.header_end)
        await body.read_into(upload.view)
        _check_gaps(leading, upload)

    async def run(self, header: bytes, head: CallHead, upload: Upload, *, scope: Scope) -> EngineReply:
        """Run the call; it is dropped when its client goes away, with what it was to keep.

        Raises:
            ClientGone: the client went away.
            ShardserveError: what the registry of arrays, the engine or the link says.
        """
        arrived: float = scope["state"]["arrived"]
        now = time.monotonic()
        owner: str = scope["state"].get("owner", "")
        ids = _ids(head, upload)
        _check_ids(ids, head)
        records = self.arrays.use(owner, [ids[row] for row in head.used], epochs_of(scope)) if head.used else []
        reply = self._direct(head, records, receive_s=now - arrived)
        if reply is not None:
            return reply
        self.arrays.check_new(owner, [(ids[keep.array], keep) for keep, _ in head.kept], header)
        options = CallOptions(
            owner=owner,
            ids=ids,
            streams=connection_of(scope) is not None,
            deadline=now + self._settings.timeout_s if head.timeout_s is None else arrived + head.timeout_s,
            receive_s=now - arrived,
        )
        connection = connection_of(scope)
        task = asyncio.current_task()
        take_back = connection.when_lost(task.cancel) if connection is not None and task is not None else None
        try:
            with told_to(owner, self.arrays):
                reply = await self._call(header, upload, options, records)
                await self._keep(owner, head, header, upload, reply)
            return reply
        except asyncio.CancelledError:
            if connection is not None and connection.is_lost and task is not None and task.uncancel() == 0:
                raise ClientGone from None
            raise
        finally:
            if take_back is not None:
                take_back()

    def _direct(self, head: CallHead, records: list[Record], *, receive_s: float) -> EngineReply | None:
        if head.direct is None:
            return None
        kind = self.engine.check_usable().devices[0].kind
        return direct_reply(records, head.direct, device_kind=kind, precision=head.precision, receive_s=receive_s)

    async def _call(self, header: bytes, upload: Upload, options: CallOptions, used: Sequence[Record]) -> EngineReply:
        """The engine's reply; a call that finds no room is asked again once arrays that nobody needs are gone."""
        try:
            return await self.engine.call(header, upload, options)
        except OutOfMemory:
            if not self.arrays.evict_replaced(besides=used):
                raise
            return await self.engine.call(header, upload, options)

    async def _keep(self, owner: str, head: CallHead, header: bytes, upload: Upload, reply: EngineReply) -> None:
        """Enter the arrays that the engine kept into the registry: all of them, or none."""
        kept: list[tuple[Record, Keep]] = []
        try:
            for (keep, segment), (key, info, is_new) in zip(head.kept, reply.stored, strict=True):
                record = self.arrays.add(owner, key, keep, info, header)
                kept.append((record, keep))
                if is_new and reply.adopted and segment is not None and upload.lease is not None:
                    record.shared = HostCopy(*upload.segments[segment], upload.lease)
                if record.pinned:
                    await self._pins.pin(self.engine, self.arrays, record, upload=upload, segment=segment)
            self.arrays.settle(kept)
        except BaseException:
            reply.release()
            self.arrays.withdraw(record for record, _ in kept)
            self.engine.delete(owner, [key for key, *_ in reply.stored], undo=True)
            raise


def _check_ids(ids: tuple[bytes, ...], head: CallHead) -> None:
    kept = {ids[keep.array] for keep, _ in head.kept}
    if len(kept) < len(head.kept) or kept & {ids[row] for row in head.used}:
        raise InvalidRequest(
            "two arrays of the call have the same id; each result that is kept takes a fresh random one"
        )


def _ids(head: CallHead, upload: Upload) -> tuple[bytes, ...]:
    if head.ids is None:
        return ()
    offset, nbytes = upload.segments[head.ids]
    found = bytes(upload.view[offset : offset + nbytes])
    return tuple(found[start : start + ID_BYTES] for start in range(0, nbytes, ID_BYTES))


def _check_gaps(leading: bytes, upload: Upload) -> None:
    check_gap(leading)
    end = 0
    for offset, nbytes in upload.segments:
        check_gap(upload.view[end:offset])
        end = offset + nbytes


def reply_phases(reply: EngineReply, *, arrived: float) -> dict[str, float]:
    """Seconds of each phase of the report, and the totals that the front saw."""
    behind = reply.header.rpartition(_PHASES)[2]  # the last field of the last field
    report: Mapping[str, float] = msgpack.unpackb(behind)
    return {**report, "engine": reply.engine_s, "total": time.monotonic() - arrived}


async def send_reply(reply: EngineReply, *, scope: Scope, send: Send) -> None:
    """Send a reply as a frame, and release its buffer once the last byte is out of it."""
    layout = lay_out(len(reply.header), reply.sizes)
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", b"%d" % layout.total),
        (b"server-timing", server_timing(reply_phases(reply, arrived=scope["state"]["arrived"]))),
    ]
    sender = Sender(send, connection_of(scope), total=layout.total)
    try:
        if reply.stream is not None:
            await reply.stream.begin()
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if reply.stream is not None:
            await _send_stream(reply, reply.stream, layout, sender)
        else:
            await sender.send_all(encode_frame(reply.header, reply.segments))
    finally:
        sender.when_sent(reply.release)


async def _send_stream(reply: EngineReply, stream: ReplyStream, layout: Layout, sender: Sender) -> None:
    """The frame of a reply whose segments come window by window."""
    position = PRELUDE_BYTES + len(reply.header)
    await sender.send(encode_prelude(len(reply.header), len(reply.sizes)) + reply.header)
    for number, (offset, size) in enumerate(zip(layout.offsets, layout.sizes, strict=True)):
        if offset > position:
            await sender.send(bytes(offset - position))
        async for lease in stream.segment(number):
            await sender.send_lease(lease)
        position = offset + size
