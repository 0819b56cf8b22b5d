"""One resident array as the front knows it, all that one owner has, and what the registry asks of an engine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from shardserve_proto.messages import ArrayInfo

from ..link.messages import DECLARED
from .pins import HostCopy

Key = tuple[str, bytes]


class KeepsArrays(Protocol):
    """The part of an engine that the registry uses.

    Attributes:
        starts: how often it was started; an array belongs to one life of it.
    """

    starts: int

    def check_ready(self) -> object: ...

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
        keepers: calls that wanted it kept, repeats included.
        is_settled: one of them has succeeded.
        is_replaced: its label has moved to another array.
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
    keepers: int = 0
    is_settled: bool = False
    is_replaced: bool = False

    @property
    def key(self) -> Key:
        return self.owner, self.id

    @property
    def is_declared(self) -> bool:
        return self.owner == DECLARED

    @property
    def expires_at(self) -> float | None:
        ttl_s = self.ttl_s  # read once: a listing is written in a thread of its own
        return None if ttl_s is None else self.used_at + ttl_s

    @property
    def over(self) -> str:
        """Why it is gone, when its lease is."""
        return f"its lease of {self.ttl_s:g} s is over; each use renews it, ttl= makes it longer, pinned=True ends it"

    def describe(self, now: float) -> ArrayInfo:
        """The array as its owner sees it."""
        expires_at, copy = self.expires_at, self.copy
        return ArrayInfo(
            **self.info,
            id=self.id.hex(),
            name=self.name,
            age_s=round(now - self.made_at, 3),
            ttl_s=self.ttl_s,
            expires_in_s=None if expires_at is None else round(expires_at - now, 3),
            pinned=self.pinned,
            host_bytes=0 if copy is None else copy.nbytes,
            is_declared=self.is_declared,
        )


def digest_of(header: bytes) -> bytes:
    """What the headers of equal calls have in common, in a few bytes."""
    return hashlib.blake2b(header, digest_size=16).digest()


@dataclass
class Space:
    """What one owner has: arrays by id, and those with a label by that."""

    records: dict[bytes, Record] = field(default_factory=dict)
    names: dict[str, Record] = field(default_factory=dict)
