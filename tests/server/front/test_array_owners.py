"""Arrays of several owners: what each sees of the other's, and of those that the operator declares."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from shardserve_proto.errors import OutOfMemory
from shardserve_proto.handles import EPOCH_FIELD
from shardserve_proto.messages import ArrayInfo
from shardserve_server.front.arrays import Arrays
from shardserve_server.front.auth import Keys

from .keeping import Keeping, KeepingEngine, info_of, load
from .serving import Answer, serving

X = np.arange(60, dtype=np.float32).reshape(3, 4, 5)


KEYS = {"ann": "ann-key-0123456789abcdef", "bob": "bob-key-0123456789abcdef"}


@pytest.fixture
def owners() -> Iterator[tuple[Keeping, Keeping]]:
    """Two owners of one front."""
    with serving(keys=Keys(KEYS.items()), make_engine=KeepingEngine) as served:
        yield Keeping(served, key=KEYS["ann"]), Keeping(served, key=KEYS["bob"])


@pytest.mark.parametrize(("epoch", "status"), [({}, 404), ({EPOCH_FIELD: "0123456789abcdef"}, 410)])
def test_another_owner_s_array_is_answered_as_an_unknown_one_on_every_route(
    owners: tuple[Keeping, Keeping], epoch: dict[str, str], status: int
) -> None:
    """C5: the answers are equal byte for byte, before the array is there, while it is, and after."""
    ann, bob = owners
    bob.headers |= epoch
    key = secrets.token_hex(16)

    def answers() -> list[tuple[int, bytes]]:
        argument = {"arguments": [{"array": key}]}
        found = [
            bob.ask("GET", f"/v1/arrays/{key}"),
            bob.ask("GET", f"/v1/arrays/{key}?slice=0"),
            bob.ask("GET", f"/v1/arrays/{key}/info"),
            bob.json("PUT", f"/v1/arrays/{key}/lease", {"ttl_s": 1}),
            bob.json("PUT", f"/v1/arrays/{key}/lease", {"pinned": True}),
            bob.ask("DELETE", f"/v1/arrays/{key}"),
            bob.json("POST", "/v1/kernels/identity", argument),
            bob.json("POST", "/v1/kernels/identity", argument | {"keep": {}}),
            bob.ask("GET", "/v1/arrays/secret"),
            bob.json("POST", "/v1/kernels/identity", {"arguments": [{"array": "secret"}]}),
            bob.json("POST", "/v1/arrays/release", {"ids": [key]}),
            bob.ask("GET", "/v1/arrays"),
            bob.ask("GET", "/v1/arrays?name=secret"),
        ]
        assert [answer.status for answer in found] == [status] * 8 + [404] * 2 + [200] * 3
        return [(answer.status, answer.body) for answer in found]

    unknown = answers()
    ann.put(X, id=key, name="secret")
    assert answers() == unknown
    np.testing.assert_array_equal(load(ann.ask("GET", f"/v1/arrays/{key}")), X)
    assert ann.ask("DELETE", f"/v1/arrays/{key}").status == 204
    assert answers() == unknown


def test_two_owners_share_an_id_and_a_name_without_noticing(owners: tuple[Keeping, Keeping]) -> None:
    """C5."""
    ann, bob = owners
    key = secrets.token_hex(16)
    for owner, factor in ((ann, 1), (bob, 2)):
        owner.put(X * factor, id=key, name="w")
    assert ann.ask("DELETE", "/v1/arrays/w").status == 204
    np.testing.assert_array_equal(load(bob.ask("GET", f"/v1/arrays/{key}")), X * 2)


def test_the_ledger_names_no_array_of_another_owner(owners: tuple[Keeping, Keeping]) -> None:
    """C5."""
    ann, bob = owners
    mine, theirs = ann.put(X, name="mine"), bob.put(X, name="theirs")
    answer = ann.ask("GET", "/v1/memory")
    memory = answer.json
    assert {(h["name"], h["id"], h["is_own"], h["what"]) for h in memory["holders"]} == {
        ("mine", mine["id"], True, "array"), (None, None, False, "array"), (None, None, False, "call"),
    }  # fmt: skip
    assert (memory["resident_bytes"], memory["own_resident_bytes"]) == (2 * X.nbytes, X.nbytes)
    assert (memory["arrays"], memory["reserved_bytes"]) == (1, 64)
    for secret in (theirs["id"], "theirs", "bob", "somebody"):
        assert secret.encode() not in answer.body


def test_an_error_for_want_of_memory_names_the_holders_as_their_owner_may_see_them(
    owners: tuple[Keeping, Keeping],
) -> None:
    """D1, C5."""
    ann, bob = owners
    mine, theirs = ann.put(X, name="mine"), bob.put(X, name="theirs")
    told = [
        {"what": "array", "device_bytes": 9, "age_s": 1.0, "owner": owner, "id": info["id"]}
        for owner, info in (("ann", mine), ("bob", theirs))
    ]
    calls: list[Callable[[], Answer]] = [
        lambda: ann.try_put(X),
        lambda: ann.ask("GET", "/v1/arrays/mine"),
        lambda: ann.json("PUT", "/v1/arrays/mine/lease", {"pinned": True}),
        lambda: ann.json("POST", "/v1/kernels/identity", {"arguments": [{"array": "mine"}]}),
    ]
    for call in calls:
        ann.engine.full = OutOfMemory("no room", details={"needed_bytes": 5, "free_bytes": 1, "holders": list(told)})
        answer = call()
        assert (answer.status, answer.code) == (507, "out_of_memory")
        details = answer.json["error"]["details"]
        assert (details["needed_bytes"], details["free_bytes"]) == (5, 1)
        own, other = details["holders"]
        assert (own["name"], own["id"], own["is_own"]) == ("mine", mine["id"], True)
        assert (other["name"], other["id"], other["is_own"]) == (None, None, False)
        assert b"bob" not in answer.body


def test_a_declared_array_may_be_used_by_everybody_and_changed_by_nobody(owners: tuple[Keeping, Keeping]) -> None:
    ann, bob = owners
    key = secrets.token_bytes(16)
    engine = ann.engine
    engine.arrays["\0declared", key] = X
    services = _arrays_of(ann)
    services.declare([ArrayInfo(**info_of(X), id=key.hex(), name="vectors", is_declared=True)])
    for owner in (ann, bob):
        for text in ("vectors", key.hex()):
            np.testing.assert_array_equal(load(owner.ask("GET", f"/v1/arrays/{text}")), X)
            for answer in (
                owner.ask("DELETE", f"/v1/arrays/{text}"),
                owner.json("PUT", f"/v1/arrays/{text}/lease", {"ttl_s": 1}),
                owner.json("PUT", f"/v1/arrays/{text}/lease", {"pinned": True}),
                owner.try_put(X, name="vectors", replace=True),
            ):
                assert (answer.status, answer.code) == (403, "forbidden")
        assert owner.json("POST", "/v1/arrays/release", {"ids": [key.hex()]}).json == {"released": 0}
        (info,) = owner.ask("GET", "/v1/arrays").json
        assert (info["is_declared"], info["ttl_s"], info["name"]) == (True, None, "vectors")
        holder = owner.ask("GET", "/v1/memory").json["holders"][0]
        assert (holder["name"], holder["is_own"]) == ("vectors", False)
    assert engine.arrays


def _arrays_of(front: Keeping) -> Arrays:
    assert front.served.services is not None
    return front.served.services.arrays
