"""How far a large transfer is: told to the caller's own function, or shown as a bar."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, TypeAlias

from ._config import PROGRESS_BYTES, PROGRESS_S

Direction = Literal["sent", "received"]
DIRECTIONS: tuple[Direction, ...] = ("sent", "received")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one body is.

    Attributes:
        direction: "sent" or "received", as the client sees it.
        done_bytes, total_bytes: of the body; they are equal at its end.
        transfer: a number of this body alone, by which several at a time are told apart.
        has_failed: it ended early; nothing more is told of it.
    """

    direction: Direction
    done_bytes: int
    total_bytes: int
    transfer: int = 0
    has_failed: bool = False

    @property
    def is_over(self) -> bool:
        return self.has_failed or self.done_bytes >= self.total_bytes


#: Called in the thread that transfers, about ten times a second and at the end. What it raises ends the call.
ProgressCallback: TypeAlias = Callable[[Progress], object]

_transfers = itertools.count(1)


class Meter:
    """Counts the bytes of one body and tells of them, not too often."""

    def __init__(self, callback: ProgressCallback, direction: Direction, total_bytes: int) -> None:
        self._callback = callback
        self._told = Progress(direction, 0, total_bytes, next(_transfers))
        self._told_at = time.monotonic()
        self._done_bytes = 0

    @classmethod
    def of(cls, callback: ProgressCallback | None, direction: Direction, total_bytes: int) -> Meter | None:
        """A meter, if somebody wants to know and the body is large."""
        return cls(callback, direction, total_bytes) if callback and total_bytes > PROGRESS_BYTES else None

    def moved(self, nbytes: int) -> None:
        self._done_bytes += nbytes
        now = time.monotonic()
        if self._done_bytes >= self._told.total_bytes or now - self._told_at >= PROGRESS_S:
            self._told_at = now
            self._told = replace(self._told, done_bytes=self._done_bytes)
            self._callback(self._told)

    def failed(self) -> None:
        """No more bytes come; who was told of some is told of that."""
        if self._told.done_bytes and not self._told.is_over:
            self._told = replace(self._told, has_failed=True)
            with contextlib.suppress(Exception):  # the error under way is the one that counts
                self._callback(self._told)


class ProgressBar:
    """Shows transfers as bars; see `progress_bar`."""

    def __init__(self, picture: Callable[[], Any]) -> None:
        self._make_picture = picture
        self._picture: Any = None
        self._transfers: dict[int, Progress] = {}
        self._lock = threading.Lock()

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            self._picture = self._picture or self._make_picture()
            self._transfers[progress.transfer] = progress
            self._picture.show(self._transfers.values())
            if all(transfer.is_over for transfer in self._transfers.values()):
                self._end()

    def stop(self) -> None:
        """End what was begun to be shown; a transfer that fails does so by itself."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        self._transfers.clear()
        if self._picture is not None:
            self._picture.close()
            self._picture = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


def progress_bar() -> ProgressBar:
    """A bar for long transfers, in terminals and notebooks: rich's if it is installed, else a line on stderr.

    Returns: a value for `progress=`, of a client or of a call. Bodies up to 1 MiB show nothing.

    Example:
        client.matmul(big, w, progress=ss.progress_bar())
    """
    try:
        import rich.progress  # noqa: F401 - asked for here, used below
    except ImportError:
        return ProgressBar(_Line)
    return ProgressBar(_RichBars)


class _RichBars:
    """A bar of rich for each transfer; they are drawn when they are told to, so no thread is left behind."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
        console = Console(stderr=True)
        self._bars = Bars(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console, auto_refresh=False)
        self._tasks: dict[int, Any] = {}
        self._bars.start()

    def show(self, transfers: Iterable[Progress]) -> None:
        for progress in transfers:
            if progress.transfer not in self._tasks:
                self._tasks[progress.transfer] = self._bars.add_task("", total=progress.total_bytes)
            description = f"{progress.direction}, failed" if progress.has_failed else progress.direction
            task = self._tasks[progress.transfer]
            self._bars.update(task, completed=progress.done_bytes, description=description)
        self._bars.refresh()

    def close(self) -> None:
        self._bars.stop()


class _Line:
    """The transfers of each direction together, as plain text, over and over on one line."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def show(self, transfers: Iterable[Progress]) -> None:
        texts = [self._text(direction, [p for p in transfers if p.direction == direction]) for direction in DIRECTIONS]
        print(f"\r{'; '.join(filter(None, texts)):<60}", end="", file=sys.stderr, flush=True)

    def _text(self, direction: Direction, transfers: list[Progress]) -> str:
        done, total = (sum(p.done_bytes for p in transfers) / 2**20, sum(p.total_bytes for p in transfers) / 2**20)
        rate = done / max(time.monotonic() - self._started, 1e-3)
        return f"{direction} {done:,.0f} of {total:,.0f} MiB, {done / total:.0%}, {rate:,.0f} MiB/s" if total else ""

    def close(self) -> None:
        print(file=sys.stderr, flush=True)
