"""`/v1/arrays`: resident arrays by plain HTTP, as `.npy` files up and down; and `/v1/memory`, the ledger."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Collection
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field, TypeAdapter
from starlette.responses import Response

from shardserve_proto.errors import Forbidden, InvalidRequest, UnsupportedMediaType, nearest
from shardserve_proto.frames import MEDIA_TYPE
from shardserve_proto.handles import HEX_ID, ID_BYTES, Label
from shardserve_proto.messages import ArrayInfo, Keep, MemoryInfo
from shardserve_proto.programs import validate

from ...link.transfer import EngineReply, Upload
from ..array_calls import get_header, put_header
from ..body import BodyReader, check_media_type, content_length, headers_of
from ..downloads import as_frame, as_npy
from ..epoch import epochs_of
from ..holders import holders_for, told_to
from ..index import Slice, parse_index
from ..json_calls import as_seconds
from ..npy import NPY_TYPE, NpyHeader, check_form, encode_header, read_header
from ..openapi import ARRAY_BODIES, LEASE_BODY, NPY_BODY, RELEASE_BODY, WITH_IDS
from ..record import Record
from ..services import Services, owner_of, services_of
from .bodies import json_length, read_json

router = APIRouter()
#: Of what `curl --data-binary` may be told to send; its own default is that of a form, which no array is.
NPY_TYPES = (NPY_TYPE, "application/octet-stream")
MOST_RELEASED = 10_000
_KEEP_FIELDS = {"name", "replace", "ttl_s", "pinned"}
_LISTING = TypeAdapter(list[ArrayInfo])


class PutQuery(BaseModel):
    """What a put may say beside the array itself."""

    id: Annotated[str | None, Field(pattern=f"^{HEX_ID.pattern}$", description="drawn at random by the client")] = None
    name: Label | None = None
    replace: Annotated[bool, Field(description="move the name from the array that has it")] = False
    ttl_s: Annotated[float | None, Field(gt=0, allow_inf_nan=False, description="lease, renewed by each use")] = None
    pinned: Annotated[bool, Field(description="no lease, and a host copy that outlives the engine")] = False
    spec: Annotated[str | None, Field(description='JSON: ["devices",null], null (replicated) or "auto"')] = None
    mesh: Annotated[str | None, Field(description="the name of a mesh, or x=4,y=2")] = None


class Released(BaseModel):
    """How many of the arrays were there."""

    released: int


@router.get(
    "/v1/arrays",
    response_model=list[ArrayInfo],
    summary="The arrays of this key, and the declared ones; newest first",
)
async def list_arrays(request: Request, name: str | None = None) -> Response:
    _check_query(request, {"name"})
    arrays = services_of(request).arrays
    found = [record for record in arrays.listing(owner_of(request)) if name in (None, record.name)]
    text = await asyncio.to_thread(lambda: _LISTING.dump_json(list(map(arrays.describe, found))))
    return Response(text, media_type="application/json")


@router.post("/v1/arrays", status_code=201, summary="Put a .npy file on the devices", openapi_extra=NPY_BODY)
async def put_array(request: Request, query: Annotated[PutQuery, Query()]) -> ArrayInfo:
    """Such as `curl --data-binary @a.npy -H 'Content-Type: application/x-npy' '…/v1/arrays?name=a&ttl_s=60'`."""
    _check_query(request, PutQuery.model_fields)
    services, owner = services_of(request), owner_of(request)
    length = _npy_length(request)
    services.calls.admit(length)
    body = BodyReader(request.receive, length=length, scope=request.scope)
    npy = await read_header(body.read, length=length)
    key = secrets.token_bytes(ID_BYTES) if query.id is None else bytes.fromhex(query.id)
    await _put(services, request, body, npy, key, query)
    return services.arrays.info(owner, key)


async def _put(
    services: Services, request: Request, body: BodyReader, npy: NpyHeader, key: bytes, query: PutQuery
) -> None:
    keep = validate(Keep, query.model_dump(include=_KEEP_FIELDS) | {"array": 0})
    header = put_header(npy.segment, keep, spec=query.spec, mesh=query.mesh)
    head = services.calls.head(header, declared=2)
    services.arrays.check_new(owner_of(request), [(key, keep)], header)
    if keep.pinned and services.arrays.peek(owner_of(request), key) is None:  # a repeat has its copy already
        services.pins.check_room(services.arrays, npy.segment.nbytes)
    upload = services.calls.prepare(head)
    try:
        await _receive(body, upload, key)
        reply = await services.calls.run(header, head, upload, scope=request.scope)
        reply.release()
    finally:
        upload.release()


async def _receive(body: BodyReader, upload: Upload, key: bytes) -> None:
    """The array's bytes into their place, and its id behind them."""
    (_, nbytes), (position, _) = upload.segments
    view = upload.view
    await body.read_into(view[:nbytes])
    view[nbytes:position] = bytes(position - nbytes)  # the buffer held something else before
    view[position : position + ID_BYTES] = key


