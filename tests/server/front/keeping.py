"""An engine in the front's loop that keeps arrays as the real one does, by owner and id; and requests to its front."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

import numpy as np

from shardserve_proto.dtypes import dtype_named, name_of
from shardserve_proto.errors import Expired, NameTaken, OutOfMemory
from shardserve_proto.frames import decode_header
from shardserve_proto.messages import ArrayArgument, ArrayInfo, CallRequest, SegmentArgument
from shardserve_proto.programs import Constant, Step, validate
from shardserve_server.link.messages import DECLARED
from shardserve_server.link.transfer import CallOptions, EngineReply, Upload
from tests.calls import Array

from .serving import Answer, FakeEngine, Served

NPY = {"Content-Type": "application/x-npy"}
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
        "devices": (0,),
    }


@dataclass
class KeepingEngine(FakeEngine):
    """Moves, keeps, slices and reshapes arrays.

    Attributes:
        arrays: what it holds; keepers says how many calls have kept each.
        freed_twice: deletions of what was not there.
        delay_s: of each call, after its arrays were looked up.
        full: the error of the next calls.
        loop: the front's.
    """

    arrays: dict[Key, Array] = field(default_factory=dict)
    keepers: dict[Key, int] = field(default_factory=dict)
    freed_twice: list[Key] = field(default_factory=list)
    delay_s: float = 0.0
    full: OutOfMemory | None = None
    loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()

    def delete(self, owner: str, ids: Sequence[bytes], *, undo: bool = False) -> None:
        for key in ((owner, key) for key in ids):
            if undo:
                self.keepers[key] = self.keepers.get(key, 0) - 1
                if self.keepers[key]:
                    continue
            elif key not in self.arrays:
                self.freed_twice.append(key)
            self.arrays.pop(key, None)
            self.keepers.pop(key, None)

    def die(self) -> None:
        """A new life begins, which has nothing."""
        self.starts += 1
        self.arrays.clear()
        self.keepers.clear()

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
            key = options.owner, options.ids[keep.array]
            is_new = key not in self.arrays
            if self.arrays.setdefault(key, array.copy()).tobytes() != array.tobytes():
                raise NameTaken(f"the id {key[1].hex()} is that of another array")
            self.keepers[key] = self.keepers.get(key, 0) + 1
            stored.append((key[1], info_of(array), is_new))
        described = [{"dtype": name_of(a.dtype), "shape": a.shape, "nbytes": a.nbytes} for a in data]
        reply = self._reply(described, [array.tobytes() for array in data])
        return replace(reply, stored=tuple(stored))


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


def npy(array: Array) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def load(answer: Answer) -> Array:
    assert answer.status == 200, answer.body[:300]
    assert answer.headers["content-type"] == "application/x-npy"
    loaded: Array = np.load(io.BytesIO(answer.body), allow_pickle=False)
    return loaded


class Keeping:
    """A front whose engine keeps arrays, and requests to it."""

    def __init__(self, served: Served, *, key: str | None = None) -> None:
        self.served = served
        self.headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    @property
    def engine(self) -> KeepingEngine:
        assert isinstance(self.served.engine, KeepingEngine)
        return self.served.engine

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        return self.served.request(method, path, body=body, headers=self.headers | headers)

    def put(self, array: Array, **query: Any) -> dict[str, Any]:
        answer = self.try_put(array, **query)
        assert answer.status == 201, answer.body
        ArrayInfo.model_validate(answer.json, strict=False)
        found: dict[str, Any] = answer.json
        return found

    def try_put(self, array: Array, **query: Any) -> Answer:
        text = "&".join(f"{name}={quote(str(value))}" for name, value in query.items())
        return self.ask("POST", f"/v1/arrays?{text}", npy(array), **NPY)

    def json(self, method: str, path: str, body: Any, **headers: str) -> Answer:
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.ask(method, path, text, **{"Content-Type": "application/json"}, **headers)
