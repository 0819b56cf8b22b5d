"""One call on its way through the engine: upload, launch, wait, gather, reply; with the time of each phase."""

from __future__ import annotations

import gc
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
from shardserve_proto.frames import encode_header
from shardserve_proto.messages import SegmentArgument

from .executable import Executable
from .placement import Placed
from .plan import Plan
from .transfer import gather, slots, upload, view

logger = logging.getLogger(__name__)

Allocate = Callable[[int], memoryview]
#: Results up to this size are gathered in the lane itself: a hop to another thread costs more. Arguments up to this
#: size ride in the front's message, so no shared buffer waits for them.
SMALL_BYTES = 64 * 1024
#: What a run-time error says when memory ran out: in XLA, or in a library that allocates for itself.
_NO_ROOM = ("resource_exhausted", "out of memory", "failed to allocate", "alloc_failed", "ynnpack operation failed")


@dataclass(frozen=True)
class EngineReply:
    """A reply: the header of a frame, and one view for each segment."""

    header: bytes
    segments: list[memoryview]


@dataclass
class RunningCall:
    """The state of one call; one thread at a time works on it.

    Arguments:
        deadline: monotonic seconds; a call that is not launched by then never reaches the devices.
        done: called once, when the call has ended either way.
    """

    plan: Plan
    segments: Sequence[np.ndarray[Any, Any]]
    allocate: Allocate
    deadline: float | None
    future: Future[EngineReply]
    done: Callable[[], None]
    phases: dict[str, float] = field(default_factory=dict)
    compiled: bool = False
    is_small: bool = True
    _executable: Executable | None = None
    _arguments: Sequence[Any] = ()
    _results: Sequence[jax.Array] = ()
    _mark: float = field(default_factory=time.monotonic)

    def lap(self, phase: str) -> None:
        """Put the time since the last lap into a phase."""
        now = time.monotonic()
        self.phases[phase] = self.phases.get(phase, 0.0) + now - self._mark
        self._mark = now

    def launch(self, executable: Executable) -> RunningCall | None:
        """Upload and run; None when the call has ended already (cancelled, too late or failed)."""
        try:
            if not self.future.set_running_or_notify_cancel():
                self._end()
                return None
            self.lap("queue")
            self._check_deadline()
            self._executable = executable
            self._arguments = self._upload(executable)
            self.lap("upload")
            self._results = executable.compiled(*self._arguments)
            self.is_small = sum(placed.nbytes for placed in self.plan.outputs) <= SMALL_BYTES
        except Exception as error:  # whatever it is, it becomes the caller's named error
            self.fail(error)
            return None
        return self

    def _check_deadline(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            if self.compiled:
                raise CompileTimeout(
                    "compiling took longer than the call's timeout; the program is ready now, so the next call will "
                    "not wait for it"
                )
            raise DeadlineExceeded("the call's timeout passed while it waited for the devices; raise timeout=")

    def _upload(self, executable: Executable) -> Sequence[Any]:
        placements = self.plan.arguments
        numbered = zip(self.plan.array_inputs, placements, strict=True)
        arrays = [self._host_array(number, placed) for number, placed in numbered]
        if self.plan.mesh is None and sum(placed.nbytes for placed in placements) <= SMALL_BYTES:
            return arrays  # a compiled call takes host arrays itself, in a tenth of the time
        return upload(arrays, placements, executable.in_shardings)

    def _host_array(self, number: int, placed: Placed) -> np.ndarray[Any, Any]:
        argument = self.plan.call.arguments[number]
        if isinstance(argument, SegmentArgument):
            return view(self.segments[argument.segment], placed)
        return scalar_array(argument.scalar, placed.aval.strong_dtype)

    def wait(self) -> None:
        """Block until the devices are done."""
        try:
            jax.block_until_ready(self._results)
        except Exception as error:
            self.fail(error)
            return
        self._arguments, self.segments = (), ()
        self.lap("run")

    def finish(self) -> None:
        """Gather and answer."""
        if self.future.done():
            return
        try:
            reply = self._reply()
        except Exception as error:
            self.fail(error)
            return
        self.future.set_result(reply)
        self._end()

    def _reply(self) -> EngineReply:
        executable = self._executable
        assert executable is not None  # noqa: S101 - set before anything was launched
        places, total = slots(self.plan.outputs)
        memory = self.allocate(total)
        segments = [memory[place] for place in places]
        for result, placed, segment in zip(self._results, self.plan.outputs, segments, strict=True):
            gather(result, placed, segment)
        self.lap("gather")
        phases = {phase: round(seconds, 6) for phase, seconds in self.phases.items()}
        return EngineReply(encode_header(executable.reply(compiled=self.compiled, phases_s=phases)), segments)

    def fail(self, error: BaseException) -> None:
        """End the call with a named error; anything unforeseen is logged under an id and becomes `InternalError`."""
        if not self.future.done():
            self.future.set_exception(named(error))
        self._end()

    def _end(self) -> None:
        self._arguments, self.segments, self._results = (), (), ()
        if sum(placed.nbytes for placed in self.plan.arguments) > SMALL_BYTES:
            # JAX lets go of aliased host memory only when Python collects garbage; the youngest generation will do.
            gc.collect(0)
        self.done()


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
