"""What a resident array is known by: its id, the epoch in which a server knows the id, and its label."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from pydantic import BeforeValidator

#: Bytes of an array's id, which its client draws at random; paths and JSON write it as twice as many hex digits.
ID_BYTES = 16
HEX_ID = re.compile(r"[0-9a-f]{32}")
#: The header field by which a server tells the epoch of the ids it knows; a request gives it back with such ids.
EPOCH_FIELD = "shardserve-epoch"
EPOCH = re.compile(r"[0-9a-f]{16}")
LABEL = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")


def _check_label(name: object) -> object:
    if isinstance(name, str) and (not LABEL.fullmatch(name) or HEX_ID.fullmatch(name)):
        raise ValueError(
            "an array's name is a letter and at most 63 letters, digits or any of . _ - behind it; 32 hex digits "
            "are an id"
        )
    return name


Label: TypeAlias = Annotated[str, BeforeValidator(_check_label)]
