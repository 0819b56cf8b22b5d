"""The golden frames, both ways: our encoder writes these bytes, and our decoder reads or refuses them as described."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardserve_proto import frames
from shardserve_proto.dtypes import DTYPES
from shardserve_proto.errors import BY_CODE, BadFrame, ShardserveError
from shardserve_proto.frames import PRELUDE_BYTES
from shardserve_proto.limits import LIMITS
from shardserve_proto.messages import CallReply, CallRequest, check_call, frame_layout
from shardserve_proto.programs import validate

FOLDER = Path(__file__).parents[2] / "proto_schemas" / "vectors"
NAMES = sorted(path.stem for path in FOLDER.glob("*.bin"))
GOOD = [name for name in NAMES if not name.startswith("bad-")]
BAD = [name for name in NAMES if name.startswith("bad-")]


def described(name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return told


def bytes_of(name: str) -> bytes:
    return (FOLDER / f"{name}.bin").read_bytes()


def tuples(value: Any) -> Any:
    """JSON's lists as the decoder gives arrays."""
    if isinstance(value, list):
        return tuple(map(tuples, value))
    return {key: tuples(child) for key, child in value.items()} if isinstance(value, dict) else value


def read(frame: bytes, message: type[CallRequest] | type[CallReply]) -> tuple[Any, list[memoryview]]:
    """A whole frame, checked as a server or a client checks it."""
    prelude = frames.decode_prelude(frame)
    if len(frame) < PRELUDE_BYTES + prelude.header_bytes:
        raise BadFrame("the header is cut off")
    decoded = validate(message, frames.decode_header(frame[PRELUDE_BYTES : PRELUDE_BYTES + prelude.header_bytes]))
    if isinstance(decoded, CallRequest):
        check_call(decoded)
    layout = frame_layout(
        prelude.header_bytes, decoded.segments, declared=prelude.segments, body_bytes=LIMITS.body_bytes
    )
    return decoded, frames.split_segments(frame, prelude.header_bytes, layout)


def message_of(name: str) -> type[CallRequest] | type[CallReply]:
    return CallReply if described(name)["kind"] == "reply" else CallRequest


def test_the_files_are_what_the_script_beside_them_writes() -> None:
    written = {vector.name: vector for vector in runpy.run_path(str(FOLDER / "generate.py"))["vectors"]()}
    assert sorted(written) == NAMES == sorted(path.stem for path in FOLDER.glob("*.json"))
    for name, vector in written.items():
        assert bytes_of(name) == vector.data, f"{name}.bin changed: that is a change of the protocol"
        assert (FOLDER / f"{name}.json").read_text(encoding="utf-8") == vector.description()


@pytest.mark.parametrize("name", GOOD)
def test_a_golden_frame_is_read_as_described(name: str) -> None:
    told = described(name)
    message, segments = read(bytes_of(name), message_of(name))
    assert message.to_wire() == tuples(told["header"])
    assert [segment.hex() for segment in segments] == told["segments"]


@pytest.mark.parametrize("name", GOOD)
def test_a_golden_frame_is_written_again_byte_for_byte(name: str) -> None:
    message, segments = read(bytes_of(name), message_of(name))
    assert b"".join(map(bytes, frames.encode_frame(frames.encode_header(message.to_wire()), segments))) == bytes_of(
        name
    )


@pytest.mark.parametrize("name", GOOD)
def test_the_description_alone_gives_the_same_bytes(name: str) -> None:
    """What a writer in another language starts from: keys in the written order, msgpack in its shortest forms."""
    told = described(name)
    segments = [memoryview(bytes.fromhex(segment)) for segment in told["segments"]]
    assert b"".join(map(bytes, frames.encode_frame(frames.encode_header(told["header"]), segments))) == bytes_of(name)


@pytest.mark.parametrize("name", BAD)
def test_a_malformed_frame_gets_the_error_that_is_described(name: str) -> None:
    with pytest.raises(ShardserveError) as caught:
        read(bytes_of(name), CallRequest)
    assert type(caught.value) is BY_CODE[described(name)["error"]]


def test_the_vectors_show_every_dtype() -> None:
    message, segments = read(bytes_of("call-every-dtype"), CallRequest)
    assert [segment.dtype for segment in message.segments] == list(DTYPES)
    for segment, data in zip(message.segments, segments, strict=True):
        values = np.frombuffer(data, DTYPES[segment.dtype]).astype(complex).tolist()
        assert values == ([1, 0, 1] if segment.dtype == "bool" else [1, 2, 4])


def test_the_vectors_show_every_field_of_a_call() -> None:
    shown = {key for name in GOOD if name.startswith("call-") for key in described(name)["header"]}
    assert shown == set(CallRequest.model_fields)


def test_every_vector_is_told_in_a_sentence() -> None:
    titles = [described(name)["title"] for name in NAMES]
    assert all(title.endswith(".") for title in titles)
    assert len(set(titles)) == len(titles)
