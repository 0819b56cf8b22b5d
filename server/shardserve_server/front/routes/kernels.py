"""`/v1/kernels`: what can be called."""

from __future__ import annotations

from fastapi import APIRouter, Request

from shardserve_proto.errors import NotFound, nearest
from shardserve_proto.messages import EngineInfo, KernelInfo

from ..services import services_of

router = APIRouter()


@router.get("/v1/kernels", summary="The kernels and their signatures")
async def kernels(request: Request) -> list[KernelInfo]:
    return list(services_of(request).engine_info().kernels)


@router.get("/v1/kernels/{name}", summary="One kernel: signature, parameters, documentation")
async def kernel(name: str, request: Request) -> KernelInfo:
    return find_kernel(services_of(request).engine_info(), name)


def find_kernel(info: EngineInfo, name: str) -> KernelInfo:
    """The kernel of this name.

    Raises:
        NotFound: with the nearest name.
    """
    known = {kernel.name: kernel for kernel in info.kernels}
    if name not in known:
        raise NotFound(f"there is no kernel {name[:64]!r} (GET /v1/kernels lists them){nearest(name[:64], known)}")
    return known[name]
