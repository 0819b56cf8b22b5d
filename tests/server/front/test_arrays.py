"""The registry of arrays: handles, names and leases, by an injected clock."""

from __future__ import annotations

import random
import resource
from collections.abc import Iterable

import pytest

from shardserve_proto.errors import Expired, Forbidden, NameTaken, NotFound, QuotaExceeded
from shardserve_proto.messages import ArrayInfo, Keep
from shardserve_server.front import absent as module
from shardserve_server.front.arrays import QUOTA_RETRY_S, REPLACED_TTL_S
from shardserve_server.front.leases import STALE_ENDS
from shardserve_server.front.pins import HostCopy
from shardserve_server.front.record import Record

from .registry import INFO, Registry, make


@pytest.fixture
def registry() -> Registry:
    return make()


def declared(name: str, key: bytes = b"d" * 16) -> ArrayInfo:
    return ArrayInfo(**INFO, id=key.hex(), name=name, is_declared=True)


# --- leases ----------------------------------------------------------------------------------------------------------


def test_a_lease_ends_at_its_instant_and_not_before(registry: Registry) -> None:
    """D6."""
    record = registry.put(ttl_s=5.0)
    registry.clock.now += 4.999
    assert registry.arrays.find("a", record.id) is record
    registry.clock.now += 0.001
    with pytest.raises(Expired, match="its lease of 5 s is over"):
        registry.arrays.find("a", record.id)
    assert not registry.devices.held


def test_each_use_begins_the_lease_anew_and_a_look_does_not(registry: Registry) -> None:
    used, seen = registry.put(ttl_s=5.0), registry.put(ttl_s=5.0)
    registry.clock.now += 4
    registry.arrays.use("a", [used.id])
    registry.arrays.describe(registry.arrays.find("a", seen.id))
    registry.clock.now += 4
    registry.arrays.find("a", used.id)
    with pytest.raises(Expired):
        registry.arrays.find("a", seen.id)


def test_ten_thousand_leases_end_exactly_whatever_meets_them() -> None:
    """D6: uses, renewals, deletions and sweeps across the expiry instant; no double free, no leak."""
    registry, rng = make(), random.Random(6)  # noqa: S311
    ends: dict[bytes, float] = {}
    ttl: dict[bytes, float] = {}
    for _ in range(10_000):
        seconds = rng.choice([0.05, 0.1, 0.15, 0.2])
        record = registry.put(ttl_s=seconds)
        ttl[record.id], ends[record.id] = seconds, registry.clock.now + seconds
    keys = list(ends)
    for _ in range(60_000):
        registry.clock.now += 0.00001
        key = rng.choice(keys)
        is_over = registry.clock.now >= ends[key]
        try:
            match rng.randrange(4):
                case 0:
                    registry.arrays.use("a", [key])
                    ends[key] = registry.clock.now + ttl[key]
                case 1:
                    registry.arrays.renew(registry.arrays.find("a", key), 0.1)
                    ttl[key], ends[key] = 0.1, registry.clock.now + 0.1
                case 2:
                    registry.arrays.find("a", key)
                    if rng.random() < 0.1:
                        registry.arrays.delete("a", [key])
                        ends[key] = 0.0
                case 3:
                    registry.arrays.sweep()
                    continue
            assert not is_over
        except Expired:
            assert is_over
    live = {key for key, end in ends.items() if end > registry.clock.now}
    registry.arrays.sweep()
    assert {record.id for record in registry.arrays} == live == {key for _, key in registry.devices.held}
    registry.clock.now += 1
    assert registry.arrays.sweep() is None
    assert (len(registry.arrays), registry.devices.held, registry.devices.freed_twice) == (0, set(), 0)
    for key in keys:
        with pytest.raises(Expired):
            registry.arrays.find("a", key)


def test_a_lease_that_is_renewed_for_ever_costs_no_memory(registry: Registry) -> None:
    record = registry.put()
    for _ in range(10 * STALE_ENDS):
        registry.arrays.renew(record, 3600.0)
    assert len(registry.arrays._leases) <= STALE_ENDS + 2


def test_a_pinned_array_has_no_lease_until_it_is_renewed(registry: Registry) -> None:
    record = registry.put(pinned=True)
    registry.clock.now += 1e6
    assert registry.arrays.describe(registry.arrays.find("a", record.id)).ttl_s is None
    registry.arrays.renew(record, 5.0)
    assert not record.pinned
    registry.clock.now += 5
    with pytest.raises(Expired):
        registry.arrays.find("a", record.id)


# --- limits ----------------------------------------------------------------------------------------------------------


