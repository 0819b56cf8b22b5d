"""The resident arrays of one engine, as their owners know them: handles, names and leases.

The engine holds the arrays; what must outlive it is here: who may use which array under which name, for how long, and
the host copies of pinned ones. An array that is gone is remembered for a while, so that its handle is told why.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any

from shardserve_proto.errors import Expired, Forbidden, NameTaken, QuotaExceeded
from shardserve_proto.handles import HEX_ID
from shardserve_proto.messages import ArrayInfo, Keep

from ..link.messages import DECLARED
from .absent import Absent
from .epoch import NO_EPOCHS
from .leases import Leases
from .pins import HostCopy
from .record import KeepsArrays, Record, Space, digest_of

#: An array whose label moved to another one lives on so long after each use.
REPLACED_TTL_S = 60.0
#: Seconds after which a full quota is worth another try, at most.
QUOTA_RETRY_S = 60.0
_LOST = "it was lost when the engine died; put it again, or pin it with pinned=True"
_UNDECLARED = "the operator's table does not have it any more, or has another array under its name"

#: What the engine tells of an array.
ENGINE_FIELDS = {"dtype", "shape", "spec", "mesh", "shard_shape", "nbytes", "device_bytes", "devices"}


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
        self._spaces: defaultdict[str, Space] = defaultdict(Space)
        self._pinned_bytes = 0
        self._absent = Absent()
        self._has_table = False
        self._leases = Leases(lambda: list(self))

    def __len__(self) -> int:
        return sum(len(space.records) for space in self._spaces.values())

    def __iter__(self) -> Iterator[Record]:
        return iter([record for space in self._spaces.values() for record in space.records.values()])

    @property
    def epoch(self) -> str:
        """The epoch of the ids that are known here."""
        return self._absent.epoch

    @property
    def pinned_bytes(self) -> int:
        """Host memory of all pinned arrays."""
        return self._pinned_bytes

    # --- looking up --------------------------------------------------------------------------------------------------

    def find(self, owner: str, key: bytes, epochs: Set[str] = NO_EPOCHS) -> Record:
        """An array that its owner, or everybody, may use; this does not count as a use.

        Arguments:
            epochs: those of the ids that the client gives.

        Raises:
            NotFound: unknown, or somebody else's: the answer is the same.
            Expired: its lease is over, or it was lost with the engine, or with an earlier front.
            EngineStarting, EngineLost: nothing is known to be absent before the declared arrays are there.
        """
        record = self.peek(owner, key) or self.peek(DECLARED, key)
        if record is not None and self._is_live(record):
            return record
        self._check_table()
        raise self._absent.by_id(owner, key, epochs)

    def _check_table(self) -> None:
        if not self._has_table:
            self._engine.check_ready()

    def use(self, owner: str, keys: Iterable[bytes], epochs: Set[str] = NO_EPOCHS) -> list[Record]:
        """Arrays of a call; their leases begin anew. Raises as `find` does."""
        records = [self.find(owner, key, epochs) for key in keys]
        self._renew(records)
        return records

    def _renew(self, records: Iterable[Record]) -> None:
        now = self._clock()
        for record in records:
            record.used_at = now

    def named(self, owner: str, name: str) -> Record:
        """The array that has a label.

        Raises:
            NotFound: none has it, with the nearest label of this owner.
            Expired: the lease of the one that had it is over, or it was lost with the engine.
            EngineStarting, EngineLost: as `find`.
        """
        for space in (owner, DECLARED):
            record = self._spaces[space].names.get(name)
            if record is not None and self._is_live(record):
                return record
        self._check_table()
        known = itertools.chain(self._spaces[owner].names, self._spaces[DECLARED].names)
        raise self._absent.by_name(owner, name, known)

    def at(self, owner: str, text: str, epochs: Set[str] = NO_EPOCHS) -> Record:
        """The array that a path or a JSON call means: 32 hex digits are an id, anything else is a name.

        Raises:
            NotFound, Expired, EngineStarting, EngineLost: as `find` and `named` do.
        """
        return self.find(owner, bytes.fromhex(text), epochs) if HEX_ID.fullmatch(text) else self.named(owner, text)

    def info(self, owner: str, key: bytes) -> ArrayInfo:
        """An array as its owner sees it; raises as `find` does."""
        return self.describe(self.find(owner, key))

    def peek(self, owner: str, key: bytes) -> Record | None:
        """An array as it stands in the books, whether it is live or not."""
        return self._spaces[owner].records.get(key)

    def owned(self, owner: str) -> list[Record]:
        """The live arrays of an owner alone, newest first."""
        live = [record for record in list(self._spaces[owner].records.values()) if self._is_live(record)]
        return sorted(live, key=lambda record: -record.made_at)

    def listing(self, owner: str) -> list[Record]:
        """All arrays that the owner may use, newest first."""
        return sorted(self.owned(owner) + self.owned(DECLARED), key=lambda record: -record.made_at)

    def describe(self, record: Record) -> ArrayInfo:
        """An array as its owner sees it; any thread may ask."""
        return record.describe(self._clock())

    # --- making ------------------------------------------------------------------------------------------------------

    def check_new(self, owner: str, wanted: Sequence[tuple[bytes, Keep]], header: bytes) -> None:
        """Refuse early what `add` and `settle` would refuse. A repeat is a use of the arrays that it made.

        Raises:
            NameTaken: an id or a label is in use.
            QuotaExceeded: the owner has as many arrays as it may have.
        """
        self.sweep()
        records, digest = self._spaces[owner].records, digest_of(header)
        self._check_count(owner, sum(key not in records for key, _ in wanted))
        for key, keep in wanted:
            self._check_id(records.get(key), digest)
            self._check_name(owner, key, keep)
        self._renew(records[key] for key, _ in wanted if key in records)

    def _check_count(self, owner: str, new: int) -> None:
        records = self._spaces[owner].records
        if new + len(records) > self._most:
            ends = [end for record in records.values() if (end := record.expires_at) is not None]
            next_end_s = min(ends, default=math.inf) - self._clock()
            raise QuotaExceeded(
                f"{len(records)} arrays are kept for this key, and at most {self._most} may be; delete some, or let "
                "their leases end",
                details={"arrays": len(records), "limit": self._most},
                retry_after_s=float(math.ceil(min(max(1.0, next_end_s), QUOTA_RETRY_S))),
            )

    def _check_id(self, known: Record | None, digest: bytes) -> None:
        if known is not None and known.digest != digest:
            raise NameTaken(f"the id {known.id.hex()} is that of another array; each array takes a fresh random id")

    def _check_name(self, owner: str, key: bytes, keep: Keep) -> None:
        if keep.name is None:
            return
        if keep.name in self._spaces[DECLARED].names:
            raise Forbidden(f"the name {keep.name!r} is that of a declared array, which no call can move; take another")
        holder = self._spaces[owner].names.get(keep.name)
        if holder is not None and holder.id != key and not keep.replace and self._is_live(holder):
            raise NameTaken(
                f"the name {keep.name!r} is that of array {holder.id.hex()}; replace=True moves it",
                details={"id": holder.id.hex()},
            )

    def add(self, owner: str, key: bytes, keep: Keep, info: dict[str, Any], header: bytes) -> Record:
        """An array that the engine has kept, without its label. A repeat finds the array that is there.

        The call either settles it or withdraws it.

        Raises:
            NameTaken, QuotaExceeded: what was free when the call began was taken meanwhile.
        """
        digest, now = digest_of(header), self._clock()
        record = self.peek(owner, key)
        if record is not None and record.life != self._engine.starts:
            self._drop(record, _LOST)
            record = None
        if record is not None:
            self._check_id(record, digest)
            record.used_at = now
        else:
            self._check_count(owner, 1)
            self._check_name(owner, key, keep)
            ttl_s = None if keep.pinned else keep.ttl_s or self._ttl_s
            record = Record(owner, key, info, None, ttl_s, keep.pinned, self._engine.starts, digest, now, now)
            self._enter(record)
        record.keepers += 1
        return record

    def settle(self, kept: Sequence[tuple[Record, Keep]]) -> None:
        """The call that kept these arrays succeeds: their labels move to them, all of them or none.

        Raises:
            NameTaken: a label was taken meanwhile.
            Expired: an array has gone meanwhile.
        """
        new = [(record, keep) for record, keep in kept if not record.is_settled]
        for record, keep in new:
            if self.peek(*record.key) is not record:
                reason = self._absent.reason(record.key) or "another one has its id now"
                raise Expired(f"array {record.id.hex()}: {reason}")
            self._check_name(record.owner, record.id, keep)
        for record, keep in new:
            record.is_settled = True
            if keep.name is not None:
                self._label(record, keep.name)

    def withdraw(self, kept: Iterable[Record]) -> None:
        """A call that kept these arrays failed in the end; one that another call has kept, too, stays.

        Whoever asks for this takes them back from the engine as well.
        """
        for record in kept:
            record.keepers -= 1
            if not record.is_settled and record.keepers == 0:
                self._forget(record, "the call that made it failed")

    def declare(self, declared: Iterable[ArrayInfo]) -> None:
        """The arrays of the operator's table, which the engine has read anew; those of an earlier table end."""
        now = self._clock()
        fresh = {info.name: info for info in declared if info.name is not None}
        space = self._spaces[DECLARED]
        for record in space.records.values():
            self._absent.note(record.key, _UNDECLARED)
        space.records.clear()
        space.names.clear()
        for name, info in fresh.items():
            fields = info.model_dump(include=ENGINE_FIELDS)
            record = Record(
                DECLARED, bytes.fromhex(info.id), fields, name, None, False, self._engine.starts, b"", now, now
            )
            space.records[record.id] = space.names[name] = record
            self._absent.forget(record.key)
        self._has_table = True

    def _enter(self, record: Record) -> None:
        self._spaces[record.owner].records[record.id] = record
        self._absent.forget(record.key)
        self._schedule(record)

    def _label(self, record: Record, name: str) -> None:
        names = self._spaces[record.owner].names
        old = names.get(name)
        if old is not None and old is not record:
            old.name = None
            self._shorten(old)
        names[name] = record
        record.name = name
        self._absent.forget_name(record.owner, name)

    def _shorten(self, record: Record) -> None:
        """Running calls have what they need; whoever holds the handle has a last chance to use it."""
        self._unpin(record)
        record.is_replaced = True
        record.ttl_s = min(record.ttl_s or REPLACED_TTL_S, REPLACED_TTL_S)
        record.used_at = self._clock()
        self._schedule(record)

    # --- ending ------------------------------------------------------------------------------------------------------

    def evict_replaced(self, *, besides: Sequence[Record] = ()) -> bool:
        """End the last chances of arrays whose labels moved, since room is needed; whether there were any.

        Arguments:
            besides: what the call that needs the room uses itself.
        """
        replaced = [record for record in self if record.is_replaced and record not in besides]
        for record in replaced:
            self._drop(record, "its name moved to another array, and its room was needed")
        return bool(replaced)

    def renew(self, record: Record, ttl_s: float) -> None:
        """Another lease, from now on; a pinned array is one with a lease again."""
        self._unpin(record)
        record.is_replaced = False
        record.ttl_s, record.used_at = ttl_s, self._clock()
        self._schedule(record)

    def pin(self, record: Record, copy: HostCopy) -> None:
        """No lease from now on, and a copy that outlives the engine.

        Raises:
            Expired, NotFound: the array has gone meanwhile, or another one has its id.
        """
        if self.find(*record.key) is not record:
            raise Expired(f"array {record.id.hex()}: it was deleted, and another one has its id now")
        self._unpin(record)
        record.is_replaced = False
        record.ttl_s, record.pinned, record.copy = None, True, copy
        self._pinned_bytes += copy.nbytes

    def _unpin(self, record: Record) -> None:
        """Let the host copy go."""
        if record.copy is not None:
            self._pinned_bytes -= record.copy.nbytes
            record.copy.release()
        record.pinned, record.copy = False, None

    def delete(self, owner: str, keys: Iterable[bytes]) -> int:
        """Forget arrays; unknown ones are skipped. Returns how many there were."""
        records = self._spaces[owner].records
        found = [records[key] for key in dict.fromkeys(keys) if key in records]
        there = [record.id for record in found if record.life == self._engine.starts]
        for record in found:
            self._forget(record, "it was deleted")
        if there:
            self._engine.delete(owner, there)
        return len(found)

    def sweep(self) -> float | None:
        """End the leases that are over. Returns seconds until the next one ends."""
        now = self._clock()
        while (key := self._leases.due(now)) is not None:
            record = self.peek(*key)
            if record is None or record.expires_at is None:
                continue
            if record.expires_at <= now:
                self._drop(record, record.over)
            else:
                self._schedule(record)  # it was used meanwhile
        return self._leases.next_s(now)

    def restored(self, record: Record, info: dict[str, Any]) -> None:
        """A pinned array is on the devices of a new engine."""
        record.info, record.life = info, self._engine.starts
        if self.peek(*record.key) is not record:  # it was deleted meanwhile
            self._engine.delete(record.owner, [record.id])

    def drop_lost(self) -> None:
        """Drop what the engine's death took, when its next life begins."""
        for record in self:
            self._is_live(record)

    def lose(self, record: Record, reason: str) -> None:
        """An array could not be brought back."""
        self._drop(record, reason)

    def _is_live(self, record: Record) -> bool:
        """Whether the array is there now; what is not is dropped."""
        if record.expires_at is not None and record.expires_at <= self._clock():
            self._drop(record, record.over)
        elif record.life != self._engine.starts and record.copy is None and not record.is_declared:
            self._drop(record, _LOST)
        else:
            return True
        return False

    def _drop(self, record: Record, reason: str) -> None:
        is_there = record.life == self._engine.starts
        if self._forget(record, reason, by_itself=True) and is_there:
            self._engine.delete(record.owner, [record.id])

    def _forget(self, record: Record, reason: str, *, by_itself: bool = False) -> bool:
        space = self._spaces[record.owner]
        if space.records.get(record.id) is not record:
            return False
        del space.records[record.id]
        if record.name is not None and space.names.get(record.name) is record:
            del space.names[record.name]
        self._absent.note(record.key, reason, name=record.name if by_itself else None)
        self._unpin(record)
        return True

    def _schedule(self, record: Record) -> None:
        self._leases.add(record, count=len(self))
