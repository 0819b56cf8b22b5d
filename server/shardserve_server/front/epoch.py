"""The epoch of a front: one life of the process that knows which ids there are.

A front that was killed takes its books with it, and the next one cannot tell an id that was lost from one that never
was. The client can: it was told the epoch with the id, and gives it back. So the answer depends on what the client
gives alone, and says nothing of other owners' arrays.
"""

from __future__ import annotations

import secrets

from starlette.types import Scope

from shardserve_proto.errors import InvalidRequest
from shardserve_proto.handles import EPOCH, EPOCH_FIELD

NO_EPOCHS: frozenset[str] = frozenset()
_FIELD = EPOCH_FIELD.encode()


def new_epoch() -> str:
    """A name that no other epoch has."""
    return secrets.token_hex(8)


def epochs_of(scope: Scope) -> frozenset[str]:
    """The epochs of the ids of a request, as far as it tells.

    Raises:
        InvalidRequest: the field is not a list of epochs.
    """
    given = b",".join(value for name, value in scope["headers"] if name == _FIELD)
    if not given:
        return NO_EPOCHS
    epochs = frozenset(entry.strip() for entry in given.decode("latin-1").split(",")) - {""}
    if not all(map(EPOCH.fullmatch, epochs)):
        raise InvalidRequest(
            f"{EPOCH_FIELD} is what the server's answers have, 16 hex digits (several with commas between them), not "
            f"{given[:64].decode('latin-1')!r}"
        )
    return epochs
