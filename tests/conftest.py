"""Eight virtual CPU devices and the engine's own JAX settings, for every test in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shardserve_server.engine.engine import Engine, EngineSettings
from shardserve_server.engine.mesh import configure_jax

configure_jax(8)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """One engine in this process, on eight virtual devices."""
    engine = Engine(EngineSettings(devices=8, meshes={"grid": (("x", 4), ("y", 2))}))
    yield engine
    engine.close()
