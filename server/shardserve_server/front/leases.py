"""When the leases of arrays end: a heap, in which what was renewed or has gone stands for a while."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from .record import Key, Record

#: Entries that may be out of date, beside as many as there are arrays.
STALE_ENDS = 1000


class Leases:
    """The ends of leases, soonest first.

    Arguments:
        records: all arrays there are, when the heap is made anew.
    """

    def __init__(self, records: Callable[[], list[Record]]) -> None:
        self._records = records
        self._ends: list[tuple[float, int, Key]] = []
        self._entry = 0

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, record: Record, *, count: int) -> None:
        """A lease that began; of an array without one there is nothing to know.

        Arguments:
            count: how many arrays there are.
        """
        end = record.expires_at
        if end is None:
            return
        self._entry += 1
        heapq.heappush(self._ends, (end, self._entry, record.key))
        if len(self._ends) > 2 * count + STALE_ENDS:
            ends = ((r.expires_at, number, r.key) for number, r in enumerate(self._records()))
            self._ends = [(end, number, key) for end, number, key in ends if end is not None]
            heapq.heapify(self._ends)

    def due(self, now: float) -> Key | None:
        """Take out an array whose lease may be over; it may have been renewed meanwhile."""
        return heapq.heappop(self._ends)[2] if self._ends and self._ends[0][0] <= now else None

    def next_s(self, now: float) -> float | None:
        """Seconds until the next one may end."""
        return max(0.0, self._ends[0][0] - now) if self._ends else None