def test_the_limit_of_arrays_is_exact_and_each_owner_s_own() -> None:
    """D7."""
    registry = make(most=3)
    first = [registry.put() for _ in range(3)]
    with pytest.raises(QuotaExceeded, match="at most 3") as caught:
        registry.put()
    assert caught.value.details == {"arrays": 3, "limit": 3}
    registry.put(owner="b")
    assert registry.arrays.delete("a", [first[0].id]) == 1
    registry.put()
    registry.clock.now += 60
    assert [registry.put() for _ in range(3)]


def test_a_hundred_thousand_arrays_that_come_and_go_leave_no_memory_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """D7: created to the limit, deleted, created again."""
    monkeypatch.setattr(module, "GONE_REMEMBERED", 5_000)
    registry = make(most=100)

    def rounds(count: int) -> None:
        for _ in range(count):
            records = [registry.put(ttl_s=1e6) for _ in range(100)]
            with pytest.raises(QuotaExceeded):
                registry.put()
            assert registry.arrays.delete("a", [record.id for record in records]) == 100

    rounds(200)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rounds(800)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2048
    assert (len(registry.arrays), registry.devices.held, registry.devices.freed_twice) == (0, set(), 0)


def test_a_repeat_of_the_call_that_made_an_array_is_harmless_and_another_call_is_refused(registry: Registry) -> None:
    """G5."""
    record = registry.put(key=b"k" * 16)
    assert registry.put(key=b"k" * 16) is record
    with pytest.raises(NameTaken, match="fresh random id"):
        registry.arrays.check_new("a", [(b"k" * 16, Keep(array=0))], b"another header")


def test_a_repeat_is_a_use_so_that_no_lease_ends_while_it_runs(registry: Registry) -> None:
    record = registry.put(key=b"k" * 16, ttl_s=5.0)
    registry.clock.now += 4
    wanted = Keep(array=0, ttl_s=5.0)
    registry.arrays.check_new("a", [(b"k" * 16, wanted)], b"header")
    registry.clock.now += 4
    registry.arrays.sweep()
    assert registry.arrays.add("a", b"k" * 16, wanted, dict(INFO), b"header") is record


# --- owners ----------------------------------------------------------------------------------------------------------


def test_another_owner_s_array_is_as_unknown_as_any_other(registry: Registry) -> None:
    """C5."""
    record = registry.put(name="mine")
    answers = []
    for _ in range(2):
        with pytest.raises(NotFound) as caught:
            registry.arrays.find("b", record.id)
        answers.append(caught.value.to_wire())
        registry.arrays.delete("a", [record.id])
    assert answers[0] == answers[1]
    with pytest.raises(NotFound):
        registry.arrays.named("b", "mine")
    assert registry.arrays.delete("b", [record.id]) == 0
    assert registry.arrays.listing("b") == []


def test_owners_may_use_the_same_id_and_name(registry: Registry) -> None:
    one, two = (registry.put(owner, b"k" * 16, name="w") for owner in ("a", "b"))
    assert registry.arrays.at("a", "w") is one
    assert registry.arrays.at("b", "w") is two
    registry.arrays.delete("a", [one.id])
    assert registry.arrays.find("b", two.id) is two


# --- names -----------------------------------------------------------------------------------------------------------


def test_a_name_moves_with_replace_and_the_old_array_lives_on_for_a_while(registry: Registry) -> None:
    old = registry.put(name="catalogue", pinned=True)
    with pytest.raises(NameTaken, match="replace=True"):
        registry.put(name="catalogue")
    new = registry.put(name="catalogue", replace=True)
    assert registry.arrays.at("a", "catalogue") is new
    assert (old.name, old.pinned, old.ttl_s) == (None, False, REPLACED_TTL_S)
    registry.clock.now += REPLACED_TTL_S
    with pytest.raises(Expired):
        registry.arrays.find("a", old.id)


def test_a_name_is_free_again_when_its_array_is_gone(registry: Registry) -> None:
    record = registry.put(name="x", ttl_s=1.0)
    registry.clock.now += 1
    registry.put(name="x")
    with pytest.raises(Expired):
        registry.arrays.find("a", record.id)


@pytest.mark.parametrize("text", ["catalog", "x" * 30_000, "", "a b", "%", "\ud800"])
def test_an_unknown_name_is_answered_shortly_and_with_the_nearest(registry: Registry, text: str) -> None:
    registry.put(name="catalogue")
    with pytest.raises(NotFound) as caught:
        registry.arrays.at("a", text)
    assert ("did you mean 'catalogue'" in caught.value.message) == (text == "catalog")
    assert len(caught.value.message) < 400


# --- deaths ----------------------------------------------------------------------------------------------------------


def test_an_array_of_an_earlier_life_of_the_engine_is_gone_unless_it_is_pinned(registry: Registry) -> None:
    lost, pinned = registry.put(), registry.put(pinned=True)
    registry.arrays.pin(pinned, HostCopy(0, 32, payload=bytes(32)))
    registry.devices.starts += 1
    with pytest.raises(Expired, match="lost when the engine died.*pinned=True"):
        registry.arrays.find("a", lost.id)
    assert registry.arrays.find("a", pinned.id) is pinned
    assert not registry.devices.messages  # the new life has never had it


