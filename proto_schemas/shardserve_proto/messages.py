"""What crosses the wire around a program: the call, its reply and report, and what a server says of itself."""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypeAlias

from pydantic import ConfigDict, Field, model_validator

from .dtypes import dtype_named
from .errors import BadFrame, ProgramError, TooLarge
from .frames import Layout, lay_out
from .handles import ID_BYTES, Label
from .limits import LIMITS
from .programs import Constant, Mapping, Program, WireModel, check_extent
from .specs import Name, WireMesh, WireSpec, check_shape

Precision: TypeAlias = Literal["highest", "high", "default"]


class Segment(WireModel):
    """One array of a frame: what its bytes mean."""

    dtype: Annotated[str, Field(max_length=32)]
    shape: Annotated[tuple[int, ...], Field(max_length=LIMITS.rank, fail_fast=True)]
    nbytes: Annotated[int, Field(ge=0)]


def ids_segment(count: int = 1) -> Segment:
    """The segment that the ids of so many arrays are in, a row for each."""
    return Segment(dtype="uint8", shape=(count, ID_BYTES), nbytes=count * ID_BYTES)


class SegmentArgument(WireModel):
    """An argument whose bytes are a segment of the same frame."""

    segment: Annotated[int, Field(ge=0)]


class ArrayArgument(WireModel):
    """An argument that is on the devices already: a row of the call's ids."""

    array: Annotated[int, Field(ge=0)]


Argument: TypeAlias = SegmentArgument | ArrayArgument | Constant


class Keep(WireModel):
    """A result that stays on the devices.

    Attributes:
        array: the row of the call's ids that holds its id.
        name: a label for it in its owner's own space.
        replace: move the label from the array that has it.
        ttl_s: its lease in seconds, renewed by each use; absent, the server's own.
        pinned: no lease, and a host copy that outlives the engine.
    """

    array: Annotated[int, Field(ge=0)]
    name: Label | None = None
    replace: bool = False
    ttl_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    pinned: bool = False

    @model_validator(mode="after")
    def _replaces_a_name(self) -> Keep:
        if self.replace and self.name is None:
            raise ValueError("replace moves a name, and none is given")
        return self


class CallRequest(WireModel):
    """The header of a call. Unknown top-level keys are ignored, so that a newer client may speak to an older server.

    Attributes:
        mesh: a named mesh, or its axes and sizes; absent, one axis "devices" over all devices.
        mapping: the named axes of the whole program.
        in_shardings: one spec for each argument; absent, the server chooses.
        out_shardings: one spec for each output.
        precision: of float32 products and totals.
        timeout_s: seconds that the caller waits, from the arrival of the request.
        ids: the segment that holds the ids of all arrays of the call, uint8 of shape (arrays, 16). They are bytes and
            no part of the header, so that equal calls have equal headers, which both sides remember.
        results: for each output, None for its data or what to keep; absent, all data.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    program: Program
    arguments: Annotated[tuple[Argument, ...], Field(max_length=LIMITS.segments, fail_fast=True)] = ()
    segments: Annotated[tuple[Segment, ...], Field(max_length=LIMITS.segments, fail_fast=True)] = ()
    mesh: WireMesh | None = None
    mapping: Mapping | None = None
    in_shardings: Annotated[tuple[WireSpec, ...], Field(max_length=LIMITS.segments, fail_fast=True)] | None = None
    out_shardings: Annotated[tuple[WireSpec, ...], Field(max_length=LIMITS.segments, fail_fast=True)] | None = None
    precision: Precision = "highest"
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    ids: Annotated[int, Field(ge=0)] | None = None
    results: Annotated[tuple[Keep | None, ...], Field(max_length=LIMITS.segments, fail_fast=True)] | None = None

    def kept(self) -> tuple[Keep | None, ...]:
        """For each output, what to keep of it."""
        return (None,) * len(self.program.outputs) if self.results is None else self.results


class PlacementReport(WireModel):
    """Where one array lay: its spec, and the rows that each device held (padding included).

    Attributes:
        moved: a resident array that lay elsewhere, and was brought here for this call alone.
    """

    dtype: str
    shape: tuple[int, ...]
    spec: WireSpec
    padded_shape: tuple[int, ...]
    shard_shape: tuple[int, ...]
    moved: bool = False


class Report(WireModel):
    """What the server did for a call.

    Attributes:
        mesh: axes and sizes, in order; empty when one device ran the call.
        devices: ids in the mesh's order.
        compiled: whether this call had to wait for a compilation.
        phases_s: seconds of each phase: receive, queue, upload, compile, run, gather (up to the first byte).
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    device_kind: str
    mesh: tuple[tuple[str, int], ...]
    devices: tuple[int, ...]
    precision: Precision
    arguments: tuple[PlacementReport, ...]
    outputs: tuple[PlacementReport, ...]
    compiled: bool
    phases_s: dict[str, float]


