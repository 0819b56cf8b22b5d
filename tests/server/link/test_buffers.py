"""The pool of shared buffers: both implementations, leases and their holders, limits and reuse."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardserve_proto.errors import OutOfMemory, TooLarge
from shardserve_server.link.buffers import SMALLEST_BYTES, SPARE_BUFFERS, BufferPool, Lease, size_class
from shardserve_server.link.descriptors import MappedBuffers, send_descriptor
from shardserve_server.link.populate import populate
from shardserve_server.link.regions import REGIONS, BufferKind, default_kind

from .harness import make_pool

KINDS: tuple[BufferKind, ...] = ("memfd", "file") if sys.platform == "linux" else ("file",)
MIB = 2**20


@pytest.fixture(params=KINDS)
def pool(request: pytest.FixtureRequest) -> Iterator[BufferPool]:
    pool = make_pool(kind=request.param, limit_bytes=16 * MIB, spare_bytes=8 * MIB)
    yield pool
    pool.close()
    assert pool.usage().spare_bytes == 0


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    front, engine = socket.socketpair()
    with front, engine:
        yield front, engine


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def hand_over(lease: Lease, front: socket.socket) -> int:
    buffer = lease.buffer
    send_descriptor(front, number=buffer.number, capacity=buffer.capacity, descriptor=buffer.descriptor)
    return buffer.number


def test_what_one_end_writes_the_other_end_reads(pool: BufferPool, ends: tuple[socket.socket, socket.socket]) -> None:
    lease = pool.lease(300_000)
    lease.view[:5] = b"hello"
    engine = MappedBuffers(ends[1])
    number = hand_over(lease, ends[0])
    assert engine.readable(number)[:5] == b"hello"
    engine.writable(number)[5:10] = b"world"
    assert bytes(lease.view[:10]) == b"helloworld"
    engine.forget(number)
    lease.release()


def test_an_upload_cannot_be_written_through_the_engines_mapping(
    pool: BufferPool, ends: tuple[socket.socket, socket.socket]
) -> None:
    lease = pool.lease(1)
    engine = MappedBuffers(ends[1])
    mapping = engine.readable(hand_over(lease, ends[0]))
    with pytest.raises(TypeError, match="readonly"):
        mapping[0] = 1
    engine.forget(lease.buffer.number)
    lease.release()


def test_buffers_may_arrive_in_another_order_than_they_are_used(
    pool: BufferPool, ends: tuple[socket.socket, socket.socket]
) -> None:
    first, second = pool.lease(10), pool.lease(10)
    first.view[0], second.view[0] = 1, 2
    engine = MappedBuffers(ends[1])
    numbers = [hand_over(first, ends[0]), hand_over(second, ends[0])]
    assert [engine.readable(number)[0] for number in reversed(numbers)] == [2, 1]
    for lease in (first, second):
        engine.forget(lease.buffer.number)
        lease.release()


@pytest.mark.skipif(sys.platform != "linux", reason="memfd is Linux's")
def test_the_size_of_a_memfd_is_sealed() -> None:
    region = REGIONS["memfd"](SMALLEST_BYTES)
    for nbytes in (0, 2 * SMALLEST_BYTES):
        with pytest.raises(PermissionError):
            os.ftruncate(region.descriptor, nbytes)
    os.close(region.descriptor)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_file_buffer_has_no_name() -> None:
    region = REGIONS["file"](SMALLEST_BYTES)
    path = os.readlink(f"/proc/self/fd/{region.descriptor}")
    assert not os.path.exists(path)
    os.close(region.descriptor)


@pytest.mark.parametrize("kind", KINDS)
def test_fresh_memory_is_zero(kind: BufferKind) -> None:
    region = REGIONS[kind](SMALLEST_BYTES)
    assert not any(region.view)
    os.close(region.descriptor)


def test_a_released_buffer_serves_the_next_lease_of_its_class(pool: BufferPool) -> None:
    first = pool.lease(1000)
    first.release()
    second = pool.lease(2000)
    assert second.buffer is first.buffer
    assert second.number != first.number
    assert len(second.view) == 2000, "bytes past the lease are not handed out"
    second.release()


def test_a_lease_ends_with_its_last_holder(pool: BufferPool) -> None:
    lease = pool.lease(1)
    lease.hold("engine")
    lease.release()
    assert not lease.is_over
    assert pool.usage().leases == 1
    lease.release("engine")
    assert lease.is_over
    assert pool.usage().leases == 0
    lease.release("engine")
    assert pool.usage().spare_buffers == 1, "releasing twice returns the buffer once"


def test_a_lease_that_is_over_cannot_be_held_again(pool: BufferPool) -> None:
    lease = pool.lease(1)
    lease.release()
    with pytest.raises(ValueError, match="is over"):
        lease.hold("engine")


def test_a_dead_holders_leases_come_back_and_the_others_stay(pool: BufferPool) -> None:
    uploads = [pool.lease(1, holder="first engine") for _ in range(3)]
    shared = pool.lease(1)
    shared.hold("first engine")
    other = pool.lease(1, holder="second engine")
    pool.drop_holder("first engine")
    assert [lease.is_over for lease in (*uploads, shared, other)] == [True, True, True, False, False]
    shared.release()
    other.release("second engine")


def test_more_than_the_limit_never_fits_and_says_so(pool: BufferPool) -> None:
    with pytest.raises(TooLarge, match="buffer_bytes") as caught:
        pool.lease(17 * MIB)
    assert caught.value.details == {"needed_bytes": 17 * MIB, "limit_bytes": 16 * MIB}


def test_a_full_pool_says_what_is_needed_and_free(pool: BufferPool) -> None:
    lease = pool.lease(12 * MIB)
    with pytest.raises(OutOfMemory) as caught:
        pool.lease(8 * MIB)
    assert caught.value.details == {"needed_bytes": 8 * MIB, "free_bytes": 4 * MIB, "is_transient": True}
    assert caught.value.retry_after_s
    lease.release()
    pool.lease(8 * MIB).release()


def test_spare_buffers_make_room_and_engines_are_told(pool: BufferPool) -> None:
    gone: list[int] = []
    pool.on_discard.append(gone.append)
    small = pool.lease(4 * MIB)
    small.release()
    assert gone == []
    large = pool.lease(16 * MIB)
    assert gone == [small.buffer.number]
    large.release()
    assert gone == [small.buffer.number, large.buffer.number], "more spare than allowed is given back"
    assert pool.usage().spare_bytes == 0


def test_discarded_buffers_leave_no_descriptor_behind() -> None:
    pool = make_pool(limit_bytes=16 * MIB, spare_bytes=16 * MIB)
    before = open_descriptors()
    for lease in [pool.lease(n * MIB) for n in (1, 2, 3)]:
        lease.view[0] = 1
        lease.release()
    assert open_descriptors() > before
    del lease
    pool.close()
    assert open_descriptors() == before


@given(st.integers(1, 2**40))
def test_a_size_class_is_large_enough_and_wastes_at_most_a_quarter(nbytes: int) -> None:
    capacity = size_class(nbytes)
    assert nbytes <= capacity
    assert capacity == SMALLEST_BYTES or capacity * 4 <= nbytes * 5
    assert size_class(capacity) == capacity


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5 * MIB)), max_size=40))
def test_the_ledger_is_the_sum_of_the_leases(steps: list[tuple[bool, int]]) -> None:
    pool = make_pool(limit_bytes=16 * MIB, spare_bytes=4 * MIB)
    held: list[Lease] = []
    for is_lease, number in steps:
        if is_lease:
            try:
                held.append(pool.lease(number))
            except OutOfMemory:
                assert sum(lease.buffer.capacity for lease in held) + size_class(number) > 16 * MIB
        elif held:
            held.pop(number % len(held)).release()
        usage = pool.usage()
        assert usage.leased_bytes == sum(lease.buffer.capacity for lease in held)
        assert usage.leased_bytes + usage.spare_bytes <= 16 * MIB
        assert usage.spare_bytes <= 4 * MIB
        assert len({lease.buffer.number for lease in held}) == len(held), "one buffer, one lease"
    for lease in held:
        lease.release()
    pool.close()
    assert (pool.usage().leased_bytes, pool.usage().spare_bytes) == (0, 0)


def pages(lease: Lease) -> int:
    """Bytes of a memfd that have memory behind them."""
    return os.fstat(lease.buffer.descriptor).st_blocks * 512


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def test_a_buffer_that_stays_with_an_array_is_in_transit_no_more_and_has_a_spare_in_its_place() -> None:
    pool = make_pool(limit_bytes=32 * MIB, spare_bytes=16 * MIB)
    lease = pool.lease(8 * MIB)
    lease.hold("engine")
    pool.adopt(lease, "engine")
    lease.release()
    assert pool.usage().leased_bytes == 0
    wait_for(lambda: pool.usage().spare_bytes == 8 * MIB)
    successor = pool.lease(7 * MIB + 1)
    assert successor.buffer is not lease.buffer
    if default_kind() == "memfd":
        assert pages(successor) >= 8 * MIB, "its pages are there before it is used"
    lease.release("engine")
    successor.release()
    assert pool.usage().spare_bytes == 16 * MIB
    pool.close()


@pytest.mark.skipif(sys.platform != "linux", reason="madvise is Linux's")
def test_a_new_buffer_takes_no_memory_before_bytes_come() -> None:
    """A client that declares a large body and sends nothing must not make the server take its pages."""
    pool = make_pool(limit_bytes=32 * MIB, spare_bytes=0)
    lease = pool.lease(16 * MIB)
    time.sleep(0.2)
    assert pages(lease) == 0
    lease.view[: 2 * MIB] = bytes(2 * MIB)
    assert pages(lease) >= 2 * MIB
    lease.release()
    del lease
    pool.close()


def test_no_more_spare_buffers_are_made_than_the_limits_allow() -> None:
    pool = make_pool(limit_bytes=40 * MIB, spare_bytes=8 * MIB)
    leases = [pool.lease(8 * MIB) for _ in range(3)]
    for lease in leases:
        pool.adopt(lease, "front")
        pool.adopt(lease, "front")
    wait_for(lambda: pool.usage().spare_bytes == 8 * MIB)
    assert pool.usage().spare_buffers == 1
    large = pool.lease(40 * MIB)
    assert pool.usage().spare_bytes == 0, "spare memory makes room for what is asked for"
    for lease in (*leases, large):
        lease.release()
    pool.close()


def test_a_pool_that_closes_waits_for_the_buffer_in_the_making() -> None:
    before = open_descriptors()
    pool = make_pool(limit_bytes=2**30, spare_bytes=2**30)
    lease = pool.lease(256 * MIB)
    pool.adopt(lease, "front")
    pool.close()
    lease.release()
    del lease
    assert not [thread for thread in threading.enumerate() if thread.name == "memory"]
    assert open_descriptors() == before


def test_memory_that_cannot_be_populated_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "other")
    assert not populate(memoryview(bytearray(8192)))


def test_linux_uses_memfd_by_default() -> None:
    assert default_kind() == ("memfd" if sys.platform == "linux" else "file")


def test_spare_buffers_are_few_however_small_they_are() -> None:
    """Each costs descriptors, of which a process has a thousand or so."""
    pool = make_pool()
    leases = [pool.lease(1) for _ in range(3 * SPARE_BUFFERS)]
    for lease in leases:
        lease.release()
    assert pool.usage().spare_buffers == SPARE_BUFFERS
    pool.close()


def test_a_buffer_that_only_readers_hold_is_in_transit_again() -> None:
    """A slow reader of an array that is gone must not hold memory that nobody counts."""
    pool = make_pool()
    lease = pool.lease(3 * MIB)
    lease.hold("engine")
    pool.adopt(lease, "engine")
    lease.hold("reader")
    lease.release()
    assert pool.usage().leased_bytes == 0
    lease.release("engine")
    assert pool.usage().leased_bytes == lease.buffer.capacity
    lease.release("reader")
    assert pool.usage().leased_bytes == 0
    assert pool.usage().leases == 0


def test_of_spare_buffers_those_go_first_that_nobody_wanted_for_longest() -> None:
    """Large ones are worth most: to make their pages anew takes half a second for a GiB."""
    pool = make_pool(limit_bytes=64 * MIB, spare_bytes=12 * MIB)
    small, large = pool.lease(6 * MIB), pool.lease(8 * MIB)
    capacity = large.buffer.capacity
    small.release()
    large.release()
    assert list(filter(None, pool._spare.values())) == [[large.buffer]]
    too_large = pool.lease(16 * MIB)
    too_large.release()
    assert pool.usage().spare_bytes == capacity
    pool.close()
