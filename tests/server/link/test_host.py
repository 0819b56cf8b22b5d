"""The memory that this process may have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardserve_server.link.host import memory_bytes


@pytest.mark.parametrize(
    ("limit", "expected"), [("1048576\n", 1048576), ("max\n", None), ("", None), ("9223372036854771712", None)]
)
def test_a_container_has_what_its_limit_leaves_of_the_host(tmp_path: Path, limit: str, expected: int | None) -> None:
    (tmp_path / "memory.max").write_text(limit)
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory_bytes((tmp_path / "missing", tmp_path / "memory.max")) == (expected or host)
