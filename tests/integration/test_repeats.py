"""One id, one array: what a repeat of a call answers on a real server, and what is no repeat (promise G5)."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from shardserve_proto.dtypes import name_of
from shardserve_proto.frames import MEDIA_TYPE, encode_frame, encode_header
from shardserve_proto.messages import CallRequest, Keep, Segment, SegmentArgument, ids_segment
from shardserve_proto.programs import Program
from tests.calls import Array
from tests.server.front.keeping import NPY, load, npy
from tests.server.front.serving import Answer

from .serving import RunningServer, launch

FRAME = {"Content-Type": MEDIA_TYPE}
X = np.arange(200_000, dtype=np.float32)


@pytest.fixture(scope="module")
def small() -> Iterator[RunningServer]:
    """A server with room for eight arrays, and for one host copy of `X`."""
    environment = {"SHARDSERVE_ARRAYS_PER_OWNER": "8", "SHARDSERVE_PINNED_BYTES": str(X.nbytes * 3 // 2)}
    with launch(environment=environment, devices=2) as running:
        yield running


@pytest.fixture
def server(small: RunningServer) -> Iterator[RunningServer]:
    yield small
    for info in small.request("GET", "/v1/arrays").json:
        assert small.request("DELETE", f"/v1/arrays/{info['id']}").status == 204
    memory = small.request("GET", "/v1/memory").json
    assert (memory["resident_bytes"], memory["pinned_bytes"], memory["arrays"]) == (0, 0, 0)


def put(server: RunningServer, arrays: Sequence[Array], ids: Sequence[bytes], **keep: Any) -> Answer:
    """One call that keeps these arrays under these ids."""
    count = len(arrays)
    described = [Segment(dtype=name_of(array.dtype), shape=array.shape, nbytes=array.nbytes) for array in arrays]
    request = CallRequest(
        program=Program(inputs=count, outputs=tuple(range(count))),
        arguments=tuple(SegmentArgument(segment=number) for number in range(count)),
        segments=(*described, ids_segment(count)),
        ids=count,
        results=tuple(Keep(array=number, **keep) for number in range(count)),
    )
    segments = [memoryview(array.tobytes()) for array in arrays] + [memoryview(b"".join(ids))]
    body = b"".join(encode_frame(encode_header(request.to_wire()), segments))
    return server.request("POST", "/v1/call", body=body, headers=FRAME)


def get(server: RunningServer, key: bytes) -> Array:
    return load(server.request("GET", f"/v1/arrays/{key.hex()}"))


def test_other_bytes_under_an_id_in_use_are_refused_and_the_same_ones_are_a_repeat(server: RunningServer) -> None:
    key = secrets.token_bytes(16)
    assert put(server, [X], [key]).status == put(server, [X], [key]).status == 200
    for other in (X + 1, X[:-1], X.astype(np.float64)):
        answer = put(server, [other], [key])
        assert (answer.status, answer.code) == (409, "name_taken")
        answer = server.request("POST", f"/v1/arrays?id={key.hex()}", body=npy(other), headers=NPY)
        assert (answer.status, answer.code) == (409, "name_taken")
    np.testing.assert_array_equal(get(server, key), X)
    assert len(server.request("GET", "/v1/arrays").json) == 1


def test_of_different_arrays_put_at_once_under_one_id_one_stays(server: RunningServer) -> None:
    key = secrets.token_bytes(16)
    arrays = [X + n for n in range(3)] + [X[: 1000 * n] for n in range(1, 4)]
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda array: put(server, [array], [key]), arrays))
    assert sorted(answer.status for answer in answers) == [200] + [409] * 5
    (kept,) = [array for array, answer in zip(arrays, answers, strict=True) if answer.status == 200]
    np.testing.assert_array_equal(get(server, key), kept)


def test_two_results_of_one_call_have_two_ids(server: RunningServer) -> None:
    key = secrets.token_bytes(16)
    answer = put(server, [X, X.astype(np.int32)], [key, key])
    assert (answer.status, answer.code) == (400, "bad_request")
    assert "the same id" in answer.json["error"]["message"]
    assert server.request("GET", "/v1/arrays").json == []


def test_a_repeat_of_a_pinned_put_harms_nothing_when_host_memory_is_full(server: RunningServer) -> None:
    key = secrets.token_bytes(16)
    for _ in range(3):
        assert put(server, [X], [key], pinned=True, name="pinned").status == 200
    body = {"arguments": [{"array": "pinned"}], "params": {"dtype": "float64"}}
    (total,) = server.json("sum", body).json["results"]
    assert total["data"] == X.sum(dtype=np.float64)
    np.testing.assert_array_equal(get(server, key), X)
    memory = server.request("GET", "/v1/memory").json
    assert memory["resident_bytes"] == memory["own_resident_bytes"] >= X.nbytes
    assert memory["pinned_bytes"] == X.nbytes


def test_a_call_that_cannot_pin_its_result_keeps_nothing_and_moves_no_label(server: RunningServer) -> None:
    keys = [secrets.token_bytes(16) for _ in range(3)]
    assert put(server, [X], [keys[0]], pinned=True, name="w").status == 200
    answer = put(server, [X + 1], [keys[1]], pinned=True, name="w", replace=True)
    assert (answer.status, answer.code) == (507, "out_of_memory")
    body = {"arguments": [{"array": "w"}], "keep": {"id": keys[2].hex(), "name": "w", "replace": True, "pinned": True}}
    assert server.json("negative", body).code == "out_of_memory"
    info = server.request("GET", "/v1/arrays/w/info").json
    assert (info["id"], info["pinned"]) == (keys[0].hex(), True)
    assert len(server.request("GET", "/v1/arrays").json) == 1
    assert server.request("GET", "/v1/memory").json["resident_bytes"] == info["device_bytes"]


def test_the_number_of_arrays_is_exact_for_puts_at_once(server: RunningServer) -> None:
    """D7."""
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda _: put(server, [X], [secrets.token_bytes(16)]), range(24)))
    statuses = [answer.status for answer in answers]
    assert (statuses.count(200), statuses.count(429)) == (8, 16)
    assert {answer.headers["retry-after"] for answer in answers if answer.status == 429} == {"60"}
    assert len(server.request("GET", "/v1/arrays").json) == 8


@pytest.mark.parametrize("timeout_s", [1e10, 1e300])
def test_a_timeout_of_any_length_is_one(server: RunningServer, timeout_s: float) -> None:
    for body in ({"arguments": [[1, 2]], "timeout_s": timeout_s}, {"arguments": [[1] * 9000], "timeout_s": timeout_s}):
        assert server.json("sum", body).status == 200
    assert server.call("sum", X, timeout_s=timeout_s).status == 200
