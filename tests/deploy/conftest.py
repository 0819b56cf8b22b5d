"""A host with a stub of everything, where a test does not bring its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from .hosts import host_stage
from .stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return host_stage(tmp_path)
