"""Pages of fresh memory, made before they are needed: in a thread, without the interpreter's lock.

The first touch of a page costs about as much as the copy that fills it, so an upload into fresh memory runs at half of
the speed. A buffer that stays with a resident array leaves a gap among the spare ones, which is filled from here.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

_MADV_POPULATE_WRITE = 23
#: The kernel is asked for so much at a time (0.6 ms): meanwhile nobody can map or unmap memory.
SLICE_BYTES = 2**20


def populate(view: memoryview, *, should_stop: Callable[[], bool] = lambda: False) -> bool:
    """Have the kernel make every page behind a view; whether it did (Linux 5.14 and later)."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    anchor = ctypes.c_char.from_buffer(view)
    start = ctypes.addressof(anchor)
    for offset in range(0, len(view), SLICE_BYTES):
        nbytes = min(SLICE_BYTES, len(view) - offset)
        if should_stop() or libc.madvise(
            ctypes.c_void_p(start + offset), ctypes.c_size_t(nbytes), _MADV_POPULATE_WRITE
        ):
            return False
    return True
