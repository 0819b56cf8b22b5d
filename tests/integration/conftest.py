"""Real servers with eight virtual devices: one behind the SDK, and one that tests may send any bytes to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import shardserve as ss

from .serving import RunningServer, launch


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    """A server started from the command line, with the mesh `grid` (x=4, y=2); tests must leave it running."""
    with launch("--mesh", "grid:x=4,y=2") as running:
        yield running
        assert running.process.poll() is None, "a test ended the server"


@pytest.fixture(scope="session")
def local_client() -> Iterator[ss.Client]:
    """A client of a `LocalServer`."""
    with ss.LocalServer(devices=8) as client:
        yield client


@pytest.fixture
def client(local_client: ss.Client) -> ss.Client:
    """The same, where a test speaks of nothing else."""
    return local_client


@pytest.fixture
def server_url(local_client: ss.Client) -> str:
    """Where that server listens."""
    return local_client.url
