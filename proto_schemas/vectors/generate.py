"""Writes the golden frames beside this file: `python proto_schemas/vectors/generate.py`.

Each vector is a pair: `NAME.bin`, the bytes on the wire, and `NAME.json`, what they mean. A good frame is described by
its header and its segments in hex; a malformed one by the code of the error that it gets. A change of these bytes is
a change of the protocol.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardserve_proto.dtypes import DTYPES
from shardserve_proto.frames import MAGIC, PRELUDE, encode_frame, encode_header
from shardserve_proto.messages import (
    ArrayArgument,
    CallReply,
    CallRequest,
    Keep,
    PlacementReport,
    Report,
    Segment,
    SegmentArgument,
)
from shardserve_proto.programs import Constant, Mapping, Program, Step
from shardserve_proto.specs import parse_axes

FOLDER = Path(__file__).parent
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Vector:
    """One golden frame.

    Attributes:
        title: what it shows, in a sentence.
        kind: "call", "reply", or "malformed".
        header: of a good frame.
        segments: of a good frame.
        error: the code that a malformed frame gets.
    """

    name: str
    title: str
    kind: str
    data: bytes
    header: dict[str, Any] | None = None
    segments: tuple[bytes, ...] = ()
    error: str | None = None

    def description(self) -> str:
        """The text of the JSON file."""
        told: dict[str, Any] = {"title": self.title, "kind": self.kind}
        if self.error is None:
            told |= {"header": self.header, "segments": [segment.hex() for segment in self.segments]}
        else:
            told["error"] = self.error
        lines = [f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in told.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"  # a line for each key: a change shows what it changed


def frame(header: bytes, segments: tuple[bytes, ...] = ()) -> bytes:
    """A frame as one piece."""
    return b"".join(bytes(part) for part in encode_frame(header, [memoryview(segment) for segment in segments]))


def good(name: str, title: str, kind: str, message: CallRequest | CallReply, arrays: tuple[Array, ...]) -> Vector:
    """A frame that decodes."""
    header = message.to_wire()
    segments = tuple(array.tobytes() for array in arrays)
    return Vector(name, title, kind, frame(encode_header(header), segments), header, segments)


def described(arrays: tuple[Array, ...]) -> tuple[Segment, ...]:
    """The segments' descriptions in a header."""
    return tuple(Segment(dtype=array.dtype.name, shape=array.shape, nbytes=array.nbytes) for array in arrays)


def call(name: str, title: str, program: Program, arrays: tuple[Array, ...], **fields: Any) -> Vector:
    """A call whose arguments are its segments, in order."""
    arguments = tuple(SegmentArgument(segment=index) for index in range(len(arrays)))
    request = CallRequest(program=program, arguments=arguments, segments=described(arrays), **fields)
    return good(name, title, "call", request, arrays)


X = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
V = np.array([1, 2, 3], np.float32)


def calls() -> list[Vector]:
    """Good calls."""
    rows_cols, batch = parse_axes(["rows", "cols"]), parse_axes({1: "batch"})
    over_grid = Mapping(
        in_axes=(rows_cols,), out_axes=(rows_cols,), axis_resources=(("rows", ("x",)), ("cols", ("y",)))
    )
    normalize = Program(
        inputs=1,
        steps=(
            Step(kernel="psum", operands=(0,), params={"axis_name": ("rows", "cols")}),
            Step(kernel="divide", operands=(0, 1)),
        ),
        outputs=(2,),
    )
    rows = Mapping(in_axes=(parse_axes({0: "_0"}),) * 2, out_axes=(parse_axes({0: "_0"}),))
    dots = Program(
        inputs=2,
        steps=(Step(program=Program.of_kernel("dot", operands=2), mapping=rows, operands=(0, 1)),),
        outputs=(2,),
    )
    batched = Mapping(
        in_axes=(batch, batch),
        out_axes=(parse_axes(["batch", ...]),),
        axis_sizes=(("batch", 3),),
        axis_resources=(("batch", ("x", "y")),),
    )
    grid = (("x", 4), ("y", -1))
    return [
        call("call-dot", "A plain kernel: a program of one step.", Program.of_kernel("dot", operands=2), (V, V)),
        call(
            "call-matmul-dtype", "A kernel with a static parameter.",
            Program.of_kernel("matmul", operands=2, params={"dtype": "int32"}),
            (np.array([[-44, -20], [-126, 6]], np.int8), np.array([[24, -75], [127, -101]], np.int8)),
        ),
        call(
            "call-named-axes", "The user's own normalization over two named axes, each on a mesh axis.",
            normalize, (X,), mesh=grid, mapping=over_grid,
        ),
        call(
            "call-batched-dot", "A dot under a mapping: dimension 1 of both inputs is the axis 'batch'.",
            Program.of_kernel("dot", operands=2), (X, X), mesh=grid, mapping=batched,
        ),
        call("call-vmap", "A nested program with a mapping of its own.", dots, (X, X)),
        call(
            "call-shardings", "Specs for arguments and results, a named mesh, a precision and a timeout.",
            Program.of_kernel("matmul", operands=2), (X, X.T.copy()), mesh="default",
            in_shardings=(("data", None), "auto"), out_shardings=(None,), precision="default", timeout_s=2.5,
        ),
        *special_calls(),
        *calls_on_arrays(),
    ]  # fmt: skip


