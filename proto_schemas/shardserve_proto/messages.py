"""What crosses the wire around a program: the call, its reply and report, and what a server says of itself."""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypeAlias

from pydantic import ConfigDict, Field

from .dtypes import dtype_named
from .errors import BadFrame, ProgramError, TooLarge
from .frames import Layout, lay_out
from .limits import LIMITS
from .programs import Constant, Mapping, Program, WireModel, check_extent
from .specs import Name, WireMesh, WireSpec, check_shape

Precision: TypeAlias = Literal["highest", "high", "default"]


class Segment(WireModel):
    """One array of a frame: what its bytes mean."""

    dtype: Annotated[str, Field(max_length=32)]
    shape: Annotated[tuple[int, ...], Field(max_length=LIMITS.rank, fail_fast=True)]
    nbytes: Annotated[int, Field(ge=0)]


class SegmentArgument(WireModel):
    """An argument whose bytes are a segment of the same frame."""

    segment: Annotated[int, Field(ge=0)]


Argument: TypeAlias = SegmentArgument | Constant


class CallRequest(WireModel):
    """The header of a call. Unknown top-level keys are ignored, so that a newer client may speak to an older server.

    Attributes:
        mesh: a named mesh, or its axes and sizes; absent, one axis "devices" over all devices.
        mapping: the named axes of the whole program.
        in_shardings: one spec for each argument; absent, the server chooses.
        out_shardings: one spec for each output.
        precision: of float32 products and totals.
        timeout_s: seconds that the caller waits, from the arrival of the request.
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
    result: Literal["data"] = "data"


class PlacementReport(WireModel):
    """Where one array lay: its spec, and the rows that each device held (padding included)."""

    dtype: str
    shape: tuple[int, ...]
    spec: WireSpec
    padded_shape: tuple[int, ...]
    shard_shape: tuple[int, ...]


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
    """The header of a reply: one segment for each output, and the report."""

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


class EngineInfo(WireModel):
    """What the engine tells of itself in its first message."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    versions: dict[str, str]
    devices: tuple[DeviceInfo, ...]
    meshes: dict[str, tuple[tuple[str, int], ...]]
    kernels: tuple[KernelInfo, ...]
    memory_bytes: int
    compile_cache_entries: int
    notes: tuple[str, ...]


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
    _check_count("in_shardings", call.in_shardings, len(call.arguments), "arguments")
    _check_count("out_shardings", call.out_shardings, len(call.program.outputs), "outputs")


def _check_count(field: str, values: tuple[object, ...] | None, expected: int, things: str) -> None:
    if values is not None and len(values) != expected:
        raise ProgramError(f"{field} has {len(values)} specs for {expected} {things}")
