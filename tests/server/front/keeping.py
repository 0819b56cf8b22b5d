"""An engine in the front's loop that keeps arrays as the real one does: by owner and id, looked up at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardserve_proto.dtypes import dtype_named, name_of
from shardserve_proto.errors import Expired, OutOfMemory
from shardserve_proto.frames import decode_header
from shardserve_proto.messages import ArrayArgument, CallRequest, SegmentArgument
from shardserve_proto.programs import Constant, Step, validate
from shardserve_server.link.messages import DECLARED
from shardserve_server.link.transfer import CallOptions, EngineReply, Upload
from tests.calls import Array

from .serving import FakeEngine

Key = tuple[str, bytes]


def info_of(array: Array) -> dict[str, Any]:
    """What an engine tells of an array."""
    return {
        "dtype": name_of(array.dtype),
        "shape": array.shape,
        "spec": None,
        "mesh": (),
        "shard_shape": array.shape,
        "nbytes": array.nbytes,
        "device_bytes": array.nbytes,
    }


@dataclass
class KeepingEngine(FakeEngine):
    """Moves, keeps, slices and reshapes arrays.

    Attributes:
        arrays: what it holds.
        freed_twice: deletions of what was not there.
        delay_s: of each call, after its arrays were looked up.
        full: the error of the next calls.
    """

    arrays: dict[Key, Array] = field(default_factory=dict)
    freed_twice: list[Key] = field(default_factory=list)
    delay_s: float = 0.0
    full: OutOfMemory | None = None

    def delete(self, owner: str, ids: Sequence[bytes], *, undo: bool = False) -> None:  # noqa: ARG002
        for key in ids:
            if self.arrays.pop((owner, key), None) is None:
                self.freed_twice.append((owner, key))

    async def memory(self) -> dict[str, Any]:
        holders = [
            {"what": "array", "device_bytes": array.nbytes, "age_s": 1.0, "owner": owner, "id": key.hex()}
            for (owner, key), array in self.arrays.items()
        ]
        total = sum(array.nbytes for array in self.arrays.values())
        return {
            "device_limit_bytes": 2**30,
            "resident_bytes": total,
            "reserved_bytes": 64,
            "holders": [*holders, {"what": "call", "device_bytes": 64, "age_s": 0.1, "owner": "somebody", "id": None}],
        }

    async def call(self, header: bytes, upload: Upload, options: CallOptions) -> EngineReply:
        self.check_ready()
        request = validate(CallRequest, decode_header(header))
        view = upload.view
        segments = [bytes(view[offset : offset + nbytes]) for offset, nbytes in upload.segments]
        values = [self._argument(request, argument, segments, options) for argument in request.arguments]
        await asyncio.sleep(self.delay_s)
        if self.full is not None:
            raise self.full
        for step in request.program.steps:
            values.append(_run(step, [values[n] for n in step.operands if isinstance(n, int)]))
        outputs = [values[number] for number in request.program.outputs]
        return self._answer(request, outputs, options)

    def _argument(self, request: CallRequest, argument: Any, segments: list[bytes], options: CallOptions) -> Array:
        match argument:
            case SegmentArgument(segment=number):
                described = request.segments[number]
                return np.frombuffer(segments[number], dtype_named(described.dtype)).reshape(described.shape)
            case Constant():
                return np.asarray(argument.scalar)
            case ArrayArgument(array=row):
                key = options.ids[row]
                found = self.arrays.get((options.owner, key), self.arrays.get((DECLARED, key)))
                if found is None:
                    raise Expired("the array is not on the devices any more")
                return found
        raise AssertionError(argument)

    def _answer(self, request: CallRequest, outputs: list[Array], options: CallOptions) -> EngineReply:
        stored = []
        data = []
        for keep, array in zip(request.kept(), outputs, strict=True):
            if keep is None:
                data.append(array)
                continue
            key = options.ids[keep.array]
            is_new = (options.owner, key) not in self.arrays
            self.arrays.setdefault((options.owner, key), array.copy())
            stored.append((key, info_of(array), is_new))
        described = [{"dtype": name_of(a.dtype), "shape": a.shape, "nbytes": a.nbytes} for a in data]
        reply = self._reply(described, [array.tobytes() for array in data])
        return EngineReply(reply.header, reply.segments, reply.engine_s, stored=tuple(stored), _release=reply._release)


def _run(step: Step, operands: list[Array]) -> Array:
    (x,) = operands
    match step.kernel:
        case "identity":
            return x
        case "slice":
            bounds: Any = [step.params[name] for name in ("starts", "stops", "steps")]
            grid = np.ix_(*(list(range(*one)) for one in zip(*bounds, strict=True)))
            return np.ascontiguousarray(x[tuple(part.astype(int) for part in grid)]) if bounds[0] else x
        case "reshape":
            shape: Any = step.params["shape"]
            return x.reshape(shape)
    raise AssertionError(step.kernel)
