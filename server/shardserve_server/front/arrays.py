"""The resident arrays of one engine, as their owners know them: handles, names and leases.

The engine holds the arrays; what must outlive it is here: who may use which array under which name, for how long, and
the host copies of pinned ones. An array that is gone is remembered for a while, so that its handle is told why.
"""

from __future__ import annotations

import hashlib
import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cachetools import LRUCache

from shardserve_proto.errors import Expired, Forbidden, NameTaken, NotFound, QuotaExceeded, nearest
from shardserve_proto.messages import HEX_ID, LABEL, ArrayInfo, Keep

from ..link.messages import DECLARED
from .pins import HostCopy

#: Ids of arrays that are gone, with the reason.
GONE_REMEMBERED = 100_000
#: An array whose label moved to another one lives on so long after each use.
REPLACED_TTL_S = 60.0
#: Entries of the heap of leases that may be out of date, beside as many as there are arrays.
STALE_ENDS = 1000
#: So many names are compared for a "did you mean".
COMPARED_NAMES = 1000
_UNDECLARED = "the operator's table does not have it any more, or has another array under its name"

#: What the engine tells of an array.
ENGINE_FIELDS = {"dtype", "shape", "spec", "mesh", "shard_shape", "nbytes", "device_bytes", "devices"}

Key = tuple[str, bytes]


class KeepsArrays(Protocol):
    """The part of an engine that the registry uses.

    Attributes:
        starts: how often it was started; an array belongs to one life of it.
    """

    starts: int

    def delete(self, owner: str, ids: Sequence[bytes], *, undo: bool = False) -> None: ...


@dataclass(eq=False)
class Record:
    """One resident array.

    Attributes:
        info: what the engine told of it.
        ttl_s: its lease; None when it is pinned or declared.
        life: the life of the engine that has it.
        digest: of the header that made it: a repeat of the same call is harmless, another call is a mistake.
        copy: of a pinned array.
        shared: where the bytes of one that became its upload lie, as long as the engine holds the buffer.
    """

    owner: str
    id: bytes
    info: Mapping[str, Any]
    name: str | None
    ttl_s: float | None
    pinned: bool
    life: int
    digest: bytes
    made_at: float
    used_at: float
    copy: HostCopy | None = None
    shared: HostCopy | None = None

    @property
    def key(self) -> Key:
        return self.owner, self.id

    @property
    def is_declared(self) -> bool:
        return self.owner == DECLARED

    @property
    def expires_at(self) -> float | None:
        return None if self.ttl_s is None else self.used_at + self.ttl_s

    def unpin(self) -> None:
        """Let the host copy go."""
        if self.copy is not None:
            self.copy.release()
        self.pinned, self.copy = False, None