class CallReply(WireModel):
    """The header of a reply: one segment for each output that is data, and the report."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    segments: tuple[Segment, ...]
    report: Report


class DeviceInfo(WireModel):
    """One device of the server."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: int
    kind: str
    platform: str
    process: int = 0


class ParameterInfo(WireModel):
    """One static parameter of a kernel."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    type: str
    required: bool
    default: bool | int | float | str | None = None


class KernelInfo(WireModel):
    """A kernel's documented signature."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    signature: str
    operands: tuple[str, ...]
    is_variadic: bool
    parameters: tuple[ParameterInfo, ...]
    summary: str
    doc: str


class ArrayInfo(WireModel):
    """One resident array, as its owner sees it.

    Attributes:
        id: 32 hex digits.
        nbytes: of the array; device_bytes of what it takes on the devices, padding and replicas included.
        mesh: axes and sizes; empty when it lies on one device.
        devices: ids of the devices that hold it, in the order of the mesh.
        ttl_s: its lease; None when it is pinned or declared.
        expires_in_s: what is left of it.
        host_bytes: of the copy that a pinned array keeps.
        is_declared: it comes from the operator's table, and belongs to everybody.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    name: str | None = None
    dtype: str
    shape: tuple[int, ...]
    spec: WireSpec
    mesh: tuple[tuple[str, int], ...]
    shard_shape: tuple[int, ...]
    nbytes: int
    device_bytes: int
    devices: tuple[int, ...] = ()
    age_s: float = 0.0
    ttl_s: float | None = None
    expires_in_s: float | None = None
    pinned: bool = False
    host_bytes: int = 0
    is_declared: bool = False


class EngineInfo(WireModel):
    """What the engine tells of itself in its first message.

    Attributes:
        declared: the arrays of the operator's table, which are on the devices already.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    versions: dict[str, str]
    devices: tuple[DeviceInfo, ...]
    meshes: dict[str, tuple[tuple[str, int], ...]]
    kernels: tuple[KernelInfo, ...]
    memory_bytes: int
    compile_cache_entries: int
    queue_depth: int
    notes: tuple[str, ...]
    declared: tuple[ArrayInfo, ...] = ()


class Holder(WireModel):
    """Who holds device memory.

    Attributes:
        what: "array" or "call".
        id, name: of an array; only its owner is told.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    what: str
    device_bytes: int
    age_s: float
    id: str | None = None
    name: str | None = None
    is_own: bool = True


class MemoryInfo(WireModel):
    """The ledger: every byte has a purpose.

    Attributes:
        device_limit_bytes: what arrays and calls may take on all devices together.
        resident_bytes: of resident arrays, padding and replicas included; own_resident_bytes of the asking owner's.
        reserved_bytes: for running calls: arguments, outputs and temporaries.
        transit_bytes, transit_limit_bytes: shared buffers of uploads and results under way.
        spare_bytes: shared buffers that stay mapped for reuse.
        pinned_bytes: host copies of pinned arrays.
        holders: the largest holders of device memory.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    device_limit_bytes: int
    resident_bytes: int
    reserved_bytes: int
    own_resident_bytes: int
    transit_bytes: int
    transit_limit_bytes: int
    spare_bytes: int
    pinned_bytes: int
    arrays: int
    holders: tuple[Holder, ...]


