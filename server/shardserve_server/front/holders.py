"""Who holds device memory, as one owner may see it: of another owner's arrays neither id nor name goes out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from shardserve_proto.errors import OutOfMemory
from shardserve_proto.messages import Holder

from ..link.messages import DECLARED
from .arrays import Arrays


def holders_for(owner: str, told: Iterable[Mapping[str, Any]], arrays: Arrays) -> tuple[Holder, ...]:
    """What the engine's ledger told, for the eyes of one owner."""
    return tuple(_holder(owner, entry, arrays) for entry in told)


def _holder(owner: str, entry: Mapping[str, Any], arrays: Arrays) -> Holder:
    holder, key = entry["owner"], entry.get("id")
    is_shown = holder in (owner, DECLARED)
    record = arrays.peek(holder, bytes.fromhex(key)) if is_shown and key else None
    return Holder(
        what=entry["what"],
        device_bytes=entry["device_bytes"],
        age_s=entry["age_s"],
        id=key if is_shown else None,
        name=None if record is None else record.name,
        is_own=holder == owner,
    )


@contextmanager
def told_to(owner: str, arrays: Arrays) -> Iterator[None]:
    """Errors of the engine that pass here name holders as this owner may see them."""
    try:
        yield
    except OutOfMemory as error:
        holders = error.details.get("holders", ())
        if holders:
            error.details["holders"] = [holder.model_dump() for holder in holders_for(owner, holders, arrays)]
        raise
