"""CPU time and memory of a tree of processes, as the kernel counts them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

PROC = Path("/proc")
CPUCLOCK_SCHED = 2
LOOK_EVERY_S = 0.01


def cpu_s(pids: list[int]) -> float:
    """The CPU seconds of processes so far, to the nanosecond; those that have ended count nothing."""
    total = 0.0
    for pid in pids:
        try:
            # The clock of another process, as clock_getcpuclockid(3) makes it.
            total += time.clock_gettime((~pid << 3) | CPUCLOCK_SCHED)
        except OSError:
            continue
    return total


def resident_bytes(pids: list[int]) -> int:
    """The memory of processes; a page that several of them map counts once."""
    return sum(_proportional_bytes(pid) for pid in pids)


class Watched:
    """Looks at the memory of processes again and again, in a thread, for as long as the block lasts.

    Attributes:
        extra_bytes: the most that was seen beyond what they had at first.
    """

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.extra_bytes = 0

    def __enter__(self) -> Self:
        self._before = resident_bytes(self._pids)
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        took_s = 0.0
        while True:
            # A look holds up whoever maps pages meanwhile, so most of the time nobody looks.
            is_last = self._over.wait(max(LOOK_EVERY_S, 4 * took_s))
            started = time.perf_counter()
            self.extra_bytes = max(self.extra_bytes, resident_bytes(self._pids) - self._before)
            took_s = time.perf_counter() - started
            if is_last:
                return


def _proportional_bytes(pid: int) -> int:
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:  # it has ended
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)


def tree_of(root: int) -> list[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for folder in PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        yield int(folder.name), int(stat.rpartition(")")[2].split()[1])