@router.get("/v1/arrays/{array}", summary="Download an array, or a slice of it", **ARRAY_BODIES)
async def get_array(
    array: str,
    request: Request,
    wanted: Annotated[str | None, Query(alias="slice", description="NumPy's basic indexing: 0:10,::2,3")] = None,
) -> Response:
    """A `.npy` file; with `Accept: application/vnd.shardserve.frame` a frame, which has every dtype."""
    _check_query(request, {"slice"})
    services = services_of(request)
    services.engine.check_ready()
    record = _named_in(request, array)
    is_frame = MEDIA_TYPE.encode() in headers_of(request.scope).get(b"accept", b"")
    dtype: str = record.info["dtype"]
    if not is_frame:
        check_form(dtype)
    cut = None if wanted is None else parse_index(wanted, record.info["shape"])
    reply = await _get(services, request, record, cut)
    if is_frame:
        return as_frame(reply)
    shape = record.info["shape"] if cut is None else cut.shape
    return as_npy(reply, encode_header(dtype, shape), filename=f"{record.name or record.id.hex()}.npy")


async def _get(services: Services, request: Request, record: Record, cut: Slice | None) -> EngineReply:
    header = get_header(cut)
    head = services.calls.head(header, declared=1)
    upload = services.calls.prepare(head)
    upload.view[:ID_BYTES] = record.id
    return await services.calls.run(header, head, upload, scope=request.scope)


@router.get(
    "/v1/arrays/{array}/info",
    summary="What an array is, where it lies and how long it stays",
    openapi_extra=WITH_IDS,
)
async def array_info(array: str, request: Request) -> ArrayInfo:
    return services_of(request).arrays.describe(_named_in(request, array))


@router.put("/v1/arrays/{array}/lease", summary="Renew a lease, or pin an array", openapi_extra=LEASE_BODY)
@router.post("/v1/arrays/{array}/lease", include_in_schema=False)
async def lease_array(array: str, request: Request) -> ArrayInfo:
    """`{"ttl_s": 600}` begins a lease now (and unpins); `{"pinned": true}` ends it and keeps a host copy."""
    services = services_of(request)
    ttl_s = _read_lease(await read_json(request, json_length(request)))
    record = _own(request, array)
    if ttl_s is None:
        await _pin(services, record)
    else:
        services.engine.check_ready()  # a pinned array that is not back on the devices yet has its host copy alone
        services.arrays.renew(record, ttl_s)
    return services.arrays.describe(record)


def _read_lease(body: Any) -> float | None:
    """Seconds; None pins."""
    match body:
        case {"pinned": True, **rest} if not rest:
            return None
        case {"ttl_s": int() | float() as given, **rest} if not rest and not isinstance(given, bool):
            seconds: float = as_seconds(given)
            if 0 < seconds < math.inf:
                return seconds
    raise InvalidRequest(
        'the body is {"ttl_s": seconds} for a lease from now on, a positive and finite number, or {"pinned": true}'
    )


