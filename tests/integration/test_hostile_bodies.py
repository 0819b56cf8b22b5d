"""Promise B2 over a real socket, with a real engine: no bytes make a 5xx, a hang, or an end of a process."""

from __future__ import annotations

import random
import socket
import time

import msgpack
import numpy as np
import pytest

from shardserve_proto.frames import MAGIC, MEDIA_TYPE, PRELUDE, PRELUDE_BYTES, VERSION
from tests.server.front.serving import frame, post_head, read_answer

from .serving import RunningServer

SEEDS = (
    frame("matmul", np.ones((3, 4)), np.ones((4, 2))),
    frame("normalize", np.ones((4, 6)), params={"norm": "sum", "axis": 1}),
    frame("dot", np.arange(3.0), 2),
    frame("sum", np.ones((2, 2), np.int8), mesh=(("x", 2),), in_shardings=(("x",),)),
    frame("where", np.array([True]), np.array([1.0]), np.array([2.0])),
)


def exchange(server: RunningServer, body: bytes) -> int:
    """The status of one answer to a body that may be anything."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as stream:
        stream.sendall(post_head("/v1/call", len(body)) + body)
        answer = read_answer(stream)
        if answer.status != 200:
            assert answer.code
        return answer.status


def mutated(seed: bytes, chance: random.Random) -> bytes:
    """A frame with some bytes of its head changed, moved, lost or doubled."""
    data = bytearray(seed)
    head = PRELUDE_BYTES + int.from_bytes(seed[8:12], "little")
    for _ in range(chance.randint(1, 4)):
        position = chance.randrange(min(head, len(data)))
        match chance.randrange(4):
            case 0:
                data[position] = chance.randrange(256)
            case 1:
                data[position] ^= 1 << chance.randrange(8)
            case 2:
                del data[position : position + chance.randint(1, 8)]
            case _:
                data[position:position] = data[position : position + chance.randint(1, 8)]
    return bytes(data)


@pytest.mark.parametrize("turn", range(6))
def test_mutated_frames_get_an_answer_that_is_no_fault_of_the_server(server: RunningServer, turn: int) -> None:
    chance = random.Random(turn)  # noqa: S311 - repeatable on purpose
    engine = server.engine_pid
    seen: dict[int, int] = {}
    for _ in range(100):
        status = exchange(server, mutated(chance.choice(SEEDS), chance))
        assert 200 <= status < 500, status
        seen[status] = seen.get(status, 0) + 1
    assert seen.get(400, 0) > 10
    assert (server.engine_pid, server.process.poll()) == (engine, None)


HEADERS = {
    "shape of 2^64 elements": {"dtype": "uint8", "shape": [2**32, 2**32], "nbytes": 0},
    "shape that overflows to 8": {"dtype": "uint8", "shape": [2**4, 2**60 + 2], "nbytes": 32},
    "negative": {"dtype": "uint8", "shape": [-1, -8], "nbytes": 8},
    "bool": {"dtype": "uint8", "shape": [True], "nbytes": 1},
    "float": {"dtype": "uint8", "shape": [8.0], "nbytes": 8},
    "rank 33": {"dtype": "uint8", "shape": [1] * 33, "nbytes": 1},
    "one byte less": {"dtype": "float64", "shape": [1], "nbytes": 7},
    "one byte more": {"dtype": "float64", "shape": [1], "nbytes": 9},
    "object": {"dtype": "O", "shape": [1], "nbytes": 8},
    "void": {"dtype": "V8", "shape": [1], "nbytes": 8},
    "text": {"dtype": "U2", "shape": [1], "nbytes": 8},
    "structured": {"dtype": "f4,f4", "shape": [1], "nbytes": 8},
    "sub-array": {"dtype": "(2,)f4", "shape": [1], "nbytes": 8},
    "datetime": {"dtype": "M8[s]", "shape": [1], "nbytes": 8},
    "big-endian": {"dtype": ">f8", "shape": [1], "nbytes": 8},
    "longdouble": {"dtype": "longdouble", "shape": [1], "nbytes": 16},
    "long name": {"dtype": "f" * 10_000, "shape": [1], "nbytes": 8},
}


@pytest.mark.parametrize("case", sorted(HEADERS))
def test_a_segment_that_cannot_be_is_refused(server: RunningServer, case: str) -> None:
    """Promises B3 and B4."""
    segment = HEADERS[case]
    program = {"inputs": 1, "steps": [{"kernel": "identity", "operands": [0]}], "outputs": [1]}
    header = msgpack.packb({"program": program, "arguments": [{"segment": 0}], "segments": [segment]})
    body = PRELUDE.pack(MAGIC, VERSION, 0, len(header), 1) + header
    body += bytes(-len(body) % 64) + bytes(8)
    started = time.monotonic()
    assert exchange(server, body) in (400, 422)
    assert time.monotonic() - started < 2.0


@pytest.mark.parametrize(
    "header",
    [
        b"\xdd\xff\xff\xff\xff" * 3000,
        b"\x80" * 262144,
        b"\x90" * 262144,
        b"\x91" * 5000 + b"\x90",
        b"\xdf\xff\xff\xff\xff",
    ],
    ids=["nested arrays", "empty maps", "empty arrays", "depth 5000", "a map of 2^32"],
)
def test_a_bomb_is_refused(server: RunningServer, header: bytes) -> None:
    """Promise B1, on the way through the whole server."""
    assert exchange(server, PRELUDE.pack(MAGIC, VERSION, 0, len(header), 0) + header) == 400


CANARIES = {
    "pickle": b"\x80\x04\x95\x1f\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.",
    "npz": b"PK\x03\x04" + bytes(60),
    "npy of objects": b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }" + bytes(70),
}


@pytest.mark.parametrize("name", sorted(CANARIES))
@pytest.mark.parametrize("path", ["/v1/call", "/v1/kernels/dot"])
@pytest.mark.parametrize(
    "media_type", [MEDIA_TYPE, "application/json", "application/octet-stream", "application/x-npy"]
)
def test_what_would_run_code_elsewhere_is_only_refused(
    server: RunningServer, name: str, path: str, media_type: str
) -> None:
    answer = server.request("POST", path, body=CANARIES[name], headers={"Content-Type": media_type})
    assert answer.status in (400, 415)


def test_json_numbers_that_are_not_finite_never_make_a_500(server: RunningServer) -> None:
    """Case B13."""
    answer = server.json("dot", {"arguments": [["NaN", "Infinity"], [1, 0]]})
    assert (answer.status, answer.json["results"][0]["data"]) == (200, "NaN")
    answer = server.json("divide", {"arguments": [[1.0, -1.0, 0.0], [0.0, 0.0, 0.0]]})
    assert answer.json["results"][0]["data"] == ["Infinity", "-Infinity", "NaN"]


def test_the_json_route_takes_named_axes_and_a_mesh(server: RunningServer) -> None:
    body = {
        "arguments": [[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]],
        "params": {"norm": "sum", "axis": ["rows", "cols"]},
        "mesh": "grid",
        "in_axes": ["rows", "cols"],
        "out_axes": ["rows", "cols"],
        "axis_resources": {"rows": "x", "cols": "y"},
    }
    answer = server.json("normalize", body)
    assert answer.status == 200, answer.body
    expected = np.arange(1.0, 7.0).reshape(3, 2) / 21
    np.testing.assert_allclose(answer.json["results"][0]["data"], expected, rtol=1e-13)
    assert answer.json["report"]["mesh"] == [["x", 4], ["y", 2]]
    assert answer.json["report"]["arguments"][0]["spec"] == ["x", "y"]


@pytest.mark.parametrize(
    ("kernel", "body", "status", "text"),
    [
        ("dott", {"arguments": []}, 404, "did you mean 'dot'"),
        ("dot", {"arguments": [[1], [2]], "mesh": "gird"}, 404, "did you mean 'grid'"),
        ("dot", {"arguments": [[1], [2]], "params": {"dtyp": "int8"}}, 422, "did you mean 'dtype'"),
        ("dot", {"arguments": [[1, 2], [1, 2, 3]]}, 422, "dot"),
        ("dot", {"arguments": [[1, 2], [1, 2]], "out_shardings": [["devices"]]}, 422, "rank 0"),
        ("exp", {"arguments": [[1, 2]], "in_shardings": [["modl"]], "mesh": {"model": 2}}, 422, "did you mean 'model'"),
        ("exp", {"arguments": [[1, 2]], "mesh": {"x": 9}}, 422, "8"),
    ],
)
def test_what_cannot_be_computed_is_named(
    server: RunningServer, kernel: str, body: object, status: int, text: str
) -> None:
    answer = server.json(kernel, body)
    assert answer.status == status, answer.body
    assert text in answer.json["error"]["message"]
