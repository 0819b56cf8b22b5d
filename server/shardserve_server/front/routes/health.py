"""`/livez`, `/readyz`, `/v1/info`, `/v1/devices`: what a probe or a person asks first."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel

from shardserve_proto.limits import LIMITS
from shardserve_proto.messages import DeviceInfo, EngineInfo, ServerInfo

from ..services import Services, services_of

router = APIRouter()


class Alive(BaseModel):
    """The front answers."""

    status: Literal["alive"] = "alive"


class Ready(BaseModel):
    """The engine takes calls."""

    status: Literal["ready"] = "ready"


@router.head("/livez", include_in_schema=False)
@router.get("/livez", summary="The front answers")
async def livez() -> Alive:
    return Alive()


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", summary="The engine takes calls; 503 with the reason when it does not")
async def readyz(request: Request) -> Ready:
    services_of(request).engine.check_ready()
    return Ready()


@router.get("/v1/devices", summary="The devices of the server")
async def devices(request: Request) -> list[DeviceInfo]:
    return list(services_of(request).engine_info().devices)


@router.get("/v1/info", summary="Versions, limits, meshes and numerical notes")
async def info(request: Request) -> ServerInfo:
    services = services_of(request)
    engine = services.engine_info()
    return ServerInfo(
        versions={"shardserve": services.version, **engine.versions},
        limits=_limits(services, engine),
        meshes=engine.meshes,
        device_kind=engine.devices[0].kind,
        device_count=len(engine.devices),
        notes=engine.notes,
    )


def _limits(services: Services, engine: EngineInfo) -> dict[str, int]:
    """The protocol's table, with what the settings of this server and its engine make of it."""
    settings = services.settings
    own = {
        "body_bytes": int(settings.body_bytes),
        "json_bytes": int(settings.json_bytes),
        "buffer_bytes": int(settings.buffer_bytes),
        "queue_depth": engine.queue_depth,
        "compile_cache_entries": engine.compile_cache_entries,
    }
    return LIMITS.as_dict() | own
