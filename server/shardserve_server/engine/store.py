"""Resident arrays: on the devices until they are deleted, and unchanged as long as they are there."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from shardserve_proto.dtypes import name_of
from shardserve_proto.errors import Expired, NameTaken
from shardserve_proto.specs import P, spec_to_wire

from ..link.messages import DECLARED
from .garbage import let_go
from .ledger import Ledger, Reservation
from .placement import Where
from .transfer import host_shards


@dataclass(frozen=True, eq=False)
class Stored:
    """A resident array. Whoever holds this object keeps the array, deleted or not.

    Attributes:
        base: the array of which this is another name on the devices, and which pays for the memory of both.
    """

    array: jax.Array
    where: Where
    device_bytes: int
    base: Stored | None = None

    def info(self) -> dict[str, Any]:
        """The fields of an `ArrayInfo` that the engine knows."""
        placed = self.where.placed
        return {
            "dtype": name_of(placed.aval.strong_dtype),
            "shape": placed.aval.shape,
            "spec": spec_to_wire(placed.spec or P()),
            "mesh": self.where.mesh or (),
            "shard_shape": self.array.sharding.shard_shape(self.array.shape),
            "nbytes": placed.nbytes,
            "device_bytes": self.device_bytes,
            "devices": device_ids(self.array.sharding),
        }


def device_ids(sharding: jax.sharding.Sharding) -> tuple[int, ...]:
    """The devices that hold an array, in the order of its mesh."""
    if isinstance(sharding, jax.sharding.NamedSharding):
        return tuple(int(number) for number in sharding.mesh.device_ids.flat)
    alone: Any = sharding.device_set
    return tuple(sorted(device.id for device in alone))


def device_bytes(array: jax.Array) -> int:
    """What an array takes on all its devices, replicas included."""
    shard: int = array.dtype.itemsize
    for size in array.sharding.shard_shape(array.shape):
        shard *= size
    return shard * len(array.sharding.device_set)


def _are_equal(first: Stored, second: Stored) -> bool:
    """Whether two arrays are the same bit for bit; equal calls put them in the same place."""
    if first.where != second.where:
        return False
    pairs = zip(host_shards(first.array), host_shards(second.array), strict=True)
    return all(_bytes(one) == _bytes(other) for (_, one), (_, other) in pairs)


def _bytes(data: np.ndarray[Any, Any]) -> memoryview:
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8).data


class Store:
    """The resident arrays of one engine, each under its owner and id; safe to use from many threads."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._arrays: dict[tuple[str, bytes], Stored] = {}
        self._keepers: dict[tuple[str, bytes], int] = {}  # calls that kept each: a repeat keeps it once more
        self._lock = threading.Lock()

    def get(self, owner: str, key: bytes) -> Stored:
        """An array of an owner, or of the operator's table.

        Raises:
            Expired: there is none any more.
        """
        stored = self._arrays.get((owner, key)) or self._arrays.get((DECLARED, key))
        if stored is None:
            raise Expired(f"the array {key.hex()} is not on the devices any more; put it again")
        return stored

    def keep(
        self,
        owner: str,
        key: bytes,
        array: jax.Array,
        where: Where,
        paid_by: Reservation,
        *,
        base: Stored | None = None,
    ) -> tuple[Stored, bool]:
        """Keep an array, for which the memory that its call reserved goes over to it; and whether it is a new one.

        Of two calls that keep the same array under the same id the first one wins: a repeat is harmless.

        Arguments:
            base: the resident array that this one is, too.

        Raises:
            NameTaken: the id is that of another array, and arrays never change.
        """
        stored = Stored(array, where, device_bytes(array), base)
        with self._lock:
            known = self._arrays.get((owner, key))
            if known is None:
                held = self._ledger.take_over(paid_by, 0 if base else stored.device_bytes, key=key)
                weakref.finalize(stored, held.release).atexit = False  # running calls may keep it beyond its deletion
                self._arrays[(owner, key)] = stored
                self._keepers[(owner, key)] = 1
                return stored, True
        if not _are_equal(known, stored):
            raise NameTaken(f"the id {key.hex()} is that of another array; each array takes a fresh random id")
        with self._lock:
            if self._arrays.get((owner, key)) is known:
                self._keepers[(owner, key)] += 1
        return known, False

    def undo(self, owner: str, keys: Sequence[bytes]) -> None:
        """One call that kept these arrays takes that back; an array goes with the last call that kept it."""
        with self._lock:
            for key in keys:
                if (owner, key) in self._keepers:
                    self._keepers[(owner, key)] -= 1
            last = [key for key in keys if self._keepers.get((owner, key)) == 0]
        self.delete(owner, last)

    def delete(self, owner: str, keys: Sequence[bytes]) -> None:
        """Forget arrays; calls that use them keep them to their end."""
        with self._lock:
            gone = [self._arrays.pop((owner, key), None) for key in keys]
            for key in keys:
                self._keepers.pop((owner, key), None)
        largest = max((stored.device_bytes for stored in gone if stored is not None), default=0)
        gone.clear()
        let_go(largest)

    def __len__(self) -> int:
        return len(self._arrays)