async def _pin(services: Services, record: Record) -> None:
    services.arrays.use(record.owner, [record.id])
    with told_to(record.owner, services.arrays):
        await services.pins.pin(services.engine, services.arrays, record)


@router.delete(
    "/v1/arrays/{array}",
    status_code=204,
    summary="Delete an array; running calls keep it to their end",
    openapi_extra=WITH_IDS,
)
async def delete_array(array: str, request: Request) -> Response:
    record = _own(request, array)
    services_of(request).arrays.delete(record.owner, [record.id])
    return Response(status_code=204)


@router.post("/v1/arrays/release", summary="Delete many arrays; unknown ids are skipped", openapi_extra=RELEASE_BODY)
async def release_arrays(request: Request) -> Released:
    body = await read_json(request, json_length(request))
    ids = body.get("ids") if isinstance(body, dict) and len(body) == 1 else None
    if not isinstance(ids, list) or len(ids) > MOST_RELEASED:
        raise InvalidRequest(f'the body is {{"ids": [...]}}, with at most {MOST_RELEASED} ids')
    for given in ids:
        if not isinstance(given, str) or not HEX_ID.fullmatch(given):
            raise InvalidRequest(f"an id is 32 hex digits, not {str(given)[:64]!r}")
    found = services_of(request).arrays.delete(owner_of(request), map(bytes.fromhex, ids))
    return Released(released=found)


@router.get("/v1/memory", summary="The ledger: who holds how many bytes, and what for")
async def memory(request: Request) -> MemoryInfo:
    services, owner = services_of(request), owner_of(request)
    told = await services.engine.memory()
    usage = services.pool.usage()
    own = services.arrays.owned(owner)
    return MemoryInfo(
        device_limit_bytes=told["device_limit_bytes"],
        resident_bytes=told["resident_bytes"],
        reserved_bytes=told["reserved_bytes"],
        own_resident_bytes=sum(record.info["device_bytes"] for record in own),
        transit_bytes=usage.leased_bytes,
        transit_limit_bytes=usage.limit_bytes,
        spare_bytes=usage.spare_bytes,
        pinned_bytes=services.arrays.pinned_bytes,
        arrays=len(own),
        holders=holders_for(owner, told["holders"], services.arrays),
    )


def _named_in(request: Request, text: str) -> Record:
    """The array that a path means."""
    return services_of(request).arrays.at(owner_of(request), text, epochs_of(request.scope))


def _own(request: Request, text: str) -> Record:
    """An array that this owner may change.

    Raises:
        Forbidden: it is declared.
    """
    record = _named_in(request, text)
    if record.is_declared:
        raise Forbidden(
            f"array {record.name!r} is declared by the operator; everybody may use it, nobody may change it"
        )
    return record


def _npy_length(request: Request) -> int:
    headers = headers_of(request.scope)
    given = headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")
    if given not in NPY_TYPES:
        raise UnsupportedMediaType(
            f"this route reads .npy files, not {given[:60] or 'a body without Content-Type'}; "
            f"curl --data-binary @a.npy -H 'Content-Type: {NPY_TYPE}' sends one"
        )
    check_media_type(headers, given)
    return content_length(headers, limit=int(services_of(request).settings.body_bytes))


def _check_query(request: Request, known: Collection[str]) -> None:
    """A misspelt parameter must not be ignored: `ttl=5` would keep an array for an hour."""
    names = [name for name, _ in request.query_params.multi_items()]
    for name in names:
        if name not in known:
            raise InvalidRequest(f"unknown query parameter {name[:64]!r}{nearest(name[:64], known)}")
        if names.count(name) > 1:
            raise InvalidRequest(f"the query parameter {name!r} is given twice")
