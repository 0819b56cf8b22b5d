"""Memory that two processes can map: one interface, two implementations."""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

BufferKind = Literal["memfd", "file"]


@dataclass(frozen=True)
class Region:
    """Memory that a descriptor gives to another process.

    Attributes:
        descriptor: passed to an engine, which maps it.
        view: the front's own writable mapping.
    """

    descriptor: int
    view: memoryview


def memfd_region(nbytes: int) -> Region:
    """Anonymous memory whose size is sealed: no process can shrink it under another one's mapping."""
    descriptor = os.memfd_create("shardserve", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, nbytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return _mapped(descriptor, nbytes)
    except BaseException:
        os.close(descriptor)
        raise


def file_region(nbytes: int) -> Region:
    """A file without a name, for systems without memfd; its blocks are reserved, so no write can meet a full disk."""
    with tempfile.TemporaryFile(prefix="shardserve-") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, nbytes)
        else:
            os.ftruncate(file.fileno(), nbytes)
        descriptor = os.dup(file.fileno())
    try:
        return _mapped(descriptor, nbytes)
    except BaseException:
        os.close(descriptor)
        raise


def _mapped(descriptor: int, nbytes: int) -> Region:
    return Region(descriptor, memoryview(mmap.mmap(descriptor, nbytes)))


REGIONS: dict[BufferKind, Callable[[int], Region]] = {"memfd": memfd_region, "file": file_region}


def default_kind() -> BufferKind:
    """memfd where the system has it, else the unlinked file."""
    return "memfd" if sys.platform == "linux" else "file"
