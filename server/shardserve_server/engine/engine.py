"""The engine: owns the devices, plans, compiles and runs calls. It knows no HTTP and no sockets.

It runs in a process of its own behind the front, and as a plain library:

    engine = Engine(EngineSettings(devices=8))
    reply = engine.submit(header, segments).result()
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np

from shardserve_proto.errors import Overloaded
from shardserve_proto.messages import ArrayArgument, ArrayInfo, EngineInfo
from shardserve_proto.specs import MeshShape

from ..kernels import Registry, default_registry
from .call import Allocate, CallResult, RunningCall, Surroundings, named
from .compile_cache import CompileCache
from .declared import Library, load_declared
from .devices import find_devices
from .disk_cache import use_disk_cache
from .dispatcher import Lane
from .executable import Executable, build
from .ledger import Ledger, describe
from .mesh import Meshes, configure_jax
from .plan import Plan, Planner
from .store import Store, Stored

__all__ = ["CallResult", "Engine", "EngineSettings"]

#: So many of the largest holders of memory are told.
HOLDERS_TOLD = 20
_NOTES = (
    "subnormal numbers count as zero in arithmetic; they pass unchanged through identity",
    "each step of a program rounds by itself; nothing is reordered or contracted across steps",
    "float32 products run at the highest precision unless the call asks for less",
    "16-bit floats accumulate in float32 and are rounded last",
)


@dataclass(frozen=True)
class EngineSettings:
    """What an engine is started with.

    Attributes:
        devices: so many virtual CPU devices; None = what the host has.
        platform: "cpu", "gpu" or "tpu", and nothing else; None = what JAX finds.
        meshes: named meshes beside "default".
        memory_bytes: what arrays may take on all devices; None = 80 % of what they have.
        cache_dir, cache_bytes: folder for compiled programs that outlive the engine, and its size.
        compile_cache_entries: executables kept.
        queue_depth: calls that may wait; one more is refused.
        in_flight: launched programs on several devices that may be unfinished; None = 1 on CPU, else 4.
        arrays_file, arrays_root: the table of declared arrays, and the folder of their files.
        is_restart: an entry that is wrong now was right at the first start: it is left out, and the others are there.
    """

    devices: int | None = None
    platform: str | None = None
    meshes: Mapping[str, MeshShape] = field(default_factory=dict)
    memory_bytes: int | None = None
    cache_dir: str | None = None
    cache_bytes: int = 4 * 2**30
    compile_cache_entries: int = 256
    queue_depth: int = 256
    in_flight: int | None = None
    arrays_file: str | None = None
    arrays_root: str | None = None
    is_restart: bool = False


def allocate_on_heap(nbytes: int) -> memoryview:
    """Memory for results when the engine runs in the caller's own process; 64-byte aligned."""
    raw = np.empty(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw.data[start : start + nbytes]


class Engine:
    """Plans, compiles and runs calls on this process' devices; safe to use from many threads."""

    def __init__(self, settings: EngineSettings, *, registry: Registry | None = None) -> None:
        configure_jax(settings.devices)
        self._settings = settings
        self._registry = registry or default_registry()
        if settings.cache_dir is not None:
            use_disk_cache(Path(settings.cache_dir), most_bytes=settings.cache_bytes)
        self._meshes = Meshes(settings.meshes, devices=find_devices(settings.platform, count=settings.devices))
        self._memory_bytes = settings.memory_bytes or self._meshes.memory_bytes()
        entries = settings.compile_cache_entries
        self._planner = Planner(self._registry, self._meshes, memory_bytes=self._memory_bytes, entries=4 * entries)
        self.cache: CompileCache[Executable] = CompileCache(entries)
        self._finishers = ThreadPoolExecutor(4, thread_name_prefix="finish")
        is_cpu = self._meshes.devices[0].platform == "cpu"
        in_flight = settings.in_flight or (1 if is_cpu else 4)
        self._many = Lane("many", in_flight=in_flight, finishers=self._finishers)
        self._one = Lane("one", in_flight=1 if is_cpu else 4, finishers=self._finishers)
        self._transfers = Lane("transfers", in_flight=4, finishers=self._finishers)
        self._around = Surroundings(Store(ledger := Ledger(self._memory_bytes)), ledger)
        self._running: set[Future[CallResult]] = set()
        self._compiling: set[Future[CallResult]] = set()
        self._lock = threading.Lock()
        self._declared = self._declare()

    def _declare(self) -> tuple[ArrayInfo, ...]:
        """Read the operator's arrays.

        Raises:
            InvalidRequest: the table or a file is wrong.
        """
        library = Library(self._meshes, self._around.store, self._around.ledger)
        try:
            settings = self._settings
            return load_declared(settings.arrays_file, settings.arrays_root, library, skips_faults=settings.is_restart)
        except BaseException:
            self.close()
            raise

    def info(self) -> EngineInfo:
        """Devices, meshes, kernels, versions and limits."""
        return EngineInfo(
            versions={
                "python": platform.python_version(),
                "jax": jax.__version__,
                "numpy": np.__version__,
                "ml_dtypes": ml_dtypes.__version__,
            },
            devices=self._meshes.infos(),
            meshes=self._meshes.named,
            kernels=tuple(kernel.info() for kernel in self._registry.values()),
            memory_bytes=self._memory_bytes,
            compile_cache_entries=self._settings.compile_cache_entries,
            queue_depth=self._settings.queue_depth,
            notes=_NOTES,
            declared=self._declared,
        )

    def submit(
        self,
        header: bytes,
        segments: Sequence[np.ndarray[Any, Any]],
        *,
        allocate: Allocate = allocate_on_heap,
        owner: str = "",
        ids: Sequence[bytes] = (),
        streams: bool = False,
        deadline: float | None = None,
        receive_s: float = 0.0,
    ) -> Future[CallResult]:
        """Run a call.

        Arguments:
            header: of a call's frame (a msgpack `CallRequest`).
            segments: one flat uint8 array for each segment, which nobody writes to again.
            allocate: gives memory for all results together; called from one of the engine's threads.
            owner: whose resident arrays the call refers to.
            ids: of these arrays, in the order of the call's own segment of ids.
            streams: take large results as a stream.
            deadline: `time.monotonic()` after which the call is not launched any more.
            receive_s: seconds that the front spent receiving, for the report.

        Returns: a future that ends in a `CallResult` or a `ShardserveError`. `cancel()` drops a call that was not
            launched yet.
        """
        future: Future[CallResult] = Future()
        try:
            plan, stored = self._look_up(header, owner, ids)
            executable = self._at_hand(plan)
            self._enter(future, self._running if executable is not None else self._compiling)
        except Exception as error:  # every failure becomes the caller's named error
            future.set_exception(named(error))
            return future
        call = RunningCall(
            plan=plan,
            segments=segments,
            allocate=allocate,
            deadline=deadline,
            future=future,
            around=self._around,
            stored=[stored[number] for number in plan.array_inputs],
            owner=owner,
            ids=ids,
            streams=streams,
            phases={"receive": receive_s},
        )
        if executable is not None:
            self._launch(call, executable)
        else:
            self._compile(call)
        return future

    def delete(self, owner: str, ids: Sequence[bytes], *, undo: bool = False) -> None:
        """Forget resident arrays; calls that were submitted keep them to their end.

        Arguments:
            undo: take back that one call kept them; those that another call has kept as well, stay.
        """
        if undo:
            self._around.store.undo(owner, ids)
        else:
            self._around.store.delete(owner, ids)

    def memory(self) -> dict[str, Any]:
        """The ledger of the devices, and its largest holders."""
        ledger = self._around.ledger
        return {
            "device_limit_bytes": ledger.limit_bytes,
            "resident_bytes": ledger.held_bytes("array"),
            "reserved_bytes": ledger.held_bytes("call"),
            "holders": [describe(held) for held in ledger.holdings()[:HOLDERS_TOLD]],
        }

    def _look_up(self, header: bytes, owner: str, ids: Sequence[bytes]) -> tuple[Plan, list[Stored | None]]:
        """The plan of a call, and the resident arrays among its arguments."""
        call = self._planner.call(header)
        stored = [
            self._around.store.get(owner, ids[argument.array]) if isinstance(argument, ArrayArgument) else None
            for argument in call.arguments
        ]
        residents = tuple(None if found is None else found.where for found in stored)
        return self._planner.plan(header, residents), stored

    def executable(self, header: bytes) -> Executable:
        """The executable of a call, compiled if need be: for a look at its HLO and memory."""
        plan, _ = self._look_up(header, "", ())
        return self.cache.get_or_build(plan.key, lambda: self._build(plan)).result()

    def _at_hand(self, plan: Plan) -> Executable | None:
        """The executable, if it needs no compiling now."""
        if plan.is_transfer and not any(plan.moves):
            return self._build(plan)
        return self.cache.get(plan.key)

    def _compile(self, call: RunningCall) -> None:
        call.lap("queue")
        build = self.cache.get_or_build(call.plan.key, lambda: self._build(call.plan), is_wanted=call.is_wanted)
        build.add_done_callback(lambda done: self._compiled(call, done))

    def _compiled(self, call: RunningCall, done: Future[Executable]) -> None:
        call.compiled = True
        call.lap("compile")
        if done.cancelled():
            call.fail(Overloaded("the engine is about to stop", retry_after_s=1.0))
            return
        error = done.exception()
        if error is not None:
            call.fail(error)
        else:
            self._launch(call, done.result())

    def _launch(self, call: RunningCall, executable: Executable) -> None:
        if call.run_here(executable):
            return
        lane = self._one if call.plan.mesh is None else self._many
        if call.plan.is_transfer and not any(call.plan.moves):
            lane = self._transfers  # no program runs, so nothing can deadlock

        def launch() -> RunningCall | None:
            return call.launch(executable, again=lambda: lane.put(launch))

        lane.put(launch)

    def _build(self, plan: Plan) -> Executable:
        return build(plan, self._registry, self._meshes, memory_bytes=self._memory_bytes)

    def _enter(self, future: Future[CallResult], waiting: set[Future[CallResult]]) -> None:
        """Count a call until it ends. Calls that are compiled do not take the places of those that are ready.

        Raises:
            Overloaded: as many wait as may.
        """
        with self._lock:
            if len(waiting) >= self._settings.queue_depth:
                raise Overloaded(f"{len(waiting)} calls wait for the engine, which is its limit", retry_after_s=1.0)
            waiting.add(future)
        future.add_done_callback(waiting.discard)

    def close(self) -> None:
        """Finish what was launched, and stop the engine's threads."""
        self.cache.close()
        self._many.close()
        self._one.close()
        self._transfers.close()
        self._finishers.shutdown(wait=True)
