"""Shared buffers: the pool that the front owns, and the leases on it.

A buffer is a piece of memory that front and engines map. It has a number, a fixed capacity, and is reused. A *lease* is
one use of it, with a set of holders (the front while it receives or sends, an engine while it reads or writes); the
buffer returns to the pool when the last holder lets go. Only the first `nbytes` of a lease are ever handed out, and
they are written before anybody reads them, so what an earlier lease left behind is not readable.

The pool belongs to the front's event loop: nothing here is safe to call from another thread. Only the pages of large
buffers are made in threads: of a new one while it is being filled, and of the spare one that takes the place of a
buffer which stays with an array.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from shardserve_proto.errors import OutOfMemory, TooLarge

from .background import Background
from .populate import populate
from .regions import REGIONS, BufferKind, Region

FRONT = "front"
#: Each spare buffer costs the front two descriptors and an engine up to three.
SPARE_BUFFERS = 64
#: A spare buffer up to this size is made ahead where one stayed with an array; a larger one is kept when it comes back.
MADE_BYTES = 512 * 2**20
SMALLEST_BYTES = 128 * 1024
#: Making the pages of a smaller buffer is not worth a thread.
POPULATED_BYTES = 4 * 2**20


def size_class(nbytes: int) -> int:
    """The capacity of the buffer that serves `nbytes`: four classes in each doubling: at most a quarter is unused."""
    if nbytes <= SMALLEST_BYTES:
        return SMALLEST_BYTES
    quantum = 1 << ((nbytes - 1).bit_length() - 3)
    return -(-nbytes // quantum) * quantum


class SharedBuffer:
    """One piece of shared memory of the pool."""

    def __init__(self, number: int, capacity: int, region: Region) -> None:
        self.number = number
        self.capacity = capacity
        self.descriptor = region.descriptor
        self.view = region.view
        self.spared = 0  # its place in the order of those that came back

    def close(self) -> None:
        """Give the memory back; the mapping itself goes with the last view of it."""
        os.close(self.descriptor)
        del self.view


class Lease:
    """One use of a buffer, from the pool and back.

    Attributes:
        number: never used twice, so a late message cannot touch the buffer's next use.
        nbytes: the bytes that were asked for.
    """

    __slots__ = ("_holders", "_pool", "buffer", "nbytes", "number")

    def __init__(self, number: int, buffer: SharedBuffer, nbytes: int, holder: Hashable, pool: BufferPool) -> None:
        self.number = number
        self.buffer = buffer
        self.nbytes = nbytes
        self._holders = {holder}
        self._pool = pool

    @property
    def view(self) -> memoryview:
        """The writable bytes of this lease."""
        return self.buffer.view[: self.nbytes]

    @property
    def is_over(self) -> bool:
        return not self._holders

    def hold(self, holder: Hashable) -> None:
        """Add a holder to a lease that somebody holds."""
        if self.is_over:
            raise ValueError(f"lease {self.number} is over; its buffer may be in use again")
        self._holders.add(holder)

    def release(self, holder: Hashable = FRONT) -> None:
        """One holder lets go; repeating it is harmless."""
        if holder in self._holders:
            self._holders.discard(holder)
            if self._holders:
                self._pool.let_go(self, holder)
            else:
                self._pool.take_back(self)


@dataclass(frozen=True)
class PoolUsage:
    """What the pool holds now."""

    leases: int
    leased_bytes: int
    spare_buffers: int
    spare_bytes: int
    limit_bytes: int


class BufferPool:
    """Makes, lends and reuses shared buffers within a limit.

    Arguments:
        kind: which implementation of shared memory.
        limit_bytes: capacity of all buffers together.
        spare_bytes: capacity that stays mapped for reuse when nobody needs it.
    """

    def __init__(self, *, kind: BufferKind, limit_bytes: int, spare_bytes: int) -> None:
        self._make_region = REGIONS[kind]
        self._limit_bytes = limit_bytes
        self._spare_limit_bytes = spare_bytes
        self._numbers = itertools.count(1)
        self._leases: dict[int, Lease] = {}
        self._leased_bytes = 0
        self._adopted: dict[int, set[Hashable]] = {}  # leases that arrays pay for, and who holds them for these
        self._spare: dict[int, list[SharedBuffer]] = {}
        self._spare_bytes = 0
        self._spare_maker = Background()
        self._closer = Background()
        self._is_closed = False
        self._made: deque[tuple[int, SharedBuffer | None]] = deque()
        self._making_bytes = 0
        #: Called with the number of each buffer that is given back to the system, so that engines unmap it.
        self.on_discard: list[Callable[[int], None]] = []

    def check_room(self, nbytes: int) -> None:
        """Refuse at once what `lease` would refuse now; nothing is set aside.

        Raises:
            TooLarge: more than the pool may ever hold.
            OutOfMemory: no room now.
        """
        capacity = self._capacity(nbytes)
        self._collect()
        free = self._limit_bytes - self._leased_bytes - self._making_bytes
        if capacity > free:
            raise _no_room(capacity, free)

    def _capacity(self, nbytes: int) -> int:
        capacity = size_class(nbytes)
        if capacity > self._limit_bytes:
            raise TooLarge(
                f"{nbytes} bytes do not fit into the server's shared buffers of {self._limit_bytes} bytes; "
                "split the call, or raise the setting buffer_bytes",
                details={"needed_bytes": nbytes, "limit_bytes": self._limit_bytes},
            )
        return capacity

    def lease(self, nbytes: int, *, holder: Hashable = FRONT) -> Lease:
        """Lend a buffer of at least `nbytes`.

        Raises:
            TooLarge: more than the pool may ever hold.
            OutOfMemory: no room now.
        """
        capacity = self._capacity(nbytes)
        self._collect()
        spare = self._spare_buffer(capacity)
        lease = Lease(next(self._numbers), spare or self._new(capacity), nbytes, holder, self)
        self._leases[lease.number] = lease
        self._leased_bytes += capacity
        return lease

    def find(self, number: int) -> Lease | None:
        """The lease of this number, if it is not over."""
        return self._leases.get(number)

    def adopt(self, lease: Lease, holder: Hashable) -> None:
        """The lease now belongs to a resident array, which pays for its memory: it is in transit no more.

        Its buffer comes back when its last holder lets go, as any other's. If others, which still send from it, outlast
        the array, it is in transit again. Repeating it is harmless.

        Arguments:
            holder: who holds the lease for the array.
        """
        if lease.is_over:
            return
        if lease.number not in self._adopted:
            self._leased_bytes -= lease.buffer.capacity
            self._make_spare(lease.buffer.capacity)
        self._adopted.setdefault(lease.number, set()).add(holder)

    def let_go(self, lease: Lease, holder: Hashable) -> None:
        """A holder of a lease that goes on lets go; it may have been the last one that held it for an array."""
        owners = self._adopted.get(lease.number)
        if owners is not None:
            owners.discard(holder)
            if not owners:
                del self._adopted[lease.number]
                self._leased_bytes += lease.buffer.capacity

    def take_back(self, lease: Lease) -> None:
        """The last holder let go: the buffer may serve the next lease."""
        del self._leases[lease.number]
        if self._adopted.pop(lease.number, None) is None:
            self._leased_bytes -= lease.buffer.capacity
        self._keep_spare(lease.buffer)
        is_many = sum(map(len, self._spare.values())) > SPARE_BUFFERS
        self._trim(min(self._spare_limit_bytes, self._spare_bytes - 1) if is_many else self._spare_limit_bytes)

    def drop_holder(self, holder: Hashable) -> None:
        """A holder is dead: every lease that it held goes on without it, or is over."""
        for lease in list(self._leases.values()):
            lease.release(holder)

    def usage(self) -> PoolUsage:
        self._collect()
        return PoolUsage(
            leases=len(self._leases),
            leased_bytes=self._leased_bytes,
            spare_buffers=sum(map(len, self._spare.values())),
            spare_bytes=self._spare_bytes,
            limit_bytes=self._limit_bytes,
        )

    def close(self) -> None:
        """Give all spare memory back; buffers under a lease follow as their leases end."""
        self._spare_limit_bytes = 0
        self._spare_maker.stop()
        self._collect()
        self._is_closed = True
        self._trim(0)
        self._closer.finish()

    def _keep_spare(self, buffer: SharedBuffer) -> None:
        buffer.spared = next(self._numbers)
        self._spare.setdefault(buffer.capacity, []).append(buffer)
        self._spare_bytes += buffer.capacity
        if buffer.capacity > self._spare_limit_bytes:
            self._discard(buffer)  # it would push all others out, and go itself

    def _spare_buffer(self, capacity: int) -> SharedBuffer | None:
        spare = self._spare.get(capacity)
        if not spare:
            return None
        self._spare_bytes -= capacity
        return spare.pop()  # the one used last: its pages are the warmest

    def _new(self, capacity: int) -> SharedBuffer:
        self._trim(max(0, self._limit_bytes - self._leased_bytes - self._making_bytes - capacity))
        free = self._limit_bytes - self._leased_bytes - self._spare_bytes - self._making_bytes
        if capacity > free:
            raise _no_room(capacity, free)
        try:
            return SharedBuffer(next(self._numbers), capacity, self._make_region(capacity))
        except (OSError, ValueError) as error:  # no descriptors, no address space, a full disk
            raise OutOfMemory(
                f"the system gives no shared buffer of {capacity} bytes now ({error}); try again",
                details={"needed_bytes": capacity},
                retry_after_s=1.0,
            ) from error

    def _make_spare(self, capacity: int) -> None:
        """Have a thread make a buffer with all its pages, if there is no spare one and room for it."""
        self._collect()
        held = self._spare_bytes + self._making_bytes
        room = min(self._spare_limit_bytes, self._limit_bytes - self._leased_bytes) - held
        if POPULATED_BYTES <= capacity <= min(room, MADE_BYTES) and not self._spare.get(capacity):
            self._making_bytes += capacity
            number = next(self._numbers)
            self._spare_maker.submit(lambda: self._made.append((capacity, self._make(number, capacity))))

    def _make(self, number: int, capacity: int) -> SharedBuffer | None:
        """Runs in a thread."""
        try:
            buffer = SharedBuffer(number, capacity, self._make_region(capacity))
        except (OSError, ValueError):
            return None
        populate(buffer.view, should_stop=lambda: self._spare_maker.is_stopped)
        return buffer

    def _collect(self) -> None:
        """Take over what the thread has made."""
        while self._made:
            capacity, buffer = self._made.popleft()
            self._making_bytes -= capacity
            if buffer is not None:
                self._keep_spare(buffer)
                self._trim(self._spare_limit_bytes)

    def _trim(self, keep_bytes: int) -> None:
        """Discard spare buffers, those first that nobody has wanted for longest, until `keep_bytes` are left."""
        for buffer in self._oldest_spare():
            if self._spare_bytes <= keep_bytes:
                return
            self._discard(buffer)

    def _discard(self, buffer: SharedBuffer) -> None:
        self._spare[buffer.capacity].remove(buffer)
        self._spare_bytes -= buffer.capacity
        for tell in self.on_discard:
            tell(buffer.number)
        self._give_back(buffer)

    def _give_back(self, buffer: SharedBuffer) -> None:
        """The system takes 0.3 s to free a GiB, which the event loop must not wait for."""
        if self._is_closed:
            buffer.close()
        else:
            self._closer.submit(buffer.close)

    def _oldest_spare(self) -> list[SharedBuffer]:
        every = [buffer for spare in self._spare.values() for buffer in spare]
        return sorted(every, key=lambda buffer: buffer.spared)


def _no_room(needed: int, free: int) -> OutOfMemory:
    return OutOfMemory(
        f"no room for a shared buffer of {needed} bytes now, {free} bytes are free; try again",
        details={"needed_bytes": needed, "free_bytes": free, "is_transient": True},
        retry_after_s=1.0,
    )
