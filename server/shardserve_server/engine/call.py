"""One call on its way through the engine: upload, launch, wait, gather, reply; with the time of each phase."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from shardserve_proto.dtypes import scalar_array
from shardserve_proto.errors import CompileTimeout, DeadlineExceeded, InternalError, OutOfMemory, ShardserveError
from shardserve_proto.messages import Keep, SegmentArgument
from shardserve_proto.programs import Constant

from ..link.messages import Kept
from .cut import copy_cut
from .executable import Executable
from .garbage import SMALL_BYTES, let_go
from .ledger import Ledger, Reservation
from .placement import Placed, Where
from .plan import Plan
from .store import Store, Stored
from .stream import STREAM_BYTES, Stream
from .transfer import aliases, gather, host_shards, own_copy, slots, typed, upload, view
from .waiting import WaitingRoom

logger = logging.getLogger(__name__)

Allocate = Callable[[int], memoryview]
#: How long a call waits for running calls to make room, at most.
ROOM_WAIT_S = 60.0
#: What a run-time error says when memory ran out: in XLA, or in a library that allocates for itself.
_NO_ROOM = ("resource_exhausted", "out of memory", "failed to allocate", "alloc_failed", "ynnpack operation failed")


#: An upload's buffer may stay with an array that is so much of it; another one is copied out. So is a small one: a
#: buffer costs both processes descriptors.
ADOPTED_PART = 0.75
ADOPTED_BYTES = 2**20


@dataclass(frozen=True)
class CallResult:
    """What a call gave: the parts of a frame, and what was kept.

    Attributes:
        header: of a frame.
        segments: one view for each output that is data; empty when they are read from the stream.
        stream: large outputs, read window by window; whoever got it closes it.
        stored: id and description of each output that was kept, and whether it is new: a repeat finds it there.
        adopted: a kept array lies in the memory of the call's segments, which must not be written as long as it is
            there.
    """

    header: bytes
    segments: list[memoryview]
    stream: Stream | None = None
    stored: tuple[Kept, ...] = ()
    adopted: bool = False


@dataclass
class Surroundings:
    """What all calls of an engine share."""

    store: Store
    ledger: Ledger
    waiting: WaitingRoom = field(default_factory=WaitingRoom)


@dataclass
class RunningCall:
    """The state of one call; one thread at a time works on it.

    Arguments:
        stored: for each argument that is an array, the resident one, which the call keeps alive.
        ids: of the arrays that the call refers to.
        streams: whether the caller reads large results window by window.
        deadline: monotonic seconds; a call that is not launched by then never reaches the devices.
    """

    plan: Plan
    segments: Sequence[np.ndarray[Any, Any]]
    allocate: Allocate
    deadline: float | None
    future: Future[CallResult]
    around: Surroundings
    stored: Sequence[Stored | None] = ()
    owner: str = ""
    ids: Sequence[bytes] = ()
    streams: bool = False
    phases: dict[str, float] = field(default_factory=dict)
    compiled: bool = False
    is_small: bool = True
    _executable: Executable | None = None
    _arguments: Sequence[Any] = ()
    _results: Sequence[jax.Array] = ()
    _reservation: Reservation | None = None
    _kept: list[bytes] = field(default_factory=list)
    _mark: float = field(default_factory=time.monotonic)

    def is_wanted(self) -> bool:
        """Whether somebody still waits for the call."""
        return not self.future.done() and (self.deadline is None or time.monotonic() <= self.deadline)

    def lap(self, phase: str) -> None:
        """Put the time since the last lap into a phase."""
        now = time.monotonic()
        self.phases[phase] = self.phases.get(phase, 0.0) + now - self._mark
        self._mark = now

    def run_here(self, executable: Executable) -> bool:
        """Run all of it in the caller's own thread, where nothing may wait; False when it belongs into a lane.

        What is quick is over before another thread is awake. The caller may be the one that receives the front's
        messages: a wait for memory or for a buffer would be a wait for itself.
        """
        if not executable.is_quick or self.plan.data_bytes > SMALL_BYTES:
            return False
        try:
            self._reserve(executable)
        except OutOfMemory:
            return False
        if self.launch(executable) is not None:
            self.wait()
            self.finish()
        return True

    def launch(self, executable: Executable, *, again: Callable[[], None] | None = None) -> RunningCall | None:
        """Upload and run; None when there is nothing to wait for: the call has ended already, or waits for room.

        Arguments:
            again: launches the call anew, once there is room.
        """
        try:
            if self._reservation is None and not self._has_room(executable, again):
                return None
            if not self.future.set_running_or_notify_cancel():
                self._end()
                return None
            self.lap("queue")
            self._check_deadline()
            self._executable = executable
            self._arguments = self._upload(executable)
            self.lap("upload")
            self._results = executable.run(*self._arguments)
            self.is_small = self.plan.data_bytes <= SMALL_BYTES
        except Exception as error:  # whatever it is, it becomes the caller's named error
            self.fail(error)
            return None
        return self

    def _has_room(self, executable: Executable, again: Callable[[], None] | None) -> bool:
        """Reserve what the call takes; if that must wait for running calls, it waits beside its lane.

        Raises:
            OutOfMemory, TooLarge: there is no room, and none will come by itself.
        """
        if not self.is_wanted():
            return True  # it ends before it takes anything
        try:
            self._reserve(executable)
        except OutOfMemory as error:
            if again is None or not error.details["is_transient"]:
                raise
            until = time.monotonic() + ROOM_WAIT_S
            self.around.waiting.enter(lambda: self._is_done_waiting(executable, again, until))
            return False
        return True

    def _is_done_waiting(self, executable: Executable, again: Callable[[], None], until: float) -> bool:
        try:
            if self.is_wanted():
                self._reserve(executable)
        except OutOfMemory as error:
            if error.details["is_transient"] and time.monotonic() < until:
                return False
            self.fail(error)
            return True
        again()  # a call that nobody wants ends there
        return True

    def _check_deadline(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            if self.compiled:
                raise CompileTimeout(
                    "compiling took longer than the call's timeout; the program is ready now, so the next call will "
                    "not wait for it"
                )
            raise DeadlineExceeded("the call's timeout passed while it waited for the devices; raise timeout=")

    def _reserve(self, executable: Executable) -> None:
        """Set aside what the call takes beside resident arrays, which are paid for.

        Raises:
            OutOfMemory: there is no room now.
        """
        moves = zip(self.stored, executable.moves, strict=True)
        resident = sum(stored.device_bytes for stored, move in moves if stored is not None and move is None)
        needed = max(0, executable.device_bytes - resident)
        self._reservation = self.around.ledger.reserve(needed, owner=self.owner)

    def _upload(self, executable: Executable) -> list[Any]:
        plan = self.plan
        found = [self._here(number, executable) for number in range(len(plan.arguments))]
        missing = [number for number, array in enumerate(found) if array is None]
        for number in missing:
            found[number] = self._host_array(plan.array_inputs[number], plan.arguments[number].placed)
        if not missing or (plan.mesh is None and not plan.is_transfer and plan.upload_bytes <= SMALL_BYTES):
            return found  # a compiled call takes host arrays itself, in a tenth of the time
        placements = [plan.arguments[number].placed for number in missing]
        shardings = [executable.in_shardings[number] for number in missing]
        uploaded = upload([found[number] for number in missing], placements, shardings)
        for number, array in zip(missing, uploaded, strict=True):
            found[number] = array
        return found

    def _here(self, number: int, executable: Executable) -> Any:
        """An argument that is resident, brought to where the program takes it; None for one that is uploaded."""
        stored, move = self.stored[number], executable.moves[number]
        if stored is None:
            return None
        return stored.array if move is None else move(stored.array)

    def _host_array(self, number: int, placed: Placed) -> Any:
        argument = self.plan.call.arguments[number]
        if isinstance(argument, Constant):
            return scalar_array(argument.scalar, placed.aval.strong_dtype)
        assert isinstance(argument, SegmentArgument)  # noqa: S101 - resident arrays were found above
        return view(self.segments[argument.segment], placed)

    def wait(self) -> None:
        """Block until the devices are done."""
        try:
            jax.block_until_ready(self._results)  # host arrays of a transfer pass through it
        except Exception as error:
            self.fail(error)
            return
        self._arguments = ()
        if not any(self.plan.kept):
            self.segments = ()
        self.lap("run")

    def finish(self) -> None:
        """Gather and answer."""
        if self.future.done():
            return
        try:
            reply = self._reply()
        except Exception as error:
            self.around.store.undo(self.owner, self._kept)  # nobody would know of them
            self.fail(error)
            return
        self.future.set_result(reply)
        self._end(keeps_reservation=reply.stream is not None)

    def _reply(self) -> CallResult:
        executable = self._executable
        assert executable is not None  # noqa: S101 - set before anything was launched
        results = list(zip(self._results, executable.outputs, self.plan.kept, strict=True))
        data = [(array, where.placed) for array, where, keep in results if keep is None]
        is_stream = self.streams and self.plan.data_bytes > STREAM_BYTES and self.plan.cut is None
        segments = [] if is_stream else self._gather(data)
        # What cannot be answered keeps nothing, so this comes after the last thing that lacks room now and then.
        stored, adopted = self._keep([(array, where, keep) for array, where, keep in results if keep is not None])
        stream = Stream(data, keeps=self.stored, on_close=self._release) if is_stream else None
        self.lap("gather")
        header = executable.reply(self.plan, compiled=self.compiled, phases_s=self.phases)
        return CallResult(header, segments, stream, stored, adopted)

    def _keep(self, results: Sequence[tuple[jax.Array, Where, Keep]]) -> tuple[tuple[Kept, ...], bool]:
        """Keep results; whether one of them lies in the call's own segments."""
        kept, adopted = [], False
        there = {id(stored.array): stored for stored in self.stored if stored is not None}
        uploaded = sum(segment.nbytes for segment in self.segments)
        for array, where, keep in results:
            shared = aliases(array, self.segments)
            # The whole buffer stays with an array that lies in it, so that must be most of it.
            is_most = all(shared) and where.placed.nbytes >= max(ADOPTED_BYTES, ADOPTED_PART * uploaded)
            base = there.get(id(array))  # resident before, or an earlier result of this call
            if base is not None:
                owned = base.array
            else:
                owned = own_copy(array) if any(shared) and not is_most else array
            key = self.ids[keep.array]
            assert self._reservation is not None  # noqa: S101 - made at the launch
            stored, is_new = self.around.store.keep(self.owner, key, owned, where, self._reservation, base=base)
            self._kept.append(key)
            there.setdefault(id(array), stored)
            adopted = adopted or (is_most and is_new)
            kept.append((key, stored.info(), is_new))
        return tuple(kept), adopted

    def _gather(self, data: Sequence[tuple[jax.Array, Placed]]) -> list[memoryview]:
        places, total = slots([placed for _, placed in data])
        memory = self.allocate(total)
        segments = [memory[place] for place in places]
        for (result, placed), segment in zip(data, segments, strict=True):
            self._copy(result, placed, segment)
        return segments

    def _copy(self, result: jax.Array, placed: Placed, segment: memoryview) -> None:
        if self.plan.cut is None:
            gather(result, placed, segment)
            return
        shape = [len(taken) for taken in self.plan.cut]
        copy_cut(host_shards(result), self.plan.cut, typed(segment, placed.aval.strong_dtype, shape))

    def fail(self, error: BaseException) -> None:
        """End the call with a named error; anything unforeseen is logged under an id and becomes `InternalError`."""
        if not self.future.done():
            self.future.set_exception(named(error))
        self._end()

    def _end(self, *, keeps_reservation: bool = False) -> None:
        largest = max((stored.device_bytes for stored in self.stored if stored is not None), default=0)
        largest = max(largest, self.plan.upload_bytes)
        self._arguments, self.segments, self.stored, self._results = (), (), (), ()
        let_go(largest)
        if not keeps_reservation:
            self._release()

    def _release(self) -> None:
        if self._reservation is not None:
            self._reservation.release()


def named(error: BaseException) -> ShardserveError:
    """The named error that a caller gets for any exception."""
    if isinstance(error, ShardserveError):
        return error
    if isinstance(error, jax.errors.JaxRuntimeError) and any(sign in str(error).lower() for sign in _NO_ROOM):
        return OutOfMemory("the devices have no room for this call now; free arrays, or send less at once")
    if isinstance(error, MemoryError):
        return OutOfMemory("the host has no room for this call now; send less at once")
    error_id = uuid.uuid4().hex[:12]
    logger.error("unexpected error %s in thread %s", error_id, threading.current_thread().name, exc_info=error)
    return InternalError("the server failed in a way that it did not foresee", error_id=error_id)