def calls_on_arrays() -> list[Vector]:
    """Calls that keep arrays on the devices, and calls on these. An id is random; those of the vectors are not."""
    ids = np.arange(32, dtype=np.uint8).reshape(2, 16)
    transfer = Program(inputs=1, outputs=(0,))
    put = CallRequest(
        program=transfer, arguments=(SegmentArgument(segment=1),), segments=described((ids[:1], X)), ids=0,
        out_shardings=(("devices",),), results=(Keep(array=0, name="catalogue", ttl_s=60.0),),
    )  # fmt: skip
    matmul = CallRequest(
        program=Program.of_kernel("matmul", operands=2), arguments=(ArrayArgument(array=0), SegmentArgument(segment=1)),
        segments=described((ids, X.T.copy())), ids=0, results=(Keep(array=1),),
    )  # fmt: skip
    get = CallRequest(program=transfer, arguments=(ArrayArgument(array=0),), segments=described((ids[1:],)), ids=0)
    return [
        good("call-put", "Put an array: the program without steps; its result stays under an id.", "call", put,
             (ids[:1], X)),
        good("call-on-array", "A kernel on that array and an array of the frame; the result stays.", "call", matmul,
             (ids, X.T.copy())),
        good("call-get", "Get that result: its data come as the reply's only segment.", "call", get, (ids[1:],)),
    ]  # fmt: skip


def special_calls() -> list[Vector]:
    """Constants, constraints, and every dtype."""
    values = (True, -3, 2.5, 1 - 2j)
    steps = [
        Step(kernel="multiply", operands=(index, Constant.of(value)), params={}) for index, value in enumerate(values)
    ]
    constants = CallRequest(program=Program(inputs=1, steps=tuple(steps), outputs=(4, 1)), arguments=(Constant.of(7),))
    constrained = Program(
        inputs=1,
        steps=(
            Step(kernel="exp", operands=(0,), specs=((None, ("x", "y")),)),
            Step(kernel="sum", operands=(1,), params={"axis": (0, 1), "keepdims": True}),
        ),
        outputs=(2, 1),
    )
    # float8_e8m0fnu has powers of two only, and bool has but two values.
    arrays = tuple(np.array([1, 0, 1] if name == "bool" else [1, 2, 4]).astype(dtype) for name, dtype in DTYPES.items())
    shapes = (np.array(0.5), np.zeros((0, 3), np.int16), np.full((1, 2, 1), -1, np.int64))
    square = (("x", 2), ("y", 2))
    everything = Program(inputs=len(arrays), steps=(), outputs=tuple(range(len(arrays))))
    return [
        good("call-constants", "Constants of each kind; the call has no array at all.", "call", constants, ()),
        call("call-constraint", "A sharding constraint on a step's result.", constrained, (X,), mesh=square),
        call("call-every-dtype", "An array [1, 2, 4] of each dtype ([1, 0, 1] of bool), in order.", everything, arrays),
        call(
            "call-shapes", "Rank 0, an empty array, and a size of 1 in between.",
            Program(inputs=3, steps=(), outputs=(2, 1, 0)), shapes,
        ),
    ]  # fmt: skip


def replies() -> list[Vector]:
    """Good replies."""
    total = (np.array(14, np.float32),)
    placed = PlacementReport(dtype="float32", shape=(3,), spec=("x",), padded_shape=(4,), shard_shape=(1,))
    result = PlacementReport(dtype="float32", shape=(), spec=None, padded_shape=(), shard_shape=())
    report = Report(
        device_kind="cpu", mesh=(("x", 4),), devices=(0, 1, 2, 3), precision="highest",
        arguments=(placed, placed), outputs=(result,), compiled=True,
        phases_s={"receive": 0.0001, "queue": 0.0002, "upload": 0.0003, "compile": 0.5, "run": 0.001, "gather": 0.0001},
    )  # fmt: skip
    reply = CallReply(segments=described(total), report=report)
    return [good("reply-dot", "The result of call-dot and its report.", "reply", reply, total)]


def spoiled(name: str, title: str, code: str, data: bytes) -> Vector:
    """A frame with one fault."""
    return Vector(f"bad-{name}", title, "malformed", data, error=code)


def raw(header: bytes, **prelude: int) -> bytes:
    """A prelude with some fields changed, and a header."""
    fields = {"version": 1, "reserved": 0, "header_bytes": len(header), "segments": 0} | prelude
    return PRELUDE.pack(MAGIC, *fields.values()) + header


