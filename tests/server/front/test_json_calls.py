"""Calls in JSON on arrays that stay: by id and by name, as arguments and as results."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from shardserve_server.front.routes import bodies, kernels

from .keeping import Keeping, KeepingEngine, load
from .serving import serving

X = np.arange(60, dtype=np.float32).reshape(3, 4, 5)


@pytest.fixture
def front() -> Iterator[Keeping]:
    with serving(make_engine=KeepingEngine) as served:
        yield Keeping(served)


def test_a_json_call_takes_arrays_by_id_and_by_name(front: Keeping) -> None:
    info = front.put(X[0, 0], name="x")
    for text in ("x", info["id"]):
        (result,) = front.json("POST", "/v1/kernels/identity", {"arguments": [{"array": text}]}).json["results"]
        assert result["data"] == X[0, 0].tolist()


def test_a_json_call_keeps_its_result(front: Keeping) -> None:
    front.put(X, name="x")
    key = secrets.token_hex(16)
    keep = {"id": key, "name": "y", "ttl_s": 5, "replace": True}
    reply = front.json("POST", "/v1/kernels/identity", {"arguments": [{"array": "x"}], "keep": keep}).json
    (info,) = reply["results"]
    assert (info["id"], info["name"], info["ttl_s"], info["shape"]) == (key, "y", 5.0, [3, 4, 5])
    assert "report" in reply
    np.testing.assert_array_equal(load(front.ask("GET", "/v1/arrays/y")), X)
    pinned = front.json("POST", "/v1/kernels/identity", {"arguments": [[1, 2]], "keep": {"pinned": True}}).json
    assert pinned["results"][0]["host_bytes"] == 16


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"arguments": [{"array": 5}]}, '{"array": id or name}'),
        ({"arguments": [{"array": "x", "dtype": "int8"}]}, '{"array": id or name}'),
        ({"arguments": [1], "keep": 5}, "keep is an object"),
        ({"arguments": [1], "keep": True}, "keep is an object"),
        ({"arguments": [1], "keep": False}, "keep is an object"),
        ({"arguments": [1], "keep": {"replace": True}}, "replace moves a name, and none is given"),
        ({"arguments": [1], "keep": {"ttl": 5}}, "did you mean 'ttl_s'"),
        ({"arguments": [1], "keep": {"id": "x"}}, "32 hex digits"),
        ({"arguments": [1], "keep": {"ttl_s": "5"}}, "ttl_s"),
        ({"arguments": [1], "keep": {"ttl_s": True}}, "ttl_s"),
        ({"arguments": [1], "keep": {"ttl_s": -(10**400)}}, "ttl_s"),
        (b'{"arguments": [1], "keep": {"ttl_s": 1e999}}', "ttl_s"),
        ({"arguments": [1], "keep": {"name": "a b"}}, "name: an array's name is"),
        ({"arguments": [1], "keep": {"array": 0}}, "unknown field 'array'"),
    ],
)
def test_a_wrong_reference_or_wish_is_named(front: Keeping, body: Any, says: str) -> None:
    answer = front.json("POST", "/v1/kernels/identity", body)
    assert (answer.status, answer.code) == (400, "bad_request")
    assert says in answer.json["error"]["message"]


@pytest.mark.parametrize("seconds", [b"1" + b"0" * 400, b"-1" + b"0" * 400, b"1e400"])
def test_a_timeout_that_is_not_finite_is_refused_by_name(front: Keeping, seconds: bytes) -> None:
    answer = front.json("POST", "/v1/kernels/identity", b'{"arguments": [[1]], "timeout_s": ' + seconds + b"}")
    assert (answer.status, answer.code) == (400, "bad_request")
    assert answer.json["error"]["message"].startswith("timeout_s: ")
    longest = front.json("POST", "/v1/kernels/identity", {"arguments": [[1]], "timeout_s": 10**300})
    assert longest.status == 200


def test_large_json_is_read_and_written_where_it_holds_up_nobody(
    front: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J3: a body of a mebibyte would take the event loop a third of a second."""
    threads: dict[str, set[str]] = {}

    def watched(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            threads.setdefault(name, set()).add(threading.current_thread().name)
            return function(*args, **kwargs)

        return run

    for module, name in ((bodies, "parse_json"), (kernels, "read_call"), (kernels, "_write_reply")):
        monkeypatch.setattr(module, name, watched(getattr(module, name), name))
    front.put(X, name="x")
    assert front.json("POST", "/v1/kernels/identity", {"arguments": [{"array": "x"}]}).status == 200
    assert threads == {name: {"front"} for name in ("parse_json", "read_call", "_write_reply")}
    threads.clear()
    numbers = list(range(20_000))
    (result,) = front.json("POST", "/v1/kernels/identity", {"arguments": [numbers]}).json["results"]
    assert result["data"] == numbers
    assert "front" not in set.union(*threads.values())
    assert set(threads) == {"parse_json", "read_call", "_write_reply"}


def test_an_unknown_array_in_a_json_call_is_404_with_the_nearest_name(front: Keeping) -> None:
    front.put(X, name="catalogue")
    answer = front.json("POST", "/v1/kernels/identity", {"arguments": [{"array": "catalog"}]})
    assert (answer.status, answer.code) == (404, "not_found")
    assert "did you mean 'catalogue'" in answer.json["error"]["message"]


def test_nothing_is_answered_but_503_while_the_engine_is_away(front: Keeping) -> None:
    front.put(X, name="x")
    front.engine.state = "starting"
    for answer in (
        front.try_put(X),
        front.ask("GET", "/v1/arrays/x"),
        front.json("POST", "/v1/kernels/identity", {"arguments": [{"array": "x"}]}),
    ):
        assert (answer.status, answer.code) == (503, "engine_starting")
    assert front.ask("GET", "/v1/arrays/x/info").status == 200
