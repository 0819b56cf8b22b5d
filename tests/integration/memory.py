"""The memory of running processes, with what they share counted once; and arrays too large to be looked at whole."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from tests.calls import Array

MIB = 2**20
_HASHED = 16 * MIB


def pss_bytes(pid: int) -> int:
    """A process' resident memory; a page that n processes map counts as an n-th of one."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the system does not tell")


class Watch:
    """Samples the memory of processes while a block runs.

    Arguments:
        pids: by the names under which they are reported.

    Attributes:
        before, after: bytes at the beginning and the end, by name.
        peak: the most of each, and of all together under "all".
    """

    def __init__(self, pids: Mapping[str, int], *, every_s: float = 0.05) -> None:
        self._pids = dict(pids)
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="watch-memory")
        self.before: dict[str, int] = {}
        self.after: dict[str, int] = {}
        self.peak: dict[str, int] = {}
        self.seconds = 0.0

    def look(self) -> dict[str, int]:
        """All processes now."""
        found = {name: pss_bytes(pid) for name, pid in self._pids.items()}
        return found | {"all": sum(found.values())}

    def _sample(self) -> None:
        while not self._stop.wait(self._every_s):
            began = time.monotonic()
            self._note(self.look())
            # A look at many GiB takes its time, in which those processes cannot map memory.
            self._stop.wait(4 * (time.monotonic() - began))

    def _note(self, found: Mapping[str, int]) -> None:
        self.peak = {name: max(nbytes, self.peak.get(name, 0)) for name, nbytes in found.items()}

    def extra_bytes(self, name: str = "all") -> int:
        """How far the peak was above the beginning."""
        return self.peak[name] - self.before[name]

    def __enter__(self) -> Self:
        self.before = self.look()
        self._note(self.before)
        self._thread.start()
        self.seconds = -time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds += time.monotonic()
        self._stop.set()
        self._thread.join()
        self.after = self.look()
        self._note(self.after)

    def row(self, title: str, payload_bytes: int) -> str:
        """One line of a report."""
        cells = [f"{name} {self.before[name] / MIB:8.0f} -> {self.peak[name] / MIB:8.0f}" for name in self.peak]
        extra = self.extra_bytes() / MIB
        ratio = self.extra_bytes() / payload_bytes
        return f"{title:38} {self.seconds:6.2f} s  {' | '.join(cells)} | extra {extra:7.0f} MiB = {ratio:.2f}x"


def digest(array: Array) -> str:
    """The hash of a contiguous array's bytes."""
    found = hashlib.blake2b()
    flat = array.reshape(-1).view(np.uint8).data
    for start in range(0, len(flat), _HASHED):
        found.update(flat[start : start + _HASHED])
    return found.hexdigest()


def digest_of_double(array: Array) -> str:
    """The hash of twice an array, without the memory for it."""
    found = hashlib.blake2b()
    flat = array.reshape(-1)
    step = _HASHED // array.itemsize
    for start in range(0, len(flat), step):
        found.update((flat[start : start + step] * 2).data.cast("B"))
    return found.hexdigest()


def random_array(shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Random float32, made in place: it takes no memory beside its own."""
    found = np.empty(shape, np.float32)
    np.random.default_rng(seed).random(out=found, dtype=np.float32)
    return found
