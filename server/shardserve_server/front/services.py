"""What the routes share."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import cast

from fastapi import Request

from shardserve_proto.messages import EngineInfo

from ..link.buffers import BufferPool
from ..link.transfer import EngineLink
from ..settings import Settings
from .arrays import Arrays
from .calls import Calls
from .pins import Pins
from .stopping import Stopping


@dataclass(frozen=True)
class Services:
    """The parts of one front."""

    settings: Settings
    engine: EngineLink
    pool: BufferPool
    calls: Calls
    arrays: Arrays
    pins: Pins
    stopping: Stopping
    version: str = version("shardserve")

    def engine_info(self) -> EngineInfo:
        """What the engine told last; it stays true while the engine starts again.

        Raises:
            EngineStarting, EngineLost: it was never ready.
        """
        return self.engine.info or self.engine.check_ready()


def owner_of(request: Request) -> str:
    """The owner of the request's key."""
    owner: str = request.scope["state"].get("owner", "")
    return owner


def services_of(request: Request) -> Services:
    return cast(Services, request.app.state.services)
