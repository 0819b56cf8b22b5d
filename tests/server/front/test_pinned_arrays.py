"""Pinned arrays by HTTP: whatever meets the making of a host copy, none stays that nobody has, and no label moves."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from shardserve_server.settings import Settings

from .keeping import Keeping, KeepingEngine, load
from .serving import Answer, eventually, post_head, serving

LIMIT_BYTES = 2**20
X = np.random.default_rng(0).integers(0, 256, 600 * 1024, np.uint8)  # of which the limit takes one


@pytest.fixture
def front() -> Iterator[Keeping]:
    settings = Settings(port=0, stop_grace_s=1, pinned_bytes=LIMIT_BYTES)
    with serving(settings=settings, make_engine=KeepingEngine) as served:
        yield Keeping(served)


def compute(front: Keeping, **keep: Any) -> Answer:
    """A pinned result, which lies on the devices alone until its copy is fetched."""
    return front.json("POST", "/v1/kernels/identity", {"arguments": [{"array": "x"}], "keep": {"pinned": True} | keep})


def during_the_copy(front: Keeping, key: str, meet: Callable[[], object], **keep: Any) -> Answer:
    """A pinned result that something meets while its copy is fetched."""
    front.engine.delay_s = 0.3
    with ThreadPoolExecutor(1) as threads:
        call: Future[Answer] = threads.submit(compute, front, id=key, **keep)
        eventually(lambda: front.ask("GET", f"/v1/arrays/{key}/info").status == 200)
        front.engine.delay_s = 0.0
        assert not call.done()
        meet()
        return call.result()


def nothing_is_pinned(front: Keeping) -> None:
    assert front.ask("GET", "/v1/memory").json["pinned_bytes"] == 0
    eventually(lambda: front.served.pool.usage().leases == 0)


def test_a_pinned_result_that_is_deleted_while_it_is_copied_leaves_nothing(front: Keeping) -> None:
    front.put(X, name="x")
    key = secrets.token_hex(16)

    def delete() -> None:
        assert front.ask("DELETE", f"/v1/arrays/{key}").status == 204

    answer = during_the_copy(front, key, delete, name="y")
    assert (answer.status, answer.code) == (410, "expired")
    assert "it was deleted" in answer.json["error"]["message"]
    assert front.ask("GET", "/v1/arrays/y").status == 404
    assert len(front.engine.arrays) == 1
    nothing_is_pinned(front)


def test_a_label_that_is_taken_while_a_result_is_copied_stays_with_its_taker(front: Keeping) -> None:
    front.put(X, name="x")
    key = secrets.token_hex(16)
    answer = during_the_copy(front, key, lambda: front.put(X[:10], name="y"), name="y")
    assert (answer.status, answer.code) == (409, "name_taken")
    np.testing.assert_array_equal(load(front.ask("GET", "/v1/arrays/y")), X[:10])
    assert front.ask("GET", f"/v1/arrays/{key}").status == 410
    assert len(front.engine.arrays) == 2
    nothing_is_pinned(front)


def test_pinned_results_together_stay_within_the_limit(front: Keeping) -> None:
    front.put(X, name="x")
    front.engine.delay_s = 0.2  # all have looked before the first one pins
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: compute(front), range(4)))
    assert sorted(answer.status for answer in answers) == [200, 507, 507, 507]
    assert front.ask("GET", "/v1/memory").json["pinned_bytes"] == X.nbytes
    assert len(front.engine.arrays) == 2
    assert front.engine.freed_twice == []


def test_a_pin_that_has_no_room_leaves_the_label_where_it_was(front: Keeping) -> None:
    front.put(X, name="x")
    pinned = front.put(X[: LIMIT_BYTES // 2], name="y", pinned=True)
    for answer in (compute(front, name="y", replace=True), front.try_put(X, name="y", replace=True, pinned=True)):
        assert (answer.status, answer.code) == (507, "out_of_memory")
        info = front.ask("GET", "/v1/arrays/y/info").json
        assert (info["id"], info["pinned"], info["host_bytes"]) == (pinned["id"], True, LIMIT_BYTES // 2)
    assert len(front.engine.arrays) == 2


def test_a_repeat_of_a_pinned_put_needs_no_second_room(front: Keeping) -> None:
    """G5: by both ways in, and the array is still on the devices afterwards."""
    key, other = secrets.token_hex(16), secrets.token_hex(16)
    front.put(X, id=key, name="x", pinned=True)
    assert front.try_put(X, id=key, name="x", pinned=True).status == 201
    front.json("PUT", "/v1/arrays/x/lease", {"ttl_s": 60})
    assert compute(front, id=other).status == compute(front, id=other).status == 200
    for text in (key, other):
        assert front.json("POST", "/v1/kernels/identity", {"arguments": [{"array": text}], "keep": {}}).status == 200
        np.testing.assert_array_equal(load(front.ask("GET", f"/v1/arrays/{text}")), X)
    assert front.ask("GET", "/v1/memory").json["pinned_bytes"] == X.nbytes


def test_a_repeat_while_the_first_call_still_pins_has_one_effect(front: Keeping) -> None:
    """G5: the client of the first one goes, and the repeat keeps the array, its copy and its label."""
    front.put(X, name="x")
    key = secrets.token_hex(16)
    front.engine.delay_s = 0.3
    with ThreadPoolExecutor(3) as threads:
        calls = [threads.submit(compute, front, id=key, name="y") for _ in range(3)]
        answers = [call.result() for call in calls]
    assert [answer.status for answer in answers] == [200] * 3
    info = front.ask("GET", "/v1/arrays/y/info").json
    assert (info["id"], info["pinned"], info["host_bytes"]) == (key, True, X.nbytes)
    assert front.ask("GET", "/v1/memory").json["pinned_bytes"] == X.nbytes
    assert front.ask("DELETE", "/v1/arrays/y").status == 204
    nothing_is_pinned(front)


def test_a_client_that_goes_while_its_result_is_copied_takes_nothing_from_its_repeat(front: Keeping) -> None:
    """G5."""
    front.put(X, name="x")
    key = secrets.token_hex(16)
    call = {"arguments": [{"array": "x"}], "keep": {"pinned": True, "id": key, "name": "y"}}
    body = json.dumps(call).encode()
    front.engine.delay_s = 0.3
    with ThreadPoolExecutor(1) as threads:
        with front.served.connect() as stream:
            stream.sendall(post_head("/v1/kernels/identity", len(body), "application/json") + body)
            eventually(lambda: front.ask("GET", f"/v1/arrays/{key}/info").status == 200)
            front.engine.delay_s = 0.6
            repeat = threads.submit(compute, front, id=key, name="y")
            eventually(lambda: _keepers(front, key) == 2)
        answer = repeat.result()
    assert answer.status == 200, answer.body
    np.testing.assert_array_equal(load(front.ask("GET", "/v1/arrays/y")), X)
    assert front.ask("DELETE", "/v1/arrays/y").status == 204
    nothing_is_pinned(front)


def _keepers(front: Keeping, key: str) -> int:
    """Calls that are keeping an array, as the registry knows."""
    assert front.served.services is not None
    (record,) = [record for record in front.served.services.arrays if record.id.hex() == key]
    return record.keepers


def test_a_lease_for_a_pinned_array_waits_for_an_engine_that_has_it(front: Keeping) -> None:
    front.put(X, name="x", pinned=True)
    front.engine.die()
    front.engine.state = "starting"
    answer = front.json("PUT", "/v1/arrays/x/lease", {"ttl_s": 600})
    assert (answer.status, answer.code) == (503, "engine_starting")
    assert "retry-after" in answer.headers
    front.engine.state = "ready"
    take_back(front)
    np.testing.assert_array_equal(load(front.ask("GET", "/v1/arrays/x")), X)
    assert front.json("PUT", "/v1/arrays/x/lease", {"ttl_s": 600}).json["pinned"] is False
    np.testing.assert_array_equal(load(front.ask("GET", "/v1/arrays/x")), X)
    nothing_is_pinned(front)


def test_the_ledger_and_the_names_know_what_an_engine_took_with_it(front: Keeping) -> None:
    front.put(X, name="x")
    front.put(X, name="p", pinned=True)
    front.engine.die()
    take_back(front)
    memory = front.ask("GET", "/v1/memory").json
    assert (memory["own_resident_bytes"], memory["arrays"], memory["resident_bytes"]) == (X.nbytes, 1, X.nbytes)
    answer = front.ask("GET", "/v1/arrays/x")
    assert (answer.status, answer.code) == (410, "expired")
    assert "lost when the engine died" in answer.json["error"]["message"]
    front.put(X, name="x")
    assert front.ask("GET", "/v1/arrays/x").status == 200


def take_back(front: Keeping) -> None:
    """What the link does before a new life of the engine is ready."""

    async def prepare() -> None:
        assert front.engine.before_ready is not None
        await front.engine.before_ready(front.engine)

    assert front.engine.loop is not None
    asyncio.run_coroutine_threadsafe(prepare(), front.engine.loop).result(10)
