"""`/v1/kernels`: what can be called, and calling it with JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from shardserve_proto.dtypes import dtype_named
from shardserve_proto.errors import NotFound, TooLarge, nearest
from shardserve_proto.frames import decode_header
from shardserve_proto.messages import ArrayInfo, CallReply, EngineInfo, KernelInfo
from shardserve_proto.programs import validate

from ...link.transfer import EngineReply
from ..calls import Calls, reply_phases
from ..epoch import NO_EPOCHS, epochs_of
from ..json_arrays import write_array
from ..json_calls import JsonCall, read_call, residents
from ..openapi import JSON_CALL
from ..services import owner_of, services_of
from ..telemetry import server_timing
from .bodies import aside, json_length, read_json

router = APIRouter()


@router.get("/v1/kernels", summary="The kernels and their signatures")
async def kernels(request: Request) -> list[KernelInfo]:
    return list(services_of(request).engine_info().kernels)


@router.get("/v1/kernels/{name}", summary="One kernel: signature, parameters, documentation")
async def kernel(name: str, request: Request) -> KernelInfo:
    return find_kernel(services_of(request).engine_info(), name)


@router.post("/v1/kernels/{name}", summary="Call a kernel with JSON", openapi_extra=JSON_CALL)
async def call_kernel(name: str, request: Request) -> Response:
    """The same call as a frame would make, for small arrays and `curl`."""
    services = services_of(request)
    limit = int(services.settings.json_bytes)
    length = json_length(request)
    find_kernel(services.engine.check_ready(), name)
    body = await read_json(request, length)
    owner, named = owner_of(request), residents(body)
    epochs = epochs_of(request.scope) if named else NO_EPOCHS
    known = {text: services.arrays.at(owner, text, epochs).id for text in named}
    call = await aside(read_call, nbytes=length)(name, body, known)
    reply = await _run(services.calls, call, request)
    try:
        kept = None if call.kept is None else services.arrays.info(owner, call.kept)
        text = await aside(_write_reply, nbytes=sum(reply.sizes))(reply, kept, limit=limit)
        timing = server_timing(reply_phases(reply, arrived=request.scope["state"]["arrived"]))
    finally:
        reply.release()
    return Response(text, media_type="application/json", headers={"server-timing": timing.decode()})


def find_kernel(info: EngineInfo, name: str) -> KernelInfo:
    """The kernel of this name.

    Raises:
        NotFound: with the nearest name.
    """
    known = {kernel.name: kernel for kernel in info.kernels}
    if name not in known:
        raise NotFound(f"there is no kernel {name[:64]!r} (GET /v1/kernels lists them){nearest(name[:64], known)}")
    return known[name]


async def _run(calls: Calls, call: JsonCall, request: Request) -> EngineReply:
    head = calls.head(call.header, declared=len(call.arrays))
    upload = calls.prepare(head)
    try:
        _fill(upload.view, upload.segments, call)
        return await calls.run(call.header, head, upload, scope=request.scope)
    finally:
        upload.release()


def _fill(view: memoryview, places: tuple[tuple[int, int], ...], call: JsonCall) -> None:
    for (offset, nbytes), array in zip(places, call.arrays, strict=True):
        view[offset : offset + nbytes] = array.tobytes()


def _write_reply(reply: EngineReply, kept: ArrayInfo | None, *, limit: int) -> bytes:
    header = validate(CallReply, decode_header(reply.header))
    total = sum(segment.nbytes for segment in header.segments)
    if total > limit:
        raise TooLarge(
            f"the results take {total} bytes, at most {limit} are sent as JSON; call with a frame (POST /v1/call)",
            details={"needed_bytes": total, "limit_bytes": limit},
        )
    results: list[Any] = [] if kept is None else [kept.model_dump(mode="json")]
    for segment, data in zip(header.segments, reply.segments, strict=True):
        count = math.prod(segment.shape)
        array = np.frombuffer(data, dtype_named(segment.dtype), count=count).reshape(segment.shape)
        results.append(write_array(array))
    return json.dumps({"results": results, "report": header.report.model_dump(mode="json")}, allow_nan=False).encode()
