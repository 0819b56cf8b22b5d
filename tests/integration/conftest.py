"""One real server, with an engine of eight virtual devices, for the programs that users would write."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import shardserve as ss


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
    return local_client._address.url