class ServerInfo(WireModel):
    """`/v1/info`: versions, limits, meshes and the numerical notes of the server."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    versions: dict[str, str]
    limits: dict[str, int]
    meshes: dict[Name, tuple[tuple[str, int], ...]]
    device_kind: str
    device_count: int
    notes: tuple[str, ...]


def segment_bytes(segment: Segment, index: int) -> int:
    """The bytes of a segment, from its shape in Python integers, which do not overflow.

    Raises:
        ShapeError, DTypeError, BadFrame: a bad shape, an unknown dtype, or `nbytes` that does not match.
    """
    check_shape(segment.shape, what=f"segment {index}")
    nbytes = math.prod(segment.shape) * dtype_named(segment.dtype).itemsize
    if nbytes != segment.nbytes:
        raise BadFrame(
            f"segment {index} declares {segment.nbytes} bytes, "
            f"but {segment.dtype} of shape {segment.shape} takes {nbytes}"
        )
    return nbytes


def frame_layout(header_bytes: int, segments: tuple[Segment, ...], *, declared: int, body_bytes: int) -> Layout:
    """Where the segments of a frame lie, once its header is read.

    Arguments:
        declared: the segment count of the prelude.
        body_bytes: the limit for the whole frame.
    """
    if declared != len(segments):
        raise BadFrame(f"the prelude declares {declared} segments, the header {len(segments)}")
    layout = lay_out(header_bytes, [segment_bytes(segment, index) for index, segment in enumerate(segments)])
    if layout.total > body_bytes:
        raise TooLarge(
            f"the frame takes {layout.total} bytes, at most {body_bytes} are allowed",
            details={"needed_bytes": layout.total, "limit_bytes": body_bytes},
        )
    return layout


def check_call(call: CallRequest) -> None:
    """The rules of a call that need neither shapes nor devices: counts and references agree.

    Raises:
        ProgramError: otherwise.
    """
    check_extent(call.program)
    if len(call.arguments) != call.program.inputs:
        raise ProgramError(f"the program takes {call.program.inputs} inputs, the call gives {len(call.arguments)}")
    for index, argument in enumerate(call.arguments):
        if isinstance(argument, SegmentArgument) and argument.segment >= len(call.segments):
            raise ProgramError(f"argument {index} refers to segment {argument.segment} of {len(call.segments)}")
    _check_names(call)
    _check_ids(call)
    _check_count("results", call.results, len(call.program.outputs), "outputs")
    _check_count("in_shardings", call.in_shardings, len(call.arguments), "arguments")
    _check_count("out_shardings", call.out_shardings, len(call.program.outputs), "outputs")


def _check_names(call: CallRequest) -> None:
    seen: set[str] = set()
    for name in (keep.name for keep in call.kept() if keep is not None and keep.name is not None):
        if name in seen:
            raise ProgramError(f"the name {name!r} is given to two results; each array has a name of its own")
        seen.add(name)


def _check_ids(call: CallRequest) -> None:
    rows = [argument.array for argument in call.arguments if isinstance(argument, ArrayArgument)]
    kept = [keep.array for keep in call.kept() if keep is not None]
    if len(set(kept)) < len(kept) or set(kept) & set(rows):
        raise ProgramError("each result that is kept has an id of its own, which no argument has")
    if call.ids is None:
        if rows or kept:
            raise ProgramError("the call refers to arrays, but names no segment of ids")
        return
    if call.ids >= len(call.segments):
        raise ProgramError(f"ids refers to segment {call.ids} of {len(call.segments)}")
    segment = call.segments[call.ids]
    known = segment.shape[0] if len(segment.shape) == 2 else 0
    if segment.dtype != "uint8" or segment.shape != (known, ID_BYTES):
        raise ProgramError(
            f"the segment of ids is uint8 of shape (arrays, {ID_BYTES}), not {segment.dtype}{segment.shape}"
        )
    for row in (*rows, *kept):
        if row >= known:
            raise ProgramError(f"the call refers to id {row} of {known}")
    if known > len({*rows, *kept}):
        raise ProgramError(f"the segment of ids has {known} rows, of which the call uses {len({*rows, *kept})}")


def _check_count(field: str, values: tuple[object, ...] | None, expected: int, things: str) -> None:
    if values is not None and len(values) != expected:
        raise ProgramError(f"{field} has {len(values)} specs for {expected} {things}")
