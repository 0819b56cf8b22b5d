"""The front's end of one engine process: calls out, replies in, and who holds which buffer meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shardserve_proto.errors import DeadlineExceeded, Overloaded, ShardserveError
from shardserve_proto.messages import EngineInfo
from shardserve_proto.programs import validate

from .buffers import FRONT, BufferPool, Lease, SharedBuffer
from .channel import BrokenLink, LoopChannel
from .descriptors import send_descriptor
from .messages import (
    LINK_VERSION,
    AskMemory,
    Call,
    Cancel,
    Delete,
    Denied,
    DropQueued,
    Failed,
    Fill,
    Filled,
    Forget,
    Granted,
    Hello,
    Memory,
    Message,
    Refused,
    Released,
    Reply,
    WantBuffer,
    error_from_wire,
    error_to_wire,
)
from .stream import ReplyStream
from .transfer import NO_OPTIONS, CallOptions, EngineReply, Upload


@dataclass
class _Pending:
    future: asyncio.Future[EngineReply]
    sent_at: float
    lease: Lease | None = None


class EngineConnection:
    """One life of an engine, as the front sees it.

    Arguments:
        pool: the buffers that calls and replies travel in.
        on_hello: called with the engine's own description, once it is ready.
        on_refused: called when the engine cannot start with its settings.
        on_end: called once, when the socket ends.
    """

    def __init__(
        self,
        pool: BufferPool,
        *,
        descriptors: socket.socket,
        on_hello: Callable[[EngineInfo], None],
        on_refused: Callable[[ShardserveError], None],
        on_end: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._descriptors = descriptors
        self._descriptors.setblocking(False)
        self._on_hello = on_hello
        self._on_refused = on_refused
        self._on_end = on_end
        self._channel: LoopChannel | None = None
        self._calls: dict[int, _Pending] = {}
        self._windows: dict[int, asyncio.Future[Lease]] = {}  # by the lease that each is read into
        self._questions: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = itertools.count(1)
        self._streams: set[int] = set()  # by the call; the engine keeps what is not read yet
        self._known_buffers: set[int] = set()
        self._holder = object()  # what this life of the engine holds, no other one does
        pool.on_discard.append(self._forget)

    async def open(self, messages: socket.socket) -> None:
        """Take over the front's end of the message socket."""
        self._channel = await LoopChannel.open(messages, on_message=self._on_message, on_end=self._ended)

    async def call(self, header: bytes, upload: Upload, options: CallOptions = NO_OPTIONS) -> EngineReply:
        """Run a call; cancelling the awaiting task drops it, and frees its buffers, at once.

        Arguments:
            header: the bytes of a `CallRequest`.

        Raises:
            DeadlineExceeded: the deadline passed first.
            ShardserveError: what the engine answered.
        """
        number = next(self._numbers)
        pending = _Pending(asyncio.get_running_loop().create_future(), time.monotonic(), upload.lease)
        self._send_call(number, header, upload, options)
        self._calls[number] = pending
        timer = self._arm(number, options.deadline)
        try:
            return await pending.future
        except asyncio.CancelledError:
            self._drop_unread(pending.future, options.owner)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._abandon(number)

    def delete(self, owner: str, ids: Sequence[bytes], *, undo: bool = False) -> None:
        """Have the engine forget resident arrays.

        Arguments:
            undo: take back that a call kept them; those that another call has kept as well, stay.
        """
        self._send(Delete(owner, tuple(ids), undo))

    def drop_queued(self) -> None:
        """Have the engine refuse the calls that it has not launched yet."""
        self._send(DropQueued())

    async def memory(self) -> dict[str, Any]:
        """What the engine's ledger says.

        Raises:
            EngineLost: it died meanwhile.
        """
        number = next(self._numbers)
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._questions[number] = future
        self._send(AskMemory(number))
        try:
            return await future
        finally:
            self._questions.pop(number, None)

    def ask_window(self, call: int, segment: int, window: int, nbytes: int) -> asyncio.Future[Lease]:
        """Have one window of a stream copied into a lease, which is the future's result."""
        future: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        try:
            lease = self._pool.lease(nbytes)
        except ShardserveError as error:
            future.set_exception(error)
            return future
        try:
            self._introduce(lease.buffer)
        except ShardserveError as error:
            lease.release()
            future.set_exception(error)
            return future
        lease.hold(self._holder)
        self._windows[lease.number] = future
        self._send(Fill(call, segment, window, lease.number, lease.buffer.number, nbytes))
        return future

    def end_stream(self, call: int) -> None:
        """Nobody reads the rest of a stream."""
        self._streams.discard(call)
        self._send(Cancel(call))

    @property
    def is_busy(self) -> bool:
        """Whether somebody waits for this engine."""
        return bool(self._calls or self._windows or self._streams or self._questions)

    def close(self) -> None:
        """End the link, which an engine takes as the request to end."""
        if self._channel is not None:
            self._channel.close()
        self._descriptors.close()

    def fail_calls(self, error: ShardserveError) -> None:
        """Every call that waits gets the error now."""
        for pending in self._calls.values():
            if not pending.future.done():
                pending.future.set_exception(error)
        self._calls.clear()
        for number, future in self._windows.items():
            lease = self._pool.find(number)
            if lease is not None:
                lease.release()
            if not future.done():
                future.set_exception(error)
                future.exception()  # whoever reads the stream may have gone
        self._windows.clear()
        for question in self._questions.values():
            if not question.done():
                question.set_exception(error)

    def return_buffers(self) -> None:
        """The process is dead: whatever it held comes back."""
        if self._forget in self._pool.on_discard:
            self._pool.on_discard.remove(self._forget)
        self._pool.drop_holder(self._holder)

    def _send_call(self, number: int, header: bytes, upload: Upload, options: CallOptions) -> None:
        lease = upload.lease
        if lease is not None:
            self._introduce(lease.buffer)
            lease.hold(self._holder)
        message = Call(
            call=number,
            owner=options.owner,
            header=header,
            segments=upload.segments,
            lease=lease.number if lease else None,
            buffer=lease.buffer.number if lease else None,
            nbytes=lease.nbytes if lease else len(upload.payload),
            deadline=options.deadline,
            receive_s=options.receive_s,
            ids=options.ids,
            streams=options.streams,
        )
        self._send(message, upload.payload)

    def _send(self, message: Message, payload: bytes | bytearray | memoryview = b"") -> None:
        assert self._channel is not None  # noqa: S101 - opened before it is handed out
        self._channel.send(message, (payload,) if payload else ())

    def _introduce(self, buffer: SharedBuffer) -> None:
        """Pass the descriptor of a buffer that this engine does not know yet."""
        if buffer.number in self._known_buffers:
            return
        try:
            send_descriptor(
                self._descriptors, number=buffer.number, capacity=buffer.capacity, descriptor=buffer.descriptor
            )
        except OSError:
            raise Overloaded("the engine takes no more buffers now; try again", retry_after_s=1.0) from None
        self._known_buffers.add(buffer.number)

    def _forget(self, buffer: int) -> None:
        if buffer in self._known_buffers:
            self._known_buffers.discard(buffer)
            self._send(Forget(buffer))

    def _arm(self, number: int, deadline: float | None) -> asyncio.TimerHandle | None:
        if deadline is None:
            return None
        delay = max(0.0, deadline - time.monotonic())
        return asyncio.get_running_loop().call_later(delay, self._expire, number)

    def _expire(self, number: int) -> None:
        pending = self._calls.get(number)
        if pending is not None and not pending.future.done():
            pending.future.set_exception(
                DeadlineExceeded("the call was not done when its deadline passed; give it a longer timeout_s")
            )

    def _abandon(self, number: int) -> None:
        """Nobody waits any more; the engine is told, unless it has answered."""
        if self._calls.pop(number, None) is not None:
            self._send(Cancel(number))

    def _on_message(self, message: Message, payload: memoryview) -> None:
        match message:
            case Reply():
                self._on_reply(message, payload)
            case Failed():
                self._settle(message.call, error=error_from_wire(message.error))
            case Released():
                self._on_released(message.lease)
            case WantBuffer():
                self._on_want(message)
            case Filled():
                self._on_filled(message)
            case Memory():
                self._on_memory(message)
            case Hello():
                if message.version != LINK_VERSION:
                    raise BrokenLink("front and engine are of different versions")
                self._on_hello(validate(EngineInfo, message.info))
            case Refused():
                self._on_refused(error_from_wire(message.error))
            case _:
                raise BrokenLink("the engine sent a message that only a front sends")

    def _on_reply(self, message: Reply, payload: memoryview) -> None:
        lease = self._pool.find(message.lease) if message.lease is not None else None
        pending = self._calls.pop(message.call, None)
        is_wanted = pending is not None and not pending.future.done()
        if lease is not None:
            if is_wanted:
                lease.hold(FRONT)
            lease.release(self._holder)
        if pending is None or not is_wanted:
            self._drop(message)
            return
        if message.adopted and pending.lease is not None:
            self._pool.adopt(pending.lease, self._holder)
        view = lease.view if lease is not None else payload
        segments = tuple(view[offset : offset + nbytes] for offset, nbytes in message.segments)
        stream = ReplyStream(self, message.call, message.windows) if message.windows else None
        if stream is not None:
            self._streams.add(message.call)
        pending.future.set_result(
            EngineReply(
                header=message.header,
                segments=segments,
                engine_s=time.monotonic() - pending.sent_at,
                stream=stream,
                lease=lease,
                stored=message.stored,
                adopted=message.adopted,
                _release=_releaser(lease, stream),
            )
        )

    def _drop(self, message: Reply) -> None:
        """Nobody waits for this reply: what it keeps in the engine goes."""
        if message.windows:
            self._send(Cancel(message.call))
        if message.stored:
            self.delete(message.owner, [key for key, *_ in message.stored], undo=True)

    def _drop_unread(self, future: asyncio.Future[EngineReply], owner: str) -> None:
        """The reply came in the same turn of the loop as the cancellation; nobody will read it."""
        if future.done() and not future.cancelled() and future.exception() is None:
            reply = future.result()
            reply.release()
            if reply.stored:
                self.delete(owner, [key for key, *_ in reply.stored], undo=True)

    def _on_filled(self, message: Filled) -> None:
        future = self._windows.pop(message.lease, None)
        lease = self._pool.find(message.lease)
        if lease is None or future is None:
            return
        lease.release(self._holder)
        if message.error is not None or future.done():
            lease.release()
        if future.done():
            return
        if message.error is not None:
            future.set_exception(error_from_wire(message.error))
        else:
            future.set_result(lease)

    def _settle(self, number: int, *, error: ShardserveError) -> None:
        pending = self._calls.pop(number, None)
        if pending is not None and not pending.future.done():
            pending.future.set_exception(error)

    def _on_memory(self, message: Memory) -> None:
        question = self._questions.get(message.call)
        if question is not None and not question.done():
            question.set_result(message.info)

    def _on_released(self, number: int) -> None:
        lease = self._pool.find(number)
        if lease is not None:
            lease.release(self._holder)

    def _on_want(self, message: WantBuffer) -> None:
        try:
            lease = self._grant(message)
        except ShardserveError as error:
            self._send(Denied(message.call, error_to_wire(error)))
            return
        self._send(Granted(message.call, lease.number, lease.buffer.number, message.nbytes))

    def _grant(self, message: WantBuffer) -> Lease:
        if message.call not in self._calls:
            raise DeadlineExceeded("nobody waits for this call any more")
        lease = self._pool.lease(message.nbytes, holder=self._holder)
        try:
            self._introduce(lease.buffer)
        except ShardserveError:
            lease.release(self._holder)
            raise
        return lease

    def _ended(self) -> None:
        self._descriptors.close()
        self._on_end()


def _releaser(lease: Lease | None, stream: ReplyStream | None) -> Callable[[], None]:
    if stream is not None:
        return stream.close
    return _nothing if lease is None else lease.release


def _nothing() -> None:
    pass
