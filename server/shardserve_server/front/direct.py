"""Downloads that need no engine: an array whose bytes lie in a shared buffer is sent from there, without a copy.

A large upload whose memory became the array (JAX shares it on CPU), and the host copy of a pinned array, are that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from shardserve_proto.frames import encode_header
from shardserve_proto.messages import ArrayArgument, CallReply, CallRequest, PlacementReport, Precision, Report, Segment

from ..link.transfer import EngineReply
from .record import Record


def direct_outputs(call: CallRequest) -> tuple[int, ...] | None:
    """For each output, the argument whose data it is, when the call only asks for the data of resident arrays."""
    says_where = (call.mapping, call.mesh, call.in_shardings, call.out_shardings)
    is_plain = not call.program.steps and all(said is None for said in says_where)
    is_get = not any(call.kept()) and all(isinstance(argument, ArrayArgument) for argument in call.arguments)
    return call.program.outputs if is_plain and is_get else None


def direct_reply(
    arguments: Sequence[Record], outputs: Sequence[int], *, device_kind: str, precision: Precision, receive_s: float
) -> EngineReply | None:
    """The reply that the engine would give; None if one of the arrays is on the devices alone."""
    started = time.monotonic()
    views, holder = [], object()
    records = [arguments[number] for number in outputs]
    for record in records:
        copy = record.copy or record.shared
        if copy is None or not copy.is_there:
            return None
    for record in records:
        copy = record.copy or record.shared
        assert copy is not None  # noqa: S101 - see above
        views.append(copy.view)
        if copy.lease is not None:
            copy.lease.hold(holder)
    leases = {copy.lease for record in records if (copy := record.copy or record.shared) is not None}

    def release() -> None:
        for lease in leases:
            if lease is not None:
                lease.release(holder)

    phases = {"receive": receive_s, "gather": time.monotonic() - started}
    header = _header(arguments, records, device_kind=device_kind, precision=precision, phases_s=phases)
    return EngineReply(header, tuple(views), time.monotonic() - started, _release=release)


def _header(
    arguments: Sequence[Record],
    records: Sequence[Record],
    *,
    device_kind: str,
    precision: Precision,
    phases_s: dict[str, float],
) -> bytes:
    meshes = [record.info["mesh"] for record in records if record.info["mesh"]]
    report = Report(
        device_kind=device_kind,
        mesh=tuple(meshes[0]) if meshes else (),
        devices=tuple(records[0].info["devices"]),
        precision=precision,
        arguments=tuple(map(_placement, arguments)),
        outputs=tuple(map(_placement, records)),
        compiled=False,
        phases_s=phases_s,
    )
    segments = tuple(
        Segment(dtype=record.info["dtype"], shape=tuple(record.info["shape"]), nbytes=record.info["nbytes"])
        for record in records
    )
    return encode_header(CallReply(segments=segments, report=report).model_dump())


def _placement(record: Record) -> PlacementReport:
    info = record.info
    sizes, spec = dict(info["mesh"]), info["spec"] or ()
    parts = [math.prod(sizes[axis] for axis in _axes(entry)) for entry in spec]
    parts += [1] * (len(info["shape"]) - len(parts))
    return PlacementReport(
        dtype=info["dtype"],
        shape=tuple(info["shape"]),
        spec=info["spec"],
        padded_shape=tuple(size * part for size, part in zip(info["shard_shape"], parts, strict=True)),
        shard_shape=tuple(info["shard_shape"]),
    )


def _axes(entry: str | Sequence[str] | None) -> Sequence[str]:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else entry