class Arrays:
    """Handles, names and leases. Belongs to the front's event loop.

    Arguments:
        ttl_s: the lease of an array that asks for none.
        most: arrays that one owner may have.
        clock: monotonic seconds.
    """

    def __init__(
        self, engine: KeepsArrays, *, ttl_s: float, most: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._ttl_s = ttl_s
        self._most = most
        self._clock = clock
        self._records: dict[Key, Record] = {}
        self._names: dict[tuple[str, str], Record] = {}
        self._counts: dict[str, int] = {}
        self._gone: LRUCache[Key, str] = LRUCache(GONE_REMEMBERED)
        self._ends: list[tuple[float, int, Key]] = []  # a heap; entries may be out of date
        self._entry = 0

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(list(self._records.values()))

    # --- looking up --------------------------------------------------------------------------------------------------

    def find(self, owner: str, key: bytes) -> Record:
        """An array that its owner, or everybody, may use; this does not count as a use.

        Raises:
            NotFound: unknown, or somebody else's: the answer is the same.
            Expired: its lease is over, or it was lost with the engine.
        """
        record = self._records.get((owner, key)) or self._records.get((DECLARED, key))
        if record is not None and self._is_live(record):
            return record
        reason = self._gone.get((owner, key)) or self._gone.get((DECLARED, key))
        if reason is None:
            raise NotFound(f"there is no array {key.hex()}")
        raise Expired(f"array {key.hex()}: {reason}")

    def use(self, owner: str, keys: Iterable[bytes]) -> list[Record]:
        """Arrays of a call; their leases begin anew. Raises as `find` does."""
        records = [self.find(owner, key) for key in keys]
        now = self._clock()
        for record in records:
            record.used_at = now
        return records

    def named(self, owner: str, name: str) -> Record:
        """The array that has a label.

        Raises:
            NotFound: none has it, with the nearest label of this owner.
        """
        for space in (owner, DECLARED):
            record = self._names.get((space, name))
            if record is not None and self._is_live(record):
                return record
        known = [label for space, label in self._names if space in (owner, DECLARED)][:COMPARED_NAMES]
        hint = nearest(name, known) if LABEL.fullmatch(name) else ""
        raise NotFound(f"no array has the name {name[:64]!r}{hint}")

    def at(self, owner: str, text: str) -> Record:
        """The array that a path or a JSON call means: 32 hex digits are an id, anything else is a name.

        Raises:
            NotFound, Expired: as `find` and `named` do.
        """
        return self.find(owner, bytes.fromhex(text)) if HEX_ID.fullmatch(text) else self.named(owner, text)

    def info(self, owner: str, key: bytes) -> ArrayInfo:
        """An array as its owner sees it; raises as `find` does."""
        return self.describe(self.find(owner, key))

    def peek(self, owner: str, key: bytes) -> Record | None:
        """An array as it stands in the books, whether it is live or not."""
        return self._records.get((owner, key))

    def count(self, owner: str) -> int:
        """How many arrays an owner has."""
        return self._counts.get(owner, 0)

    def listing(self, owner: str) -> list[Record]:
        """All arrays that the owner may use, newest first."""
        self.sweep()
        own = [record for record in self._records.values() if record.owner in (owner, DECLARED)]
        return sorted((record for record in own if self._is_live(record)), key=lambda record: -record.made_at)

    def describe(self, record: Record) -> ArrayInfo:
        """An array as its owner sees it."""
        now = self._clock()
        return ArrayInfo(
            **record.info,
            id=record.id.hex(),
            name=record.name,
            age_s=round(now - record.made_at, 3),
            ttl_s=record.ttl_s,
            expires_in_s=None if record.expires_at is None else round(record.expires_at - now, 3),
            pinned=record.pinned,
            host_bytes=0 if record.copy is None else record.copy.nbytes,
            is_declared=record.is_declared,
        )

    # --- making ------------------------------------------------------------------------------------------------------

    def check_new(self, owner: str, wanted: Sequence[tuple[bytes, Keep]], header: bytes) -> None:
        """Refuse early what `add` would refuse.

        Raises:
            NameTaken: an id or a label is in use.
            QuotaExceeded: the owner has as many arrays as it may have.
        """
        self.sweep()
        digest = _digest(header)
        self._check_count(owner, sum((owner, key) not in self._records for key, _ in wanted))
        for key, keep in wanted:
            self._check_id(self._records.get((owner, key)), digest)
            self._check_name(owner, key, keep)

    def _check_count(self, owner: str, new: int) -> None:
        count = self._counts.get(owner, 0)
        if new + count > self._most:
            raise QuotaExceeded(
                f"{count} arrays are kept for this key, and at most {self._most} may be; delete some, or let their "
                "leases end",
                details={"arrays": count, "limit": self._most},
            )

    def _check_id(self, known: Record | None, digest: bytes) -> None:
        if known is not None and known.digest != digest:
            raise NameTaken(f"the id {known.id.hex()} is that of another array; each array takes a fresh random id")

    def _check_name(self, owner: str, key: bytes, keep: Keep) -> None:
        if (DECLARED, keep.name) in self._names:
            raise Forbidden(f"the name {keep.name!r} is that of a declared array, which no call can move; take another")
        holder = None if keep.name is None else self._names.get((owner, keep.name))
        if holder is not None and holder.id != key and not keep.replace and self._is_live(holder):
            raise NameTaken(
                f"the name {keep.name!r} is that of array {holder.id.hex()}; replace=True moves it",
                details={"id": holder.id.hex()},
            )

    def add(self, owner: str, key: bytes, keep: Keep, info: dict[str, Any], header: bytes) -> Record:
        """An array that the engine has kept; its label moves to it at once. A repeat finds the array that is there.

        Raises:
            NameTaken, QuotaExceeded: what was free when the call began was taken meanwhile.
        """
        digest = _digest(header)
        known = self._records.get((owner, key))
        if known is not None and self._is_live(known):
            self._check_id(known, digest)
            return known
        self._check_count(owner, 1)
        self._check_name(owner, key, keep)
        now = self._clock()
        ttl_s = None if keep.pinned else keep.ttl_s or self._ttl_s
        record = Record(owner, key, info, None, ttl_s, keep.pinned, self._engine.starts, digest, now, now)
        self._enter(record)
        if keep.name is not None:
            self._label(record, keep.name)
        return record

    def declare(self, declared: Iterable[ArrayInfo]) -> None:
        """The arrays of the operator's table, which the engine has read anew; those of an earlier table end."""
        now = self._clock()
        fresh = {info.name: info for info in declared if info.name is not None}
        for record in [record for record in self._records.values() if record.is_declared]:
            del self._records[record.key], self._names[DECLARED, record.name or ""]
            self._gone[record.key] = _UNDECLARED
        for name, info in fresh.items():
            fields = info.model_dump(include=ENGINE_FIELDS)
            record = Record(
                DECLARED, bytes.fromhex(info.id), fields, name, None, False, self._engine.starts, b"", now, now
            )
            self._records[record.key] = self._names[DECLARED, name] = record
            self._gone.pop(record.key, None)

    def _enter(self, record: Record) -> None:
        if record.key not in self._records:
            self._counts[record.owner] = self._counts.get(record.owner, 0) + 1
        self._records[record.key] = record
        self._gone.pop(record.key, None)
        self._schedule(record)

    def _label(self, record: Record, name: str) -> None:
        old = self._names.get((record.owner, name))
        if old is not None and old is not record:
            old.name = None
            self._shorten(old)
        self._names[record.owner, name] = record
        record.name = name

    def _shorten(self, record: Record) -> None:
        """Running calls have what they need; whoever holds the handle has a last chance to use it."""
        record.unpin()
        record.ttl_s = min(record.ttl_s or REPLACED_TTL_S, REPLACED_TTL_S)
        record.used_at = self._clock()
        self._schedule(record)

    # --- ending ------------------------------------------------------------------------------------------------------

    def renew(self, record: Record, ttl_s: float) -> None:
        """Another lease, from now on; a pinned array is one with a lease again."""
        record.unpin()
        record.ttl_s, record.used_at = ttl_s, self._clock()
        self._schedule(record)

    def pin(self, record: Record, copy: HostCopy) -> None:
        """No lease from now on, and a copy that outlives the engine."""
        record.unpin()
        record.ttl_s, record.pinned, record.copy = None, True, copy

    def delete(self, owner: str, keys: Iterable[bytes]) -> int:
        """Forget arrays; unknown ones are skipped. Returns how many there were."""
        found = [self._records[owner, key] for key in dict.fromkeys(keys) if (owner, key) in self._records]
        there = [record.id for record in found if record.life == self._engine.starts]
        for record in found:
            self._forget(record, "it was deleted")
        if there:
            self._engine.delete(owner, there)
        return len(found)

    def withdraw(self, added: Iterable[Record]) -> None:
        """Forget arrays whose call failed in the end; who asked for them takes them back from the engine as well."""
        for record in added:
            self._forget(record, "the call that made it failed")

    def sweep(self) -> float | None:
        """End the leases that are over. Returns seconds until the next one ends."""
        now = self._clock()
        while self._ends and self._ends[0][0] <= now:
            _, _, key = heapq.heappop(self._ends)
            record = self._records.get(key)
            if record is None or record.expires_at is None:
                continue
            if record.expires_at <= now:
                self._drop(record, _over(record))
            else:
                self._schedule(record)  # it was used meanwhile
        return max(0.0, self._ends[0][0] - now) if self._ends else None

    def restored(self, record: Record, info: dict[str, Any]) -> None:
        """A pinned array is on the devices of a new engine."""
        record.info, record.life = info, self._engine.starts
        if self._records.get(record.key) is not record:  # it was deleted meanwhile
            self._engine.delete(record.owner, [record.id])

    def lose(self, record: Record, reason: str) -> None:
        """An array could not be brought back."""
        self._drop(record, reason)

    def _is_live(self, record: Record) -> bool:
        """Whether the array is there now; what is not is dropped."""
        if record.expires_at is not None and record.expires_at <= self._clock():
            self._drop(record, _over(record))
        elif record.life != self._engine.starts and record.copy is None and not record.is_declared:
            self._drop(record, "it was lost when the engine died; put it again, or pin it with pinned=True")
        else:
            return True
        return False

    def _drop(self, record: Record, reason: str) -> None:
        is_there = record.life == self._engine.starts
        if self._forget(record, reason) and is_there:
            self._engine.delete(record.owner, [record.id])

    def _forget(self, record: Record, reason: str) -> bool:
        if self._records.get(record.key) is not record:
            return False
        del self._records[record.key]
        self._gone[record.key] = reason
        self._counts[record.owner] -= 1
        if not self._counts[record.owner]:
            del self._counts[record.owner]
        if record.name is not None and self._names.get((record.owner, record.name)) is record:
            del self._names[record.owner, record.name]
        record.unpin()
        return True

    def _schedule(self, record: Record) -> None:
        if record.expires_at is None:
            return
        self._entry += 1
        heapq.heappush(self._ends, (record.expires_at, self._entry, record.key))
        if len(self._ends) > 2 * len(self._records) + STALE_ENDS:
            self._ends = [(end, n, r.key) for n, r in enumerate(self) if (end := r.expires_at) is not None]
            heapq.heapify(self._ends)


def _digest(header: bytes) -> bytes:
    return hashlib.blake2b(header, digest_size=16).digest()


def _over(record: Record) -> str:
    return f"its lease of {record.ttl_s:g} s is over; each use renews it, ttl= makes it longer, pinned=True ends it"
