"""A front without keys, with an engine that lives in the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from .serving import Served, serving


@pytest.fixture(scope="module")
def front() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.fixture
def log() -> Iterator[list[structlog.typing.EventDict]]:
    """What is logged meanwhile."""
    with structlog.testing.capture_logs() as captured:
        yield captured
