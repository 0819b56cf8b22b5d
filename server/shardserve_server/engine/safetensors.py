"""One tensor of a safetensors file, as a read-only mapping.

The format is a length, a JSON table of dtypes, shapes and offsets, and raw bytes. It is read here rather than by the
package `safetensors`, whose NumPy side (0.8) has no float8 kinds, and which copies each part that is taken out of a
file. Every field is checked: bytes that do not match the shape or leave the file are refused.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from shardserve_proto.dtypes import DTYPES
from shardserve_proto.errors import InvalidRequest, nearest
from shardserve_proto.specs import check_shape

Array = np.ndarray[Any, np.dtype[Any]]
#: The format's own limit.
MOST_HEADER_BYTES = 100_000_000
#: The format's names of dtypes; what it has beyond these cannot be carried.
_DTYPES = {
    "BOOL": "bool", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
    "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "C64": "complex64",
}  # fmt: skip


def open_tensor(path: Path, name: str) -> Array:
    """A tensor by name; the mapping lives as long as the array.

    Raises:
        InvalidRequest: no such tensor, or a file that breaks the format.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        file_bytes = path.stat().st_size
        header_bytes = int.from_bytes(file.read(8), "little")
        if file_bytes < 8 or header_bytes > min(MOST_HEADER_BYTES, file_bytes - 8):
            raise InvalidRequest("the file is no safetensors file: its header does not fit into it")
        table = _table(file.read(header_bytes))
    begin = 8 + header_bytes
    if name not in table:
        raise InvalidRequest(f"the file has no tensor {name[:200]!r}{nearest(name[:200], list(table)[:1000])}")
    dtype, shape, start, end = _entry(table[name], name, data_bytes=file_bytes - begin)
    if start == end:
        return np.zeros(shape, DTYPES[dtype])
    raw = np.memmap(path, np.uint8, mode="r", offset=begin + start, shape=(end - start,))
    return np.asarray(raw).view(DTYPES[dtype]).reshape(shape)


def _table(text: bytes) -> dict[str, Any]:
    try:
        table = json.loads(text, object_pairs_hook=_distinct)
    except (ValueError, RecursionError):
        table = None
    if not isinstance(table, dict):
        raise InvalidRequest("the file is no safetensors file: its header is no JSON table")
    return {name: entry for name, entry in table.items() if name != "__metadata__"}


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)


def _entry(entry: Any, name: str, *, data_bytes: int) -> tuple[str, tuple[int, ...], int, int]:
    """The wire name of a tensor's dtype, its shape, and where its bytes begin and end."""
    match entry:
        case {"dtype": str() as dtype, "shape": [*shape], "data_offsets": [int() as start, int() as end]} if all(
            type(size) is int for size in shape
        ):
            pass
        case _:
            raise InvalidRequest(f"the entry of the tensor {name[:200]!r} is not of the format's form")
    if dtype not in _DTYPES:
        raise InvalidRequest(
            f"the tensor {name[:200]!r} has the dtype {dtype[:40]!r}; these are read: {', '.join(_DTYPES)}"
        )
    check_shape(shape, what=f"the tensor {name[:200]!r}")
    nbytes = math.prod(shape) * DTYPES[_DTYPES[dtype]].itemsize
    if not 0 <= start <= end <= data_bytes or end - start != nbytes:
        raise InvalidRequest(f"the bytes of the tensor {name[:200]!r} are not all in the file")
    return _DTYPES[dtype], tuple(shape), start, end
