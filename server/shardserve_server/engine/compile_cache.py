"""Executables by key: compiled once, in a thread of their own; the least recently used one goes first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from cachetools import LRUCache

from shardserve_proto.errors import DeadlineExceeded

Value = TypeVar("Value")


@dataclass
class _Pending(Generic[Value]):
    """A build that waits or runs, and whether each of its callers still waits for it."""

    future: Future[Value] = field(default_factory=Future)
    wanted: list[Callable[[], bool]] = field(default_factory=list)


def _always() -> bool:
    return True


class CompileCache(Generic[Value]):
    """Single-flight, bounded by count. JAX's own caches never evict and are not used.

    Arguments:
        entries: how many executables are kept.
    """

    def __init__(self, entries: int) -> None:
        self._ready: LRUCache[Hashable, Value] = LRUCache(entries)
        self._pending: dict[Hashable, _Pending[Value]] = {}
        self._lock = threading.Lock()
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="compile")
        self.compilations = 0

    def get(self, key: Hashable) -> Value | None:
        """The executable, if it is ready."""
        with self._lock:
            return self._ready.get(key)

    def get_or_build(
        self, key: Hashable, build: Callable[[], Value], *, is_wanted: Callable[[], bool] = _always
    ) -> Future[Value]:
        """The executable's future; of any number of callers at once the first one's `build` runs.

        A build that raises fails its own callers and is forgotten, so that it poisons nothing. One whose callers have
        all gone before its turn is not begun: clients that come and go must not keep the compiler from the others.

        Arguments:
            is_wanted: whether this caller still waits; asked when the build's turn has come.
        """
        with self._lock:
            value = self._ready.get(key)
            if value is not None:
                ready: Future[Value] = Future()
                ready.set_result(value)
                return ready
            pending = self._pending.get(key)
            if pending is None:
                pending = self._pending[key] = _Pending()
                pending.future = self._compiler.submit(self._build, key, build)
            pending.wanted.append(is_wanted)
            return pending.future

    def _build(self, key: Hashable, build: Callable[[], Value]) -> Value:
        with self._lock:
            if not any(is_wanted() for is_wanted in self._pending[key].wanted):
                del self._pending[key]
                raise DeadlineExceeded("nobody waited for this program any more when its turn to be compiled came")
        try:
            value = build()
            with self._lock:
                self._ready[key] = value
                self.compilations += 1
            return value
        finally:
            with self._lock:
                self._pending.pop(key, None)

    def __len__(self) -> int:
        with self._lock:
            return len(self._ready)

    def close(self) -> None:
        """Finish the compilation that runs, drop those that wait."""
        self._compiler.shutdown(wait=True, cancel_futures=True)
