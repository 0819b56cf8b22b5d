"""A bounded memory of results, safe to share between threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Remembered(Generic[T]):
    """The results for the keys that were asked last.

    Arguments:
        entries: how many are kept.
        keeps: whether a result may be used again.
    """

    def __init__(self, entries: int, keeps: Callable[[T], bool] = lambda _: True) -> None:
        self._entries = entries
        self._keeps = keeps
        self._results: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result of this key; `make` is called without the lock, so two threads may make the same one."""
        with self._lock:
            if key in self._results:
                self._results.move_to_end(key)
                return self._results[key]
        result = make()
        if not self._keeps(result):
            return result
        with self._lock:
            self._results[key] = result
            while len(self._results) > self._entries:
                self._results.popitem(last=False)
        return result

    def __len__(self) -> int:
        return len(self._results)
