"""What is said of arrays that are not there: why they went, as long as it is remembered, or that they never were."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Set

from cachetools import LRUCache

from shardserve_proto.errors import Expired, NotFound, nearest
from shardserve_proto.handles import LABEL

from ..link.messages import DECLARED
from .epoch import new_epoch
from .record import Key

#: Ids of arrays that are gone, with the reason; and names of those that went by themselves.
GONE_REMEMBERED = 100_000
GONE_NAMES_REMEMBERED = 10_000
#: So many names are compared for a "did you mean".
COMPARED_NAMES = 200
_LOST_WITH_FRONT = (
    "it was lost when the server was started anew, or is another server's; put it again, or attach to it by its name"
)


class Absent:
    """The ids and names that have no array, or have none any more.

    Attributes:
        epoch: of the ids that are known here.
    """

    def __init__(self) -> None:
        self.epoch = new_epoch()
        self._ids: LRUCache[Key, str] = LRUCache(GONE_REMEMBERED)
        self._names: LRUCache[tuple[str, str], str] = LRUCache(GONE_NAMES_REMEMBERED)

    def note(self, key: Key, reason: str, *, name: str | None = None) -> None:
        """An array is gone.

        Arguments:
            name: its label, if that is to say the reason, too.
        """
        self._ids[key] = reason
        if name is not None:
            self._names[key[0], name] = reason

    def forget(self, key: Key) -> None:
        """An id has an array, again."""
        self._ids.pop(key, None)

    def forget_name(self, owner: str, name: str) -> None:
        """A label is on an array, again."""
        self._names.pop((owner, name), None)

    def reason(self, key: Key) -> str | None:
        """Why an array is gone, as long as it is remembered."""
        reason: str | None = self._ids.get(key)
        return reason

    def by_id(self, owner: str, key: bytes, epochs: Set[str]) -> Expired | NotFound:
        """The error for an id. What the client gives decides, and nothing that another owner has.

        Arguments:
            epochs: those of the ids that the client gives.
        """
        reason = self.reason((owner, key)) or self.reason((DECLARED, key))
        if reason is None and epochs <= {self.epoch}:
            return NotFound(f"there is no array {key.hex()}")
        return Expired(f"array {key.hex()}: {reason or _LOST_WITH_FRONT}")

    def by_name(self, owner: str, name: str, known: Iterable[str]) -> Expired | NotFound:
        """The error for a label.

        Arguments:
            known: labels that the owner might have meant.
        """
        reason = self._names.get((owner, name))
        if reason is not None:
            return Expired(f"array {name!r}: {reason}")
        hint = nearest(name, itertools.islice(known, COMPARED_NAMES)) if LABEL.fullmatch(name) else ""
        return NotFound(f"no array has the name {name[:64]!r}{hint}")
