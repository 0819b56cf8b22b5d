"""The epoch of a front: what it answers for ids that an earlier front knew, and for fields that are none."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from shardserve_proto.errors import Expired, InvalidRequest, NotFound
from shardserve_proto.frames import MEDIA_TYPE, encode_frame, encode_header
from shardserve_proto.handles import EPOCH, EPOCH_FIELD
from shardserve_proto.messages import ArrayArgument, CallRequest, ids_segment
from shardserve_proto.programs import Program
from shardserve_server.front.epoch import epochs_of, new_epoch
from shardserve_server.settings import Settings

from .keeping import Keeping, KeepingEngine
from .registry import make
from .serving import Answer, serving

OTHER = "0123456789abcdef"
AGES = "a" * 16
X = np.arange(12.0)


@pytest.fixture(scope="module")
def front() -> Iterator[Keeping]:
    with serving(settings=Settings(port=0, stop_grace_s=1), make_engine=KeepingEngine) as served:
        yield Keeping(served)


def scope(*fields: tuple[bytes, bytes]) -> dict[str, object]:
    return {"type": "http", "headers": list(fields)}


def test_each_epoch_has_a_name_of_its_own() -> None:
    names = {new_epoch() for _ in range(100)}
    assert len(names) == 100
    assert all(EPOCH.fullmatch(name) for name in names)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([], set()),
        ([OTHER], {OTHER}),
        ([f"{OTHER},{AGES} , {OTHER}"], {OTHER, AGES}),
        ([OTHER, AGES], {OTHER, AGES}),  # lines of one name are one list
        ([""], set()),
        ([f",{OTHER}, ,", ""], {OTHER}),
    ],
)
def test_a_request_may_tell_the_epochs_of_its_ids(given: list[str], found: set[str]) -> None:
    fields = [(EPOCH_FIELD.encode(), line.encode()) for line in given]
    assert epochs_of(scope((b"host", b"x"), *fields)) == found


@pytest.mark.parametrize(
    "given", ["banana", OTHER.upper(), OTHER + "0", f"{OTHER} {AGES}", f"{OTHER}, x", "\xff" * 16, "a" * 30000]
)
def test_anything_else_in_its_place_is_refused_by_name(given: str) -> None:
    with pytest.raises(InvalidRequest, match="16 hex digits") as caught:
        epochs_of(scope((EPOCH_FIELD.encode(), given.encode("latin-1"))))
    assert len(caught.value.message) < 300


def test_an_unknown_id_of_another_epoch_was_lost_and_one_of_this_never_was() -> None:
    registry = make()
    key, epoch = b"k" * 16, registry.arrays.epoch
    for epochs in (set(), {epoch}):
        with pytest.raises(NotFound):
            registry.arrays.find("a", key, epochs)
    for epochs in ({OTHER}, {epoch, OTHER}):
        with pytest.raises(Expired, match="lost when the server was started anew, or is another server's; put"):
            registry.arrays.find("a", key, epochs)


def test_what_is_there_is_found_and_what_went_here_says_why_whatever_the_epoch() -> None:
    registry = make()
    record = registry.put(ttl_s=1.0)
    assert registry.arrays.find("a", record.id, {OTHER}) is record
    registry.clock.now += 1
    with pytest.raises(Expired, match="its lease of 1 s is over"):
        registry.arrays.find("a", record.id, {OTHER})


def test_a_name_has_no_epoch() -> None:
    with pytest.raises(NotFound):
        make().arrays.at("a", "catalogue", {OTHER})


def test_nothing_is_unknown_before_the_declared_arrays_are_there() -> None:
    """A handle of one must not be told that it was lost while the engine that brings it back still loads."""
    key = secrets.token_hex(16)
    with serving(settings=Settings(port=0, stop_grace_s=1), make_engine=KeepingEngine) as served:
        front = Keeping(served)

        def found() -> list[int]:
            answers = [
                front.ask("GET", f"/v1/arrays/{key}/info", None, **{EPOCH_FIELD: OTHER}),
                front.json("PUT", f"/v1/arrays/{key}/lease", {"pinned": True}, **{EPOCH_FIELD: OTHER}),
                front.ask("DELETE", f"/v1/arrays/{key}"),
                front.ask("GET", "/v1/arrays/vec/info"),
            ]
            return [answer.status for answer in answers]

        front.engine.state = "starting"
        assert found() == [503] * 4
        front.engine.state = "down"
        assert found() == [503] * 4
        assert served.services is not None
        served.services.arrays.declare([])
        assert found() == [410, 410, 404, 404]  # an engine that is away later: what is declared is known


def test_every_answer_of_a_route_tells_its_epoch(front: Keeping) -> None:
    key = secrets.token_hex(16)
    answers = [
        front.ask("GET", "/livez"),
        front.ask("GET", f"/v1/arrays/{key}"),
        front.json("POST", "/v1/kernels/identity", {"arguments": [[1.0]]}),
        front.served.call("identity", X),
    ]
    assert [answer.status for answer in answers] == [200, 404, 200, 200]
    assert len({answer.headers[EPOCH_FIELD] for answer in answers}) == 1


ROUTES = [
    ("GET", "", None),
    ("GET", "?slice=0", None),
    ("GET", "/info", None),
    ("PUT", "/lease", {"ttl_s": 1}),
    ("PUT", "/lease", {"pinned": True}),
    ("DELETE", "", None),
]


@pytest.mark.parametrize(("method", "rest", "body"), ROUTES)
def test_every_route_of_an_array_takes_it(front: Keeping, method: str, rest: str, body: object) -> None:
    path = f"/v1/arrays/{secrets.token_hex(16)}{rest}"
    assert statuses(front, lambda epoch: front.json(method, path, body, **epoch)) == [404, 404, 410, 400]


def test_calls_take_it_as_json_and_as_frames(front: Keeping) -> None:
    argument = {"arguments": [{"array": secrets.token_hex(16)}]}
    by_json = statuses(front, lambda epoch: front.json("POST", "/v1/kernels/identity", argument, **epoch))
    frame = resident_call(secrets.token_bytes(16))
    by_frame = statuses(
        front, lambda epoch: front.ask("POST", "/v1/call", frame, **{"Content-Type": MEDIA_TYPE}, **epoch)
    )
    assert by_json == by_frame == [404, 404, 410, 400]


def test_a_call_without_ids_does_not_read_it(front: Keeping) -> None:
    def by_json(epoch: dict[str, str]) -> Answer:
        return front.json("POST", "/v1/kernels/identity", {"arguments": [[1.0]]}, **epoch)

    assert statuses(front, by_json) == [200] * 4
    assert statuses(front, lambda epoch: front.served.call("identity", X, headers=epoch)) == [200] * 4


def test_the_openapi_document_has_it_where_ids_are_taken(front: Keeping) -> None:
    taking = {
        (method, path)
        for path, item in front.ask("GET", "/openapi.json").json["paths"].items()
        for method, operation in item.items()
        if any(parameter["name"].lower() == EPOCH_FIELD for parameter in operation.get("parameters", []))
    }
    assert taking == {
        ("post", "/v1/call"), ("post", "/v1/kernels/{name}"), ("get", "/v1/arrays/{array}"),
        ("delete", "/v1/arrays/{array}"), ("get", "/v1/arrays/{array}/info"), ("put", "/v1/arrays/{array}/lease"),
    }  # fmt: skip


def statuses(front: Keeping, ask: Callable[[dict[str, str]], Answer]) -> list[int]:
    """Of a request without an epoch, with this one, another, and none at all in its place."""
    own = front.ask("GET", "/livez").headers[EPOCH_FIELD]
    return [ask(epoch).status for epoch in ({}, *({EPOCH_FIELD: given} for given in (own, OTHER, "banana")))]


def resident_call(key: bytes) -> bytes:
    """The frame of a call with one resident argument."""
    call = CallRequest(
        program=Program.of_kernel("identity", operands=1),
        arguments=(ArrayArgument(array=0),),
        segments=(ids_segment(),),
        ids=0,
    )
    return b"".join(bytes(part) for part in encode_frame(encode_header(call.to_wire()), [memoryview(key)]))
