"""Labels of arrays: they move when a call succeeds and not before, and tell what became of the array that had one."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from shardserve_proto.errors import Expired, NameTaken, NotFound
from shardserve_proto.messages import Keep
from shardserve_server.front import absent as module
from shardserve_server.front.pins import HostCopy
from shardserve_server.front.record import Record

from .registry import INFO, Registry, make


@pytest.fixture
def registry() -> Registry:
    return make()


def add(registry: Registry, key: bytes | None = None, **keep: Any) -> tuple[Record, Keep]:
    """An array of a call that is not through."""
    key, wanted = key or secrets.token_bytes(16), Keep(array=0, **keep)
    registry.devices.held.add(("a", key))
    return registry.arrays.add("a", key, wanted, dict(INFO), b"header"), wanted


# --- moving ----------------------------------------------------------------------------------------------------------


def test_a_label_moves_when_its_call_succeeds_and_stays_when_it_fails(registry: Registry) -> None:
    old = registry.put(name="w", pinned=True)
    registry.arrays.pin(old, HostCopy(0, 32, payload=bytes(32)))
    failed, _ = add(registry, name="w", replace=True)
    registry.arrays.withdraw([failed])
    assert registry.arrays.named("a", "w") is old
    assert (old.name, old.pinned, registry.arrays.pinned_bytes) == ("w", True, 32)
    new = add(registry, name="w", replace=True)
    assert registry.arrays.named("a", "w") is old
    registry.arrays.settle([new])
    assert registry.arrays.named("a", "w") is new[0]
    assert (old.name, old.pinned, registry.arrays.pinned_bytes) == (None, False, 0)


def test_the_labels_of_one_call_move_together_or_not_at_all(registry: Registry) -> None:
    old = registry.put(name="first")
    first, second = add(registry, name="first", replace=True), add(registry, name="second")
    taker = registry.put(name="second")
    with pytest.raises(NameTaken, match="'second'"):
        registry.arrays.settle([first, second])
    registry.arrays.withdraw([first[0], second[0]])
    assert registry.arrays.named("a", "first") is old
    assert registry.arrays.named("a", "second") is taker
    assert sorted(registry.arrays.owned("a"), key=id) == sorted([old, taker], key=id)


def test_an_array_that_is_deleted_before_its_call_is_through_gets_no_label(registry: Registry) -> None:
    record = add(registry, name="w")
    registry.arrays.delete("a", [record[0].id])
    with pytest.raises(Expired, match="it was deleted"):
        registry.arrays.settle([record])
    with pytest.raises(NotFound):
        registry.arrays.named("a", "w")


def test_an_array_goes_with_the_last_call_that_wanted_it(registry: Registry) -> None:
    """G5: a repeat comes while the call itself, whose client has gone, is not through."""
    key = secrets.token_bytes(16)
    lost, repeated = add(registry, key, name="w"), add(registry, key, name="w")
    assert lost[0] is repeated[0]
    registry.arrays.withdraw([lost[0]])
    registry.arrays.settle([repeated])
    assert registry.arrays.named("a", "w").id == key
    late = add(registry, key, name="w")
    registry.arrays.withdraw([late[0]])
    assert registry.arrays.named("a", "w").id == key
    other = add(registry), add(registry)
    registry.arrays.withdraw(record for record, _ in other)
    assert len(registry.arrays) == 1


def test_a_repeat_does_not_take_back_a_label_that_has_moved_on(registry: Registry) -> None:
    key = secrets.token_bytes(16)
    first = add(registry, key, name="w")
    registry.arrays.settle([first])
    new = registry.put(name="w", replace=True)
    registry.arrays.settle([add(registry, key, name="w")])
    assert registry.arrays.named("a", "w") is new


def test_a_replaced_array_goes_for_want_of_room_unless_somebody_asked_for_it_again(registry: Registry) -> None:
    idle, used, renewed, pinned = (registry.put(name=name) for name in "iurp")
    for name in "iurp":
        registry.put(name=name, replace=True)
    registry.arrays.renew(renewed, 60.0)
    registry.arrays.pin(pinned, HostCopy(0, 32, payload=bytes(32)))
    assert registry.arrays.evict_replaced(besides=[used])
    assert not registry.arrays.evict_replaced(besides=[used])
    with pytest.raises(Expired, match="its name moved to another array, and its room was needed"):
        registry.arrays.find("a", idle.id)
    for record in (used, renewed, pinned):
        assert registry.arrays.find("a", record.id) is record


# --- what became of them ---------------------------------------------------------------------------------------------


def test_the_label_of_an_array_whose_lease_is_over_says_so_until_it_is_used_again(registry: Registry) -> None:
    registry.put(name="w", ttl_s=1.0)
    registry.put(name="v")
    registry.clock.now += 1
    for _ in range(2):
        with pytest.raises(Expired, match="array 'w': its lease of 1 s is over"):
            registry.arrays.named("a", "w")
    with pytest.raises(NotFound):
        registry.arrays.named("b", "w")
    again = registry.put(name="w")
    assert registry.arrays.named("a", "w") is again
    registry.arrays.delete("a", [again.id])
    with pytest.raises(NotFound):
        registry.arrays.named("a", "w")


def test_the_label_of_an_array_that_went_with_the_engine_says_so(registry: Registry) -> None:
    registry.put(name="w")
    pinned = registry.put(name="p", pinned=True)
    registry.arrays.pin(pinned, HostCopy(0, 32, payload=bytes(32)))
    registry.devices.starts += 1
    with pytest.raises(Expired, match="array 'w': it was lost when the engine died; put it again"):
        registry.arrays.named("a", "w")
    registry.arrays.lose(pinned, "it could not be put back")
    with pytest.raises(Expired, match="array 'p': it could not be put back"):
        registry.arrays.named("a", "p")
    assert registry.arrays.pinned_bytes == 0


def test_labels_of_what_is_gone_are_bounded() -> None:
    registry = make(most=module.GONE_NAMES_REMEMBERED + 10)
    for number in range(module.GONE_NAMES_REMEMBERED + 10):
        registry.put(name=f"w{number}", ttl_s=1.0)
    registry.clock.now += 1
    registry.arrays.sweep()
    assert len(registry.arrays._absent._names) == module.GONE_NAMES_REMEMBERED


def test_pinned_bytes_are_those_of_the_copies_that_there_are(registry: Registry) -> None:
    def pin(record: Record, nbytes: int) -> None:
        registry.arrays.pin(record, HostCopy(0, nbytes, payload=bytes(nbytes)))
        copies = [record.copy for record in registry.arrays if record.copy is not None]
        assert registry.arrays.pinned_bytes == sum(copy.nbytes for copy in copies)

    records = [registry.put(name=f"w{number}") for number in range(4)]
    for record in records:
        pin(record, 10)
    pin(records[0], 7)
    registry.arrays.renew(records[0], 60.0)
    assert registry.arrays.pinned_bytes == 30
    registry.put(name="w1", replace=True)
    assert registry.arrays.pinned_bytes == 20
    registry.arrays.delete("a", [records[2].id])
    assert registry.arrays.pinned_bytes == 10
    with pytest.raises(Expired, match="it was deleted"):
        pin(records[2], 100)
    registry.arrays.lose(records[3], "gone")
    assert registry.arrays.pinned_bytes == 0
