"""Arrays whose bytes lie in shared memory are sent from there; the engine is not asked, and the bytes stay right."""

from __future__ import annotations

import secrets
import socket
import time
from typing import Any

import numpy as np
import pytest

from shardserve_proto.frames import MEDIA_TYPE, encode_frame, encode_header
from shardserve_proto.messages import ArrayArgument, CallRequest, Keep, Segment, SegmentArgument, ids_segment
from shardserve_proto.programs import Program
from shardserve_server.front import calls
from shardserve_server.front.direct import direct_outputs

from ..server.front.serving import Answer, Served, eventually, post_head, read_answer
from .test_buffer_reuse import front  # noqa: F401 - a fixture

TRANSFER = Program(inputs=1, outputs=(0,))
IDS = ids_segment()
FRAME = {"Content-Type": MEDIA_TYPE}


def put(front: Served, x: Any, **keep: Any) -> bytes:  # noqa: F811
    key = secrets.token_bytes(16)
    request = CallRequest(
        program=TRANSFER,
        arguments=(SegmentArgument(segment=1),),
        segments=(IDS, Segment(dtype=x.dtype.name, shape=x.shape, nbytes=x.nbytes)),
        ids=0,
        results=(Keep(array=0, **keep),),
        out_shardings=(("devices",),),
    )
    parts = encode_frame(encode_header(request.to_wire()), [memoryview(key), memoryview(x).cast("B")])
    assert front.request("POST", "/v1/call", body=b"".join(parts), headers=FRAME).status == 200
    return key


def get_body(key: bytes, **fields: Any) -> bytes:
    request = CallRequest(program=TRANSFER, arguments=(ArrayArgument(array=0),), segments=(IDS,), ids=0, **fields)
    return b"".join(encode_frame(encode_header(request.to_wire()), [memoryview(key)]))


def get(front: Served, key: bytes, **fields: Any) -> Answer:  # noqa: F811
    return front.request("POST", "/v1/call", body=get_body(key, **fields), headers=FRAME)


@pytest.mark.parametrize(("rows", "keep"), [(8 * 4096, {}), (8 * 4096 + 5, {"pinned": True}), (3, {"pinned": True})])
def test_the_front_answers_from_shared_memory_as_the_engine_would(
    front: Served,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
    keep: dict[str, Any],
) -> None:
    x = np.random.default_rng(rows).random((rows, 16), np.float32)
    key = put(front, x, **keep)
    direct = get(front, key)
    assert b"engine" in direct.headers["server-timing"].encode()
    monkeypatch.setattr(calls, "direct_reply", lambda *_, **__: None)
    asked = get(front, key)
    monkeypatch.undo()
    (found,), (expected,) = direct.arrays, asked.arrays
    assert found.tobytes() == expected.tobytes() == x.tobytes()
    assert _report(direct) == _report(asked)


def _report(answer: Answer) -> Any:
    from shardserve_proto.frames import decode_header, decode_prelude

    header = decode_header(answer.body[16 : 16 + decode_prelude(answer.body).header_bytes])
    return {name: value for name, value in header["report"].items() if name != "phases_s"}


def test_an_array_that_is_deleted_while_it_is_sent_arrives_whole(front: Served) -> None:  # noqa: F811
    """The pool of this front spoils every buffer as it comes back."""
    x = np.random.default_rng(0).integers(0, 256, 8 * 2**20, np.uint8).reshape(8, -1)
    before = front.pool.usage().leases
    key = put(front, x)
    body = get_body(key)
    stream = socket.socket()
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with stream:
        stream.settimeout(30)
        stream.connect(("127.0.0.1", front.port))
        stream.sendall(post_head("/v1/call", len(body)) + body)
        time.sleep(0.2)
        assert front.request("DELETE", f"/v1/arrays/{key.hex()}").status == 204
        time.sleep(0.2)
        answer = read_answer(stream)
    (received,) = answer.arrays
    assert received.tobytes() == x.tobytes()
    eventually(lambda: front.pool.usage().leases == before)


def test_only_a_plain_get_goes_past_the_engine() -> None:
    get = CallRequest(program=TRANSFER, arguments=(ArrayArgument(array=0),), segments=(IDS,), ids=0)
    assert direct_outputs(get) == (0,)
    for changed in (
        {"out_shardings": (("devices",),)},
        {"mesh": "default"},
        {"results": (Keep(array=1),)},
        {"program": Program.of_kernel("exp", operands=1)},
        {"arguments": (SegmentArgument(segment=0),)},
    ):
        assert direct_outputs(get.model_copy(update=changed)) is None
