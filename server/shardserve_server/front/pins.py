"""Pinned arrays: a host copy of each stays on the front's side, from which it is put back after an engine's death."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog

from shardserve_proto.errors import EngineLost, OutOfMemory, ShardserveError
from shardserve_proto.frames import encode_header
from shardserve_proto.limits import LIMITS
from shardserve_proto.messages import CallRequest, Keep, Segment, SegmentArgument, ids_segment
from shardserve_proto.specs import WireSpec

from ..link.buffers import BufferPool, Lease
from ..link.transfer import CallOptions, EngineReply, Upload
from .array_calls import TRANSFER, get_header

if TYPE_CHECKING:
    from .arrays import Arrays
    from .record import Record

PINNED = "pinned"
#: A buffer is kept for an array that is so much of it; another one is copied out.
PINNED_PART = 0.75


@dataclass(frozen=True)
class HostCopy:
    """The bytes of an array in host memory: the copy of a pinned one, or the upload that became the array.

    Attributes:
        lease: of the shared buffer that holds them; a small array is in `payload` itself.
    """

    offset: int
    nbytes: int
    lease: Lease | None = None
    payload: bytes = b""

    @property
    def is_there(self) -> bool:
        """Whether somebody still holds the buffer, so that the bytes are the array's."""
        return self.lease is None or not self.lease.is_over

    @property
    def view(self) -> memoryview:
        """The bytes in C order."""
        whole = memoryview(self.payload) if self.lease is None else self.lease.view
        return whole[self.offset : self.offset + self.nbytes].toreadonly()

    def upload(self) -> Upload:
        """These bytes as the segments of a call; the second one, of ids, is empty, since the message has them."""
        return Upload(((self.offset, self.nbytes), (0, 0)), payload=self.payload, lease=self.lease)

    def release(self) -> None:
        """Give the memory back; repeating it is harmless."""
        if self.lease is not None:
            self.lease.release(PINNED)


class Runs(Protocol):
    """Whatever runs calls: an engine, or one life of it."""

    async def call(self, header: bytes, upload: Upload, options: CallOptions) -> EngineReply: ...


class Pins:
    """Makes host copies and puts arrays back from them.

    Arguments:
        limit_bytes: of all host copies together.
    """

    def __init__(self, pool: BufferPool, *, limit_bytes: int) -> None:
        self._pool = pool
        self._limit_bytes = limit_bytes
        self._log = structlog.get_logger("shardserve.front")

    def check_room(self, arrays: Arrays, nbytes: int) -> None:
        """Refuse a pin that host memory has no room for.

        Raises:
            OutOfMemory: with what is needed and what is free.
        """
        free = self._limit_bytes - arrays.pinned_bytes
        if nbytes > free:
            raise OutOfMemory(
                f"a host copy of {nbytes} bytes has no room: {max(0, free)} of {self._limit_bytes} bytes for pinned "
                "arrays are free; unpin some, or raise the setting pinned_bytes",
                details={"needed_bytes": nbytes, "free_bytes": max(0, free)},
            )

    async def pin(
        self, engine: Runs, arrays: Arrays, record: Record, *, upload: Upload | None = None, segment: int | None = None
    ) -> None:
        """Make the host copy of an array that has none; the array may go meanwhile, and the room too.

        Arguments:
            upload: of the call that made the array; segment is its part that the array is a copy of, if there is one.

        Raises:
            OutOfMemory: host memory has no room, before or after the copy was made.
            Expired, NotFound: the array went meanwhile.
            ShardserveError: what the engine or the pool says.
        """
        if record.copy is not None:
            return
        self.check_room(arrays, record.info["nbytes"])
        if upload is None or segment is None:
            copy = await self._fetch(engine, record)
        else:
            copy = await self._of_upload(upload, segment)
        try:
            if record.copy is None:  # else another call was faster
                self.check_room(arrays, copy.nbytes)
                arrays.pin(record, copy)
        finally:
            if record.copy is not copy:
                copy.release()

    async def _of_upload(self, upload: Upload, segment: int) -> HostCopy:
        """The copy that an upload is already: its buffer is kept and not written again, if that is most of it."""
        offset, nbytes = upload.segments[segment]
        source = upload.view[offset : offset + nbytes]
        if nbytes <= LIMITS.inline_bytes:
            return HostCopy(0, nbytes, payload=bytes(source))
        if upload.lease is not None and nbytes >= PINNED_PART * upload.lease.nbytes:
            return self._hold(offset, nbytes, upload.lease)
        own = self._pool.lease(nbytes)
        try:
            await asyncio.to_thread(own.view.__setitem__, slice(None), source)
            return self._hold(0, nbytes, own)
        finally:
            own.release()

    def _hold(self, offset: int, nbytes: int, lease: Lease) -> HostCopy:
        lease.hold(PINNED)
        self._pool.adopt(lease, PINNED)
        return HostCopy(offset, nbytes, lease)

    async def _fetch(self, engine: Runs, record: Record) -> HostCopy:
        """A copy of an array that is on the devices alone.

        Raises:
            ShardserveError: what the engine or the pool says.
        """
        options = CallOptions(owner=record.owner, ids=(record.id,))
        reply = await engine.call(get_header(), Upload(((0, 0),)), options)
        try:
            (segment,) = reply.segments
            if reply.lease is None:
                return HostCopy(0, len(segment), payload=bytes(segment))
            return self._hold(0, len(segment), reply.lease)
        finally:
            reply.release()

    async def restore(self, engine: Runs, arrays: Arrays) -> None:
        """Put all pinned arrays on the devices of an engine that has just started, under their old handles.

        An array that does not fit any more is lost by name; the others are not.

        Raises:
            EngineLost: the engine died meanwhile; its next life asks again.
        """
        for record in list(arrays):
            if record.copy is None:
                continue
            try:
                arrays.restored(record, await self._put(engine, record))
            except EngineLost:
                raise
            except ShardserveError as error:
                self._log.error("pinned array lost", id=record.id.hex(), reason=error.message)
                arrays.lose(record, f"it could not be put back after the engine died: {error.message}")

    async def _put(self, engine: Runs, record: Record) -> dict[str, object]:
        assert record.copy is not None  # noqa: S101 - the caller's condition
        segment = Segment(dtype=record.info["dtype"], shape=tuple(record.info["shape"]), nbytes=record.info["nbytes"])
        spec: WireSpec = record.info["spec"]
        mesh = tuple(record.info["mesh"]) or None
        request = CallRequest(
            program=TRANSFER,
            arguments=(SegmentArgument(segment=0),),
            segments=(segment, ids_segment()),
            ids=1,
            mesh=mesh,
            out_shardings=None if mesh is None else (spec,),
            results=(Keep(array=0),),
        )
        options = CallOptions(owner=record.owner, ids=(record.id,))
        reply = await engine.call(encode_header(request.to_wire()), record.copy.upload(), options)
        reply.release()
        ((_, info, _),) = reply.stored
        return info


def copied_segments(call: CallRequest) -> Sequence[int | None]:
    """For each output, the segment whose bytes it is, when the program computes nothing."""
    if call.program.steps or call.mapping is not None:
        return [None] * len(call.program.outputs)
    arguments = [call.arguments[number] for number in call.program.outputs]
    return [argument.segment if isinstance(argument, SegmentArgument) else None for argument in arguments]
