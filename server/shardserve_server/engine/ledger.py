"""The ledger of device memory: every byte that is planned with has an owner and a purpose, before it is allocated."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Literal

from shardserve_proto.errors import OutOfMemory, TooLarge

Purpose = Literal["array", "call"]
#: So many of the largest holders are told to a caller who finds no room.
TOLD = 5
_RETRY_AFTER_S = 1.0


@dataclass(eq=False)
class Reservation:
    """Bytes that are set aside; they are free again with `release`, which may be repeated.

    Attributes:
        key: of a resident array, in its owner's space; empty for a call.
        made_at: on the monotonic clock.
    """

    ledger: Ledger
    owner: str
    purpose: Purpose
    nbytes: int
    key: bytes = b""
    made_at: float = 0.0

    def release(self) -> None:
        """Give the bytes back; safe in a finalizer, which may run inside any other method of the ledger."""
        self.ledger._given_back.append(self)


class Ledger:
    """Holds the sum of all reservations under a limit.

    Arguments:
        limit_bytes: what arrays and calls may take on all devices together.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._held: set[Reservation] = set()
        self._held_bytes: dict[Purpose, int] = {"array": 0, "call": 0}
        self._given_back: deque[Reservation] = deque()
        self._lock = threading.Lock()

    def reserve(self, nbytes: int, *, owner: str) -> Reservation:
        """Set bytes aside for a call.

        Raises:
            TooLarge: more than the limit.
            OutOfMemory: no room now; `details` has what is needed, what is free, the largest holders, and whether room
                comes by itself, when running calls end.
        """
        if nbytes > self.limit_bytes:
            raise TooLarge(
                f"the call needs {nbytes} bytes on the devices, which hold {self.limit_bytes}; split it",
                details={"needed_bytes": nbytes, "limit_bytes": self.limit_bytes},
            )
        with self._lock:
            self._settle()
            if nbytes > max(0, self._free_bytes()):
                raise self._no_room(nbytes)
            return self._hold(Reservation(self, owner, "call", nbytes, made_at=time.monotonic()))

    def take_over(self, call: Reservation, nbytes: int, *, key: bytes) -> Reservation:
        """Turn a part of a call's reservation into a resident array's; what is beyond it is taken on top.

        The bytes exist already, so this cannot fail: an array that turned out larger than planned is counted too.
        """
        with self._lock:
            self._settle()
            part = min(nbytes, call.nbytes) if call in self._held else 0
            call.nbytes -= part
            self._held_bytes["call"] -= part
            return self._hold(Reservation(self, call.owner, "array", nbytes, key, time.monotonic()))

    def holdings(self) -> list[Reservation]:
        """All reservations, largest first."""
        with self._lock:
            self._settle()
            return sorted(self._held, key=lambda held: -held.nbytes)

    def held_bytes(self, purpose: Purpose) -> int:
        with self._lock:
            self._settle()
            return self._held_bytes[purpose]

    def _hold(self, reservation: Reservation) -> Reservation:
        self._held.add(reservation)
        self._held_bytes[reservation.purpose] += reservation.nbytes
        return reservation

    def _settle(self) -> None:
        while self._given_back:
            reservation = self._given_back.popleft()
            if reservation in self._held:
                self._held.discard(reservation)
                self._held_bytes[reservation.purpose] -= reservation.nbytes

    def _free_bytes(self) -> int:
        return self.limit_bytes - sum(self._held_bytes.values())

    def _no_room(self, nbytes: int) -> OutOfMemory:
        holders = [describe(held) for held in sorted(self._held, key=lambda held: -held.nbytes)[:TOLD]]
        is_transient = nbytes <= self.limit_bytes - self._held_bytes["array"]
        return OutOfMemory(
            f"the call needs {nbytes} bytes on the devices, {max(0, self._free_bytes())} of {self.limit_bytes} are "
            f"free; resident arrays take {self._held_bytes['array']}: delete some, or let their leases end",
            details={
                "needed_bytes": nbytes,
                "free_bytes": max(0, self._free_bytes()),
                "is_transient": is_transient,  # running calls end by themselves, resident arrays do not
                "holders": holders,
            },
            retry_after_s=_RETRY_AFTER_S if is_transient else 10 * _RETRY_AFTER_S,
        )


def describe(held: Reservation) -> dict[str, object]:
    """A reservation as the link carries it; the front decides who may see the owner."""
    return {
        "what": held.purpose,
        "device_bytes": held.nbytes,
        "age_s": round(time.monotonic() - held.made_at, 3),
        "owner": held.owner,
        "id": held.key.hex() or None,
    }
