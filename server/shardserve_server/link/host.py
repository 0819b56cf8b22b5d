"""What the host lets this process have."""

from __future__ import annotations

import os
from pathlib import Path

#: Where Linux tells the limit of a container, in the two versions of its control groups.
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_bytes(limits: tuple[Path, ...] = _LIMITS) -> int:
    """The memory of the host, or of the container that this is, whichever is less."""
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([host, *(limit for path in limits if (limit := _read(path)) > 0)])


def _read(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max" is no limit
        return 0
