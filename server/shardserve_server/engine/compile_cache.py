"""Executables by key: compiled once, in a thread of their own; the least recently used one goes first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from cachetools import LRUCache

Value = TypeVar("Value")


class CompileCache(Generic[Value]):
    """Single-flight, bounded by count. JAX's own caches never evict and are not used.

    Arguments:
        entries: how many executables are kept.
    """

    def __init__(self, entries: int) -> None:
        self._ready: LRUCache[Hashable, Value] = LRUCache(entries)
        self._pending: dict[Hashable, Future[Value]] = {}
        self._lock = threading.Lock()
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="compile")
        self.compilations = 0

    def get(self, key: Hashable) -> Value | None:
        """The executable, if it is ready."""
        with self._lock:
            return self._ready.get(key)

    def get_or_build(self, key: Hashable, build: Callable[[], Value]) -> Future[Value]:
        """The executable's future; of any number of callers at once the first one's `build` runs.

        A build that raises fails its own callers and is forgotten, so that it poisons nothing.
        """
        with self._lock:
            value = self._ready.get(key)
            if value is not None:
                ready: Future[Value] = Future()
                ready.set_result(value)
                return ready
            if key not in self._pending:
                self._pending[key] = self._compiler.submit(self._build, key, build)
            return self._pending[key]

    def _build(self, key: Hashable, build: Callable[[], Value]) -> Value:
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
