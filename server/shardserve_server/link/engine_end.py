"""The engine's end of the link: maps buffers, hands calls to the engine, and sends its replies back.

Three kinds of threads meet here. One receives (the caller of `run`), the engine's own threads finish calls, and one
sends releases: finalizers of arrays run anywhere, even inside a send, so they only put a number into a queue.
"""

from __future__ import annotations

import queue
import threading
import uuid
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import structlog

from shardserve_proto.errors import DeadlineExceeded, Draining, InternalError, ShardserveError
from shardserve_proto.limits import LIMITS

from .channel import BrokenLink, ThreadChannel
from .descriptors import MappedBuffers
from .messages import (
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
    Kept,
    Memory,
    Message,
    Ranges,
    Released,
    Reply,
    WantBuffer,
    error_from_wire,
    error_to_wire,
)
from .tracebacks import forget_frames

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Windows(Protocol):
    """Large outputs that are read window by window."""

    @property
    def windows(self) -> tuple[tuple[int, ...], ...]: ...

    def fill(self, segment: int, window: int, memory: memoryview) -> None: ...

    def close(self) -> None: ...


class Answer(Protocol):
    """What an engine's future yields."""

    @property
    def header(self) -> bytes: ...

    @property
    def segments(self) -> Sequence[memoryview]: ...

    @property
    def stream(self) -> Windows | None: ...

    @property
    def stored(self) -> tuple[Kept, ...]: ...

    @property
    def adopted(self) -> bool: ...


class Submits(Protocol):
    """The part of an engine that the link uses."""

    def submit(
        self,
        header: bytes,
        segments: Sequence[Bytes],
        *,
        allocate: Callable[[int], memoryview],
        owner: str,
        ids: Sequence[bytes],
        streams: bool,
        deadline: float | None,
        receive_s: float,
    ) -> Future[Any]: ...

    def delete(self, owner: str, ids: Sequence[bytes], *, undo: bool) -> None: ...

    def memory(self) -> dict[str, Any]: ...


class _Outputs:
    """Room for one call's outputs: a local piece of memory if they are small, else a lease that the front grants."""

    def __init__(self, call: int, channel: ThreadChannel) -> None:
        self._call = call
        self._channel = channel
        self._granted: Future[memoryview] = Future()
        self.lease: int | None = None
        self.view = memoryview(b"")

    def allocate(self, nbytes: int) -> memoryview:
        """Room for all outputs together; called once, from a thread of the engine, which it may block.

        Raises:
            OutOfMemory, TooLarge: the front has no buffer.
            DeadlineExceeded: nobody waits for the call any more.
        """
        if nbytes <= LIMITS.inline_bytes:
            self.view = memoryview(bytearray(nbytes))
        else:
            self._channel.send(WantBuffer(self._call, nbytes))
            self.view = self._granted.result()
        return self.view

    def grant(self, lease: int, view: memoryview) -> None:
        self.lease = lease
        self._granted.set_result(view)

    def deny(self, error: ShardserveError) -> None:
        self._granted.set_exception(error)

    def ranges(self, segments: Sequence[memoryview]) -> Ranges:
        """Where the engine put each output."""
        if not self.view.nbytes:
            return tuple((0, 0) for _ in segments)
        base = _address(self.view)
        return tuple((_address(segment) - base, segment.nbytes) if segment.nbytes else (0, 0) for segment in segments)


def _address(view: memoryview) -> int:
    address: int = np.frombuffer(view, np.uint8).ctypes.data
    return address


