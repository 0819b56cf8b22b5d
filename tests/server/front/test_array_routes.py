"""The routes of arrays: what `curl` may do with them, by an engine that lives in the test."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from shardserve_proto.dtypes import DTYPES
from shardserve_proto.frames import MEDIA_TYPE
from shardserve_server.front.npy import encode_header
from shardserve_server.settings import Settings

from .keeping import NPY, Keeping, KeepingEngine, load, npy
from .serving import eventually, post_head, read_answer, serving

X = np.arange(60, dtype=np.float32).reshape(3, 4, 5)


@pytest.fixture
def front() -> Iterator[Keeping]:
    settings = Settings(port=0, stop_grace_s=1, arrays_per_owner=50, pinned_bytes=2**20)
    with serving(settings=settings, make_engine=KeepingEngine) as served:
        yield Keeping(served)


# --- up and down -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, dtype in DTYPES.items() if dtype.isbuiltin == 1])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (3, 0, 2), (100, 1000)])
def test_an_array_comes_back_as_it_went(front: Keeping, name: str, shape: tuple[int, ...]) -> None:
    array = (np.arange(int(np.prod(shape))).reshape(shape) % 1000).astype(name)
    info = front.put(array)
    assert (info["dtype"], info["shape"], info["nbytes"]) == (name, list(shape), array.nbytes)
    loaded = load(front.ask("GET", f"/v1/arrays/{info['id']}"))
    assert (loaded.dtype, loaded.shape, loaded.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_a_large_array_goes_straight_through_and_leaves_nothing_in_transit(front: Keeping) -> None:
    array = np.random.default_rng(0).random((1 << 21) + 7)
    info = front.put(array, name="big")
    assert load(front.ask("GET", "/v1/arrays/big")).tobytes() == array.tobytes()
    assert front.ask("DELETE", f"/v1/arrays/{info['id']}").status == 204
    eventually(lambda: front.served.pool.usage().leased_bytes == 0)


def test_the_file_is_named_after_the_array(front: Keeping) -> None:
    info = front.put(X)
    front.put(X, name="catalogue.v2")
    named = front.ask("GET", "/v1/arrays/catalogue.v2").headers["content-disposition"]
    assert named == 'attachment; filename="catalogue.v2.npy"'
    assert info["id"] in front.ask("GET", f"/v1/arrays/{info['id']}").headers["content-disposition"]


def test_bytes_that_an_earlier_upload_left_do_not_follow_an_array(front: Keeping) -> None:
    """The gap between array and id is zeroed: the engine sees no byte of another call."""
    front.put(np.full(100_000, 0xEE, np.uint8))
    front.put(np.zeros(99_999, np.uint8))  # the same buffer again; its gap is 33 bytes
    info = front.put(np.zeros(99_999, np.uint8), name="after")
    assert load(front.ask("GET", f"/v1/arrays/{info['id']}")).sum() == 0


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("0:2", np.s_[0:2]),
        ("...,2", np.s_[..., 2]),
        ("::-1,1:3,::2", np.s_[::-1, 1:3, ::2]),
        ("-1,-1,-1", np.s_[-1, -1, -1]),
        ("5:", np.s_[5:]),
    ],
)
def test_a_slice_is_cut_on_the_server(front: Keeping, text: str, index: Any) -> None:
    front.put(X, name="x")
    answer = front.ask("GET", f"/v1/arrays/x?slice={text}")
    loaded = load(answer)
    assert loaded.shape == X[index].shape
    np.testing.assert_array_equal(loaded, X[index])
    assert len(answer.body) < 128 + 64 + loaded.nbytes


def test_a_dtype_that_npy_does_not_have_comes_as_a_frame(front: Keeping) -> None:
    front.put(X, name="x")
    (key,) = front.engine.arrays
    front.engine.arrays[key] = X.astype(DTYPES["bfloat16"])
    record = front.served.request("GET", "/v1/arrays/x", headers={"Accept": MEDIA_TYPE})
    (frame,) = record.arrays
    np.testing.assert_array_equal(frame.astype(np.float32), X)


def test_bfloat16_has_no_npy_form_and_the_refusal_tells_what_works(front: Keeping) -> None:
    body = {"arguments": [{"dtype": "bfloat16", "shape": [2], "data": [1, 2]}], "keep": {"name": "b"}}
    assert front.json("POST", "/v1/kernels/identity", body).status == 200
    answer = front.ask("GET", "/v1/arrays/b")
    assert (answer.status, answer.code) == (415, "unsupported_media_type")
    assert MEDIA_TYPE in answer.json["error"]["message"]
    assert front.ask("GET", "/v1/arrays/b", Accept=MEDIA_TYPE).arrays[0].dtype == DTYPES["bfloat16"]


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "code", "says"),
    [
        ({"id": "xyz"}, "bad_request", "query.id"),
        ({"name": "no spaces"}, "bad_request", "query.name: an array's name is a letter"),
        ({"name": "a" * 32}, "bad_request", "32 hex digits"),
        ({"ttl_s": "0"}, "bad_request", "query.ttl_s"),
        ({"ttl_s": "nan"}, "bad_request", "query.ttl_s"),
        ({"ttl_s": "inf"}, "bad_request", "query.ttl_s"),
        ({"ttl": "5"}, "bad_request", "did you mean 'ttl_s'"),
        ({"replace": "true"}, "bad_request", "replace moves a name, and none is given"),
        ({"spec": "devices"}, "bad_request", "is no spec"),
        ({"spec": "[[["}, "bad_request", "is no spec"),
        ({"spec": "[1]"}, "bad_request", "out_shardings"),
        ({"spec": '["a",' * 2000}, "bad_request", "is no spec"),
        ({"mesh": "x=four"}, "bad_request", "mesh='x=four'"),
    ],
)
def test_a_wrong_wish_is_refused_by_its_name(front: Keeping, query: dict[str, str], code: str, says: str) -> None:
    answer = front.try_put(X, **query)
    assert (answer.status, answer.code) == (400, code)
    assert says in answer.json["error"]["message"]
    assert not front.engine.arrays


@pytest.mark.parametrize(
    "media_type", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/json", ""]
)
def test_another_content_type_is_told_the_header_that_curl_needs(front: Keeping, media_type: str) -> None:
    answer = front.ask("POST", "/v1/arrays", npy(X), **{"Content-Type": media_type})
    assert (answer.status, answer.code) == (415, "unsupported_media_type")
    assert "-H 'Content-Type: application/x-npy'" in answer.json["error"]["message"]


def test_octet_streams_are_read_too_and_compressed_ones_are_not(front: Keeping) -> None:
    headers = {"Content-Type": "application/octet-stream"}
    assert front.ask("POST", "/v1/arrays", npy(X), **headers).status == 201
    assert front.ask("POST", "/v1/arrays", npy(X), **headers, **{"Content-Encoding": "gzip"}).status == 415


@pytest.mark.parametrize(
    ("body", "status"), [(b"", 400), (b"no file", 400), (npy(X)[:-1], 400), (npy(X) + b"x", 400), (npy(X.T), 422)]
)
def test_a_body_that_is_no_plain_array_is_refused(front: Keeping, body: bytes, status: int) -> None:
    assert front.ask("POST", "/v1/arrays", body, **NPY).status == status
    assert not front.engine.arrays


def test_what_can_never_fit_is_refused_before_it_is_received_or_given_room(front: Keeping) -> None:
    """D1: a terabyte that is declared, and an array that is larger than the devices."""
    for declared, items in ((2**40, 2**37 - 16), (2**31 + 128, 2**28)):
        text = encode_header("float64", (items,))
        with socket.create_connection(("127.0.0.1", front.served.port), timeout=10) as stream:
            began = time.monotonic()
            stream.sendall(post_head("/v1/arrays", declared, "application/x-npy") + text)
            answer = read_answer(stream)
        assert (answer.status, answer.code) == (413, "too_large")
        assert answer.json["error"]["details"]["needed_bytes"] >= 2**31
        assert time.monotonic() - began < 2
        assert front.served.pool.usage().leases == 0
    front.put(X)


def test_the_number_of_arrays_is_limited_exactly(front: Keeping) -> None:
    """D7."""
    infos = [front.put(X) for _ in range(50)]
    answer = front.try_put(X)
    assert (answer.status, answer.code) == (429, "quota_exceeded")
    assert answer.headers["retry-after"] == "60", "the leases are longer"
    assert len(front.engine.arrays) == 50
    assert front.ask("DELETE", f"/v1/arrays/{infos[0]['id']}").status == 204
    front.put(X)
    assert front.try_put(X).status == 429


# --- names, listing, leases ------------------------------------------------------------------------------------------


def test_the_listing_has_the_newest_first_and_can_be_filtered_by_name(front: Keeping) -> None:
    first, second = front.put(X, name="first"), front.put(X, name="second")
    assert [info["id"] for info in front.ask("GET", "/v1/arrays").json] == [second["id"], first["id"]]
    assert [info["name"] for info in front.ask("GET", "/v1/arrays?name=first").json] == ["first"]
    assert front.ask("GET", "/v1/arrays?name=third").json == []
    assert front.ask("GET", "/v1/arrays?nam=first").status == 400
    for answer in (
        front.ask("GET", "/v1/arrays?name=first&name=second"),
        front.ask("GET", "/v1/arrays/first?slice=0&slice=1"),
        front.ask("POST", "/v1/arrays?ttl_s=5&ttl_s=6", npy(X), **NPY),
    ):
        assert (answer.status, answer.code) == (400, "bad_request")
        assert "is given twice" in answer.json["error"]["message"]


def test_a_name_moves_with_replace(front: Keeping) -> None:
    old = front.put(X, name="w")
    assert front.try_put(X, name="w").code == "name_taken"
    new = front.put(X * 2, name="w", replace=True)
    np.testing.assert_array_equal(load(front.ask("GET", "/v1/arrays/w")), X * 2)
    np.testing.assert_array_equal(load(front.ask("GET", f"/v1/arrays/{old['id']}")), X)
    assert front.ask("GET", "/v1/arrays/w/info").json["id"] == new["id"]


def test_a_put_that_is_repeated_with_its_id_has_one_effect(front: Keeping) -> None:
    """G5."""
    key = secrets.token_hex(16)
    assert [front.put(X, id=key)["id"] for _ in range(3)] == [key] * 3
    assert len(front.engine.arrays) == 1
    assert front.try_put(X.astype(np.float64), id=key).code == "name_taken"


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_a_lease_is_renewed_and_ends(front: Keeping, method: str) -> None:
    """D6: exactly 410 after its end, by id and by name."""
    info = front.put(X, name="x", ttl_s=1000)
    renewed = front.json(method, "/v1/arrays/x/lease", {"ttl_s": 0.2}).json
    assert (renewed["ttl_s"], renewed["id"]) == (0.2, info["id"])
    time.sleep(0.25)
    for path in (info["id"], f"{info['id']}/info", f"{info['id']}?slice=0", "x", "x/info"):
        answer = front.ask("GET", f"/v1/arrays/{path}")
        assert (answer.status, answer.code) == (410, "expired")
    eventually(lambda: not front.engine.arrays)
    assert front.engine.freed_twice == []


def test_a_lease_that_is_over_frees_its_array_while_nobody_asks(front: Keeping) -> None:
    front.put(X, ttl_s=0.05)
    eventually(lambda: not front.engine.arrays, within_s=3)


def test_an_array_is_pinned_and_unpinned_again(front: Keeping) -> None:
    front.put(X, name="x")
    pinned = front.json("PUT", "/v1/arrays/x/lease", {"pinned": True}).json
    assert (pinned["pinned"], pinned["ttl_s"], pinned["host_bytes"]) == (True, None, X.nbytes)
    assert front.json("PUT", "/v1/arrays/x/lease", {"pinned": True}).json["host_bytes"] == X.nbytes
    assert front.ask("GET", "/v1/memory").json["pinned_bytes"] == X.nbytes
    again = front.json("PUT", "/v1/arrays/x/lease", {"ttl_s": 60}).json
    assert (again["pinned"], again["ttl_s"], again["host_bytes"]) == (False, 60.0, 0)
    assert front.ask("GET", "/v1/memory").json["pinned_bytes"] == 0


def test_a_pin_without_room_is_refused_before_and_after_the_copy_is_fetched(front: Keeping) -> None:
    half = np.zeros(600 * 1024, np.uint8)
    assert front.try_put(np.zeros(2**20 + 1, np.uint8), pinned=True).status == 507
    ids = [front.put(half)["id"] for _ in range(4)]
    front.engine.delay_s = 0.2  # all have looked before the first one pins
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda key: front.json("PUT", f"/v1/arrays/{key}/lease", {"pinned": True}), ids))
    assert sorted(answer.status for answer in answers) == [200, 507, 507, 507]
    assert front.ask("GET", "/v1/memory").json["pinned_bytes"] == half.nbytes


def test_a_pin_that_meets_a_deletion_keeps_nothing(front: Keeping) -> None:
    info = front.put(np.zeros(300_000, np.uint8))
    front.engine.delay_s = 0.3
    with ThreadPoolExecutor(1) as threads:
        pin = threads.submit(front.json, "PUT", f"/v1/arrays/{info['id']}/lease", {"pinned": True})
        time.sleep(0.1)
        assert front.ask("DELETE", f"/v1/arrays/{info['id']}").status == 204
        assert pin.result().status == 410
    eventually(lambda: front.served.pool.usage().leases == 0)


@pytest.mark.parametrize(
    "body", [{}, [], {"ttl_s": 0}, {"ttl_s": -1}, {"ttl_s": True}, {"ttl_s": "5"}, {"pinned": False},
             {"pinned": True, "ttl_s": 5}, {"ttl": 5}, {"ttl_s": 5, "name": "x"}, b'{"ttl_s": 1e999}',
             {"ttl_s": 10**400}, {"ttl_s": -(10**400)}],
)  # fmt: skip
def test_a_lease_is_one_of_two_things(front: Keeping, body: Any) -> None:
    front.put(X, name="x")
    assert front.json("PUT", "/v1/arrays/x/lease", body).code == "bad_request"
    assert front.ask("GET", "/v1/arrays/x/info").json["ttl_s"] is not None


def test_a_lease_of_an_age_is_a_lease(front: Keeping) -> None:
    front.put(X, name="x")
    assert front.json("PUT", "/v1/arrays/x/lease", {"ttl_s": 10**300}).status == 200
    assert front.ask("GET", "/v1/arrays/x/info").status == 200


# --- deleting --------------------------------------------------------------------------------------------------------


def test_many_arrays_are_released_at_once_and_unknown_ones_are_skipped(front: Keeping) -> None:
    ids = [front.put(X)["id"] for _ in range(20)]
    answer = front.json("POST", "/v1/arrays/release", {"ids": [*ids, ids[0], secrets.token_hex(16)]})
    assert answer.json == {"released": 20}
    assert (front.engine.arrays, front.engine.freed_twice) == ({}, [])
    assert front.json("POST", "/v1/arrays/release", {"ids": ids}).json == {"released": 0}


@pytest.mark.parametrize("body", [[], {}, {"ids": "x"}, {"ids": ["x"]}, {"ids": [1]}, {"ids": ["0" * 32] * 10_001}])
def test_a_release_is_a_list_of_ids(front: Keeping, body: Any) -> None:
    info = front.put(X)
    if isinstance(body, dict) and body.get("ids") == ["x"]:
        body = {"ids": [info["id"], "x"]}
    assert front.json("POST", "/v1/arrays/release", body).code == "bad_request"
    assert len(front.engine.arrays) == 1


def test_ten_thousand_ids_are_released_in_one_request(front: Keeping) -> None:
    ids = [front.put(X)["id"]] + [secrets.token_hex(16) for _ in range(9_999)]
    assert front.json("POST", "/v1/arrays/release", {"ids": ids}).json == {"released": 1}


def test_an_array_named_release_is_an_array(front: Keeping) -> None:
    front.put(X, name="release")
    np.testing.assert_array_equal(load(front.ask("GET", "/v1/arrays/release")), X)
    assert front.ask("DELETE", "/v1/arrays/release").status == 204


def test_a_download_that_runs_when_its_array_is_deleted_ends_well(front: Keeping) -> None:
    """D6."""
    array = np.random.default_rng(1).random(500_000)
    info = front.put(array)
    front.engine.delay_s = 0.2
    with ThreadPoolExecutor(1) as threads:
        download = threads.submit(front.ask, "GET", f"/v1/arrays/{info['id']}")
        time.sleep(0.1)
        assert front.ask("DELETE", f"/v1/arrays/{info['id']}").status == 204
        assert load(download.result()).tobytes() == array.tobytes()
    assert front.ask("GET", f"/v1/arrays/{info['id']}").status == 410


def test_handles_used_renewed_and_deleted_across_their_end_are_right_or_gone(front: Keeping) -> None:
    """D6: real time, many threads. Whoever got the handle gets its own data; after the end it is 410 and stays so."""
    wrong: list[object] = []
    stop = threading.Event()
    infos: dict[str, int] = {}

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not stop.is_set():
            key, value = list(infos.items())[rng.integers(len(infos))]
            match rng.integers(10):
                case 0:
                    answer = front.json("PUT", f"/v1/arrays/{key}/lease", {"ttl_s": 0.1})
                case 1:
                    answer = front.ask("DELETE", f"/v1/arrays/{key}")
                case _:
                    answer = front.ask("GET", f"/v1/arrays/{key}")
            if answer.status == 410:
                if front.ask("GET", f"/v1/arrays/{key}").status != 410:
                    wrong.append(key)
            elif answer.status not in (200, 204):
                wrong.append(answer)
            elif answer.headers.get("content-type") == "application/x-npy" and (load(answer) != value).any():
                wrong.append((key, value))

    for value in range(40):
        infos[front.put(np.full(2000, value), ttl_s=0.3)["id"]] = value
    with ThreadPoolExecutor(6) as threads:
        workers = [threads.submit(work, seed) for seed in range(6)]
        time.sleep(2)
        stop.set()
        for worker in workers:
            worker.result()
    assert wrong == []
    eventually(lambda: not front.engine.arrays, within_s=5)
    assert front.engine.freed_twice == []
    assert front.ask("GET", "/v1/arrays").json == []