def spoiled_preludes(header: bytes, rest: bytes) -> list[Vector]:
    """Faults of the first 16 bytes."""
    whole = raw(header, segments=2) + rest
    return [
        spoiled("empty", "No bytes at all.", "bad_frame", b""),
        spoiled("short-prelude", "15 of the prelude's 16 bytes.", "bad_frame", whole[:15]),
        spoiled("magic", "Another magic: a ZIP file.", "bad_frame", b"PK\x03\x04" + whole[4:]),
        spoiled("version", "Version 2.", "bad_frame", raw(header, segments=2, version=2) + rest),
        spoiled("reserved", "The reserved field is not 0.", "bad_frame", raw(header, segments=2, reserved=1) + rest),
        spoiled("header-limit", "A header of 2**32-1 bytes.", "too_large", raw(b"", header_bytes=2**32 - 1)),
        spoiled("segment-limit", "257 segments.", "bad_frame", raw(header, segments=257) + rest),
        spoiled("count", "The prelude declares 1 segment, the header 2.", "bad_frame", raw(header, segments=1) + rest),
    ]


def spoiled_headers(header: bytes) -> list[Vector]:
    """Faults of the msgpack header."""
    faults = [
        ("no-map", "The header is an array.", b"\x93\x01\x02\x03"),
        ("half-header", "The header ends within a value.", header[:-3]),
        ("after-header", "A byte follows the header's map.", b"\x80\x00"),
        ("key-twice", "A key stands twice in one map.", b"\x82\xa1a\x01\xa1a\x01"),
        ("key-integer", "A key that is no text.", b"\x81\x01\x01"),
        ("bin", "A bin value in the header.", b"\x81\xa1a\xc4\x01x"),
        ("ext", "A timestamp (an extension type) in the header.", b"\x81\xa1a\xd6\xff\0\0\0\0"),
        ("utf8", "A text that is no UTF-8.", b"\x81\xa1a\xa2\xff\xfe"),
        ("bomb", "15 kB of nested arrays that each claim 2**32-1 elements.", b"\xdd\xff\xff\xff\xff" * 3000),
        ("depth", "34 nested arrays.", b"\x81\xa1a" + b"\x91" * 34 + b"\xc0"),
    ]
    return [spoiled(name, title, "bad_frame", raw(packed)) for name, title, packed in faults]


def spoiled_segments(wire: dict[str, Any], arrays: tuple[bytes, ...]) -> list[Vector]:
    """Faults of the segments and of what the header says of them."""

    def first(**fields: Any) -> bytes:
        one, two = wire["segments"]
        return frame(encode_header(wire | {"segments": (one | fields, two)}), arrays)

    whole = first()
    gap = bytearray(whole)
    gap[whole.index(arrays[0]) + len(arrays[0])] = 1
    return [
        spoiled("gap", "A byte between two segments that is not 0.", "bad_frame", bytes(gap)),
        spoiled("truncated", "The last byte is missing.", "bad_frame", whole[:-1]),
        spoiled("trailing", "A byte follows the last segment.", "bad_frame", whole + b"\0"),
        spoiled("nbytes", "nbytes is not shape times itemsize.", "bad_frame", first(nbytes=8)),
        spoiled("overflow", "A product that is 0 modulo 2**64.", "shape_error", first(shape=(2**32,) * 2, nbytes=0)),
        spoiled("negative", "A negative size.", "shape_error", first(shape=(-3,), nbytes=12)),
        spoiled("bool-size", "A size that is a bool.", "bad_request", first(shape=(True,), nbytes=4)),
        spoiled("float-size", "A size that is a float.", "bad_request", first(shape=(3.0,))),
        spoiled("rank", "Rank 33.", "bad_request", first(shape=(1,) * 32 + (3,))),
        spoiled("dtype", "A dtype that is not in the table.", "dtype_error", first(dtype="<f4")),
        spoiled("unknown-key", "An unknown key below the top level.", "bad_request", first(order="F")),
    ]


def spoiled_programs(wire: dict[str, Any], arrays: tuple[bytes, ...]) -> list[Vector]:
    """Calls whose parts do not refer to each other."""

    def with_arguments(*arguments: dict[str, int]) -> bytes:
        return frame(encode_header(wire | {"arguments": arguments}), arrays)

    return [
        spoiled("no-program", "A call without a program.", "bad_request", raw(b"\x80")),
        spoiled(
            "argument", "An argument that refers to a segment that is not there.", "program_error",
            with_arguments({"segment": 0}, {"segment": 2}),
        ),
        spoiled(
            "inputs", "Fewer arguments than the program has inputs.", "program_error", with_arguments({"segment": 0})
        ),
    ]  # fmt: skip


def malformed() -> list[Vector]:
    """Frames with one fault each, made from call-dot."""
    dot = calls()[0]
    wire, arrays = dot.header or {}, dot.segments
    header = encode_header(wire)
    return [
        *spoiled_preludes(header, dot.data[len(raw(header)) :]),
        *spoiled_headers(header),
        *spoiled_segments(wire, arrays),
        *spoiled_programs(wire, arrays),
    ]


def vectors() -> list[Vector]:
    """All of them."""
    return [*calls(), *replies(), *malformed()]


def main() -> None:
    for vector in vectors():
        (FOLDER / f"{vector.name}.bin").write_bytes(vector.data)
        (FOLDER / f"{vector.name}.json").write_text(vector.description(), encoding="utf-8")


if __name__ == "__main__":
    main()