class EngineEnd:
    """Serves one front.

    Arguments:
        engine: runs the calls.
        channel: the messages of the front.
        buffers: the buffers of the front.
    """

    def __init__(self, engine: Submits, channel: ThreadChannel, buffers: MappedBuffers) -> None:
        self._engine = engine
        self._channel = channel
        self._buffers = buffers
        self._releases: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._calls: dict[int, Future[Any]] = {}
        self._streams: dict[int, Windows] = {}
        self._windows = ThreadPoolExecutor(2, thread_name_prefix="link-windows")
        self._outputs: dict[int, _Outputs] = {}
        self._log = structlog.get_logger("shardserve.engine")

    def run(self) -> None:
        """Serve until the front is gone."""
        threading.Thread(target=self._send_releases, name="link-releases", daemon=True).start()
        try:
            while True:
                self._handle(*self._channel.receive())
        except BrokenLink:
            return
        finally:
            self._releases.put(None)

    def _handle(self, message: Message, payload: memoryview) -> None:
        match message:
            case Call():
                self._start(message, payload)
            case Cancel():
                self._cancel(message.call)
            case Granted():
                view = memoryview(self._buffers.writable(message.buffer))[: message.nbytes]
                self._outputs[message.call].grant(message.lease, view)
            case Denied():
                self._outputs[message.call].deny(error_from_wire(message.error))
            case Fill():
                self._fill(message)
            case Delete():
                self._engine.delete(message.owner, message.ids, undo=message.undo)
            case AskMemory():
                self._channel.send(Memory(message.call, self._engine.memory()))
            case Forget():
                self._buffers.forget(message.buffer)
            case DropQueued():
                self._drop_queued()
            case _:
                raise BrokenLink("the front sent a message that only an engine sends")

    def _start(self, call: Call, payload: memoryview) -> None:
        outputs = _Outputs(call.call, self._channel)
        self._outputs[call.call] = outputs
        future: Future[Any]
        try:
            future = self._engine.submit(
                call.header,
                self._segments(call, payload),
                allocate=outputs.allocate,
                owner=call.owner,
                ids=call.ids,
                streams=call.streams,
                deadline=call.deadline,
                receive_s=call.receive_s,
            )
        except Exception as error:  # refused before it was queued
            future = Future()
            future.set_exception(error)
        self._calls[call.call] = future
        future.add_done_callback(lambda done: self._finish(call, done))

    def _segments(self, call: Call, payload: memoryview) -> list[Bytes]:
        """Read-only views of one root array; the lease is over when the root dies, which JAX may delay at will."""
        if call.lease is None or call.buffer is None:
            root = np.frombuffer(payload, np.uint8)
        else:
            root = np.frombuffer(self._buffers.readable(call.buffer), np.uint8, count=call.nbytes)
            weakref.finalize(root, self._releases.put, call.lease).atexit = False
        return [root[offset : offset + nbytes] for offset, nbytes in call.segments]

    def _cancel(self, number: int) -> None:
        known = self._calls.get(number)
        if known is not None:
            known.cancel()
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.close()

    def _drop_queued(self) -> None:
        for number, future in list(self._calls.items()):
            if future.cancel():
                refusal = Draining("the server stops; this call was not begun", retry_after_s=1.0)
                self._channel.send(Failed(number, error_to_wire(refusal)))

    def _fill(self, message: Fill) -> None:
        memory = memoryview(self._buffers.writable(message.buffer))[: message.nbytes]
        stream = self._streams.get(message.call)
        self._windows.submit(self._fill_window, stream, message, memory)

    def _fill_window(self, stream: Windows | None, message: Fill, memory: memoryview) -> None:
        error = None
        try:
            if stream is None:
                raise DeadlineExceeded("nobody waits for the rest of this stream any more")
            stream.fill(message.segment, message.window, memory)
        except Exception as fault:  # it becomes the reader's named error
            error = error_to_wire(self._named(fault))
        try:
            self._channel.send(Filled(message.call, message.lease, error))
        except BrokenLink:
            return  # the receiving thread learns the same

    def _finish(self, call: Call, future: Future[Any]) -> None:
        self._calls.pop(call.call, None)
        outputs = self._outputs.pop(call.call)
        try:
            if not future.cancelled():
                self._answer(call, future, outputs)
        except BrokenLink:
            return  # the receiving thread learns the same

    def _answer(self, call: Call, future: Future[Any], outputs: _Outputs) -> None:
        error = future.exception()
        if error is None:
            try:
                self._reply(call, future.result(), outputs)
                return
            except ValueError as fault:
                error = fault
        if outputs.lease is not None:
            self._channel.send(Released(outputs.lease))
        self._channel.send(Failed(call.call, error_to_wire(self._named(error))))
        forget_frames(error)

    def _reply(self, call: Call, answer: Answer, outputs: _Outputs) -> None:
        ranges = outputs.ranges(answer.segments)
        if any(offset < 0 or offset + nbytes > outputs.view.nbytes for offset, nbytes in ranges):
            raise ValueError("an output lies outside of the room that was allocated for it")
        windows: tuple[tuple[int, ...], ...] = ()
        if answer.stream is not None:
            self._streams[call.call] = answer.stream
            windows = answer.stream.windows
        payload = () if outputs.lease is not None else (outputs.view,)
        self._channel.send(
            Reply(
                call=call.call,
                header=answer.header,
                segments=ranges,
                lease=outputs.lease,
                windows=windows,
                owner=call.owner,
                stored=answer.stored,
                adopted=answer.adopted and call.lease is not None,
            ),
            payload,
        )

    def _named(self, error: BaseException) -> ShardserveError:
        if isinstance(error, ShardserveError):
            return error
        error_id = uuid.uuid4().hex[:12]
        self._log.error("call failed", error_id=error_id, exc_info=error)
        return InternalError("the engine failed in a way that it should not", error_id=error_id)

    def _send_releases(self) -> None:
        try:
            while (lease := self._releases.get()) is not None:
                self._channel.send(Released(lease))
        except BrokenLink:
            return
