"""How far a large transfer is: told to the caller's own function, or shown as a bar."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

from ._config import PROGRESS_BYTES, PROGRESS_S

Direction = Literal["sent", "received"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one body is.

    Attributes:
        direction: "sent" or "received", as the client sees it.
        done_bytes, total_bytes: of the body; they are equal at its end.
    """

    direction: Direction
    done_bytes: int
    total_bytes: int


#: Called in the thread that transfers, about ten times a second and at the end. What it raises ends the call.
ProgressCallback: TypeAlias = Callable[[Progress], object]


class Meter:
    """Counts the bytes of one body and tells of them, not too often."""

    def __init__(self, callback: ProgressCallback, direction: Direction, total_bytes: int) -> None:
        self._callback = callback
        self._direction: Direction = direction
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._told = time.monotonic()

    @classmethod
    def of(cls, callback: ProgressCallback | None, direction: Direction, total_bytes: int) -> Meter | None:
        """A meter, if somebody wants to know and the body is large."""
        return cls(callback, direction, total_bytes) if callback and total_bytes > PROGRESS_BYTES else None

    def moved(self, nbytes: int) -> None:
        self._done_bytes += nbytes
        now = time.monotonic()
        if self._done_bytes >= self._total_bytes or now - self._told >= PROGRESS_S:
            self._told = now
            self._callback(Progress(self._direction, self._done_bytes, self._total_bytes))


class ProgressBar:
    """Shows transfers as bars; see `progress_bar`."""

    def __init__(self, lines: Callable[[], Any]) -> None:
        self._make_lines = lines
        self._lines: dict[tuple[int, str], Any] = {}

    def __call__(self, progress: Progress) -> None:
        key = (threading.get_ident(), progress.direction)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = self._make_lines()
        line.show(progress)
        if progress.done_bytes >= progress.total_bytes:
            self._lines.pop(key).close()

    def stop(self) -> None:
        """End what this thread began to show; a transfer that failed does so by itself."""
        for direction in ("sent", "received"):
            line = self._lines.pop((threading.get_ident(), direction), None)
            if line is not None:
                line.close()

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
    return ProgressBar(_RichBar)


class _RichBar:
    """One bar of rich; it is drawn when it is told to, so no thread is left behind."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
        console = Console(stderr=True)
        self._bars = Bars(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console, auto_refresh=False)
        self._task: Any = None

    def show(self, progress: Progress) -> None:
        if self._task is None:
            self._bars.start()
            self._task = self._bars.add_task(progress.direction, total=progress.total_bytes)
        self._bars.update(self._task, completed=progress.done_bytes, refresh=True)

    def close(self) -> None:
        self._bars.stop()


class _Line:
    """The same as plain text, over and over on one line."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def show(self, progress: Progress) -> None:
        seconds = max(time.monotonic() - self._started, 1e-3)
        done, total = progress.done_bytes / 2**20, progress.total_bytes / 2**20
        text = f"{progress.direction} {done:,.0f} of {total:,.0f} MiB, {done / total:.0%}, {done / seconds:,.0f} MiB/s"
        print(f"\r{text:<60}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        print(file=sys.stderr, flush=True)