def test_a_pinned_array_that_is_deleted_while_it_is_put_back_does_not_stay_in_the_engine(registry: Registry) -> None:
    record = registry.put(pinned=True)
    registry.arrays.pin(record, HostCopy(0, 32, payload=bytes(32)))
    registry.devices.starts += 1
    registry.arrays.delete("a", [record.id])
    assert not registry.devices.messages
    registry.arrays.restored(record, dict(INFO))
    assert not registry.devices.held


def test_many_arrays_are_deleted_with_one_message_and_an_id_given_twice_counts_once(registry: Registry) -> None:
    keys = [registry.put().id for _ in range(100)]
    assert registry.arrays.delete("a", [*keys, *keys, b"?" * 16]) == 100
    assert (registry.devices.messages, registry.devices.freed_twice) == (1, 0)


# --- declared --------------------------------------------------------------------------------------------------------


def test_a_declared_array_belongs_to_everybody_and_to_nobody(registry: Registry) -> None:
    registry.arrays.declare([declared("catalogue")])
    for owner in ("a", "b"):
        record = registry.arrays.at(owner, "catalogue")
        assert registry.arrays.at(owner, record.id.hex()) is record
        assert registry.arrays.listing(owner) == [record]
        assert registry.arrays.delete(owner, [record.id]) == 0
        assert registry.arrays.owned(owner) == []
    with pytest.raises(Forbidden, match="declared"):
        registry.put(name="catalogue", replace=True)


def test_a_declared_array_survives_deaths_and_one_that_left_the_table_is_gone(registry: Registry) -> None:
    registry.arrays.declare([declared("stays", b"s" * 16), declared("goes", b"g" * 16)])
    registry.devices.starts += 1
    registry.arrays.declare([declared("stays", b"s" * 16)])
    assert registry.arrays.at("a", "stays").life == 2
    with pytest.raises(Expired, match="the operator's table"):
        registry.arrays.find("a", b"g" * 16)
    with pytest.raises(NotFound):
        registry.arrays.at("a", "goes")
    registry.arrays.declare([declared("goes", b"g" * 16)])
    registry.arrays.find("a", b"g" * 16)


# --- quotas and the cost of other owners -----------------------------------------------------------------------------


def test_a_full_quota_tells_when_the_next_lease_ends_and_a_minute_at_most() -> None:
    registry = make(most=2)
    for ttl_s, clock_s, told in ((1000.0, 0.0, QUOTA_RETRY_S), (30.5, 10.0, 21.0), (30.5, 30.2, 1.0)):
        first = registry.put(ttl_s=ttl_s)
        registry.put(pinned=True, key=b"p" * 16)
        registry.clock.now += clock_s
        with pytest.raises(QuotaExceeded) as caught:
            registry.put()
        assert caught.value.retry_after_s == told
        registry.arrays.delete("a", [first.id])
        registry.clock.now = 1000.0
    registry.put(pinned=True)
    with pytest.raises(QuotaExceeded) as caught:
        registry.put()
    assert caught.value.retry_after_s == QUOTA_RETRY_S, "no lease ends at all"


def test_what_an_engine_took_with_it_counts_for_no_quota() -> None:
    """D7."""
    registry = make(most=2)
    lost = [registry.put(name=name) for name in ("x", "y")]
    registry.devices.starts += 1
    registry.arrays.drop_lost()
    assert (len(registry.arrays), registry.arrays.owned("a"), registry.devices.messages) == (0, [], 0)
    registry.put()
    registry.put(name="x")
    with pytest.raises(Expired, match="lost when the engine died"):
        registry.arrays.find("a", lost[0].id)


def test_the_arrays_of_others_cost_an_owner_nothing(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1000):
        registry.put("b", name=f"catalogue{number}")
    mine = registry.put("a", name="mine")
    looked, is_live = [], registry.arrays._is_live

    def look(record: Record) -> bool:
        looked.append(record)
        return is_live(record)

    monkeypatch.setattr(registry.arrays, "_is_live", look)
    assert registry.arrays.listing("a") == registry.arrays.owned("a") == [mine]
    with pytest.raises(NotFound, match="'catalogue'$"):
        registry.arrays.named("a", "catalogue")
    assert set(looked) == {mine}


def test_a_wrong_name_is_compared_with_a_few_of_many(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2000):
        registry.put(name=f"catalogue{number}")
    compared: list[str] = []

    def compare(_: str, known: Iterable[str]) -> str:
        compared.extend(known)
        return ""

    monkeypatch.setattr(module, "nearest", compare)
    with pytest.raises(NotFound):
        registry.arrays.named("a", "catalogue")
    assert len(compared) == module.COMPARED_NAMES == 200
