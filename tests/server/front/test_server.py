"""The process that serves: what it asks of the system."""

from __future__ import annotations

import resource

import pytest

from shardserve_server.front.server import allow_descriptors


@pytest.mark.parametrize(
    ("limits", "needed", "raised"),
    [((100, 5000), 1000, 1000), ((100, 500), 1000, 500), ((2000, 5000), 1000, None), ((100, -1), 1000, 1000)],
)
def test_the_limit_of_open_files_is_raised_as_far_as_it_goes(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], needed: int, raised: int | None
) -> None:
    """A5: what many connections need."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: asked.append(wanted))
    allow_descriptors(needed)
    assert asked == ([] if raised is None else [(raised, limits[1])])
