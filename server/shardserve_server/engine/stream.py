"""Large results on their way out, window by window: whoever sends them holds a few windows and never the whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax

from .placement import Placed
from .transfer import HostShard, Index, blocks, copy_block, host_shards, typed

#: Results above this size are not gathered in one piece.
STREAM_BYTES = 64 * 2**20
WINDOW_BYTES = 4 * 2**20


class Stream:
    """The results of one call that are read window by window, in any order.

    Arguments:
        results: and where each lies; one stream segment for each.
        keeps: whatever must live as long as the stream: resident arrays count in the ledger until then.
        on_close: called once, when nobody needs the results any more.
    """

    def __init__(
        self, results: Sequence[tuple[jax.Array, Placed]], *, keeps: object, on_close: Callable[[], None]
    ) -> None:
        self._keeps = keeps
        self._placed = [placed for _, placed in results]
        self._shards: list[list[HostShard]] = [host_shards(array) for array, _ in results]
        self._blocks: list[list[Index]] = [
            blocks(placed.aval.shape, itemsize=placed.aval.strong_dtype.itemsize, most_bytes=WINDOW_BYTES)
            for placed in self._placed
        ]
        self._on_close = on_close

    @property
    def windows(self) -> tuple[tuple[int, ...], ...]:
        """For each segment, the bytes of its windows, which follow each other without gaps."""
        return tuple(
            tuple(math.prod(b.stop - b.start for b in block) * placed.aval.strong_dtype.itemsize for block in found)
            for placed, found in zip(self._placed, self._blocks, strict=True)
        )

    def fill(self, segment: int, window: int, memory: memoryview) -> None:
        """Copy one window into memory of its size."""
        block = self._blocks[segment][window]
        target = typed(memory, self._placed[segment].aval.strong_dtype, [b.stop - b.start for b in block])
        copy_block(self._shards[segment], block, target)

    def close(self) -> None:
        """Let the results go; repeating it is harmless."""
        self._shards, self._keeps = [], None
        on_close, self._on_close = self._on_close, _nothing
        on_close()


def _nothing() -> None:
    pass
