"""A registry of arrays with a clock and devices of the test's own."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardserve_proto.messages import Keep
from shardserve_server.front.arrays import Arrays
from shardserve_server.front.record import Record

from .keeping import info_of

INFO = info_of(np.zeros(4))


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Devices:
    """What the registry has told the engine to forget."""

    starts: int = 1
    held: set[tuple[str, bytes]] = field(default_factory=set)
    freed_twice: int = 0
    messages: int = 0

    def check_ready(self) -> None:
        pass

    def delete(self, owner: str, ids: Sequence[bytes], *, undo: bool = False) -> None:  # noqa: ARG002
        self.messages += 1
        for key in ids:
            self.freed_twice += (owner, key) not in self.held
            self.held.discard((owner, key))


@dataclass
class Registry:
    """A registry with a clock and devices of the test's own."""

    clock: Clock
    devices: Devices
    arrays: Arrays

    def put(self, owner: str = "a", key: bytes | None = None, **keep: Any) -> Record:
        key = key or secrets.token_bytes(16)
        wanted = Keep(array=0, **keep)
        self.arrays.check_new(owner, [(key, wanted)], b"header")
        self.devices.held.add((owner, key))
        record = self.arrays.add(owner, key, wanted, dict(INFO), b"header")
        self.arrays.settle([(record, wanted)])
        return record


def make(*, most: int = 10_000, ttl_s: float = 60.0) -> Registry:
    clock, devices = Clock(), Devices()
    return Registry(clock, devices, Arrays(devices, ttl_s=ttl_s, most=most, clock=clock))
