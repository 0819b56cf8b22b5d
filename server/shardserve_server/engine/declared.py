"""Declared arrays: an operator's table of names and files, read straight to the devices at every start.

The table is TOML; every file lies in a configured root:

    [catalogue]
    file = "vectors.npy"
    spec = ["devices"]          # absent: the server chooses; [] replicates; "" leaves a dimension whole

    [weights]
    file = "model.safetensors"
    tensor = "layer.0.w"
    mesh = "grid"               # or { x = 4, y = 2 }

A file is mapped, and each device copies its own part of the mapping, so that nothing is ever whole on the heap. An id
is made of the name and of what identifies the file: the same array has the same handle after an engine's death, and
another file another one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from pydantic import Field

from shardserve_proto.abstract import Aval
from shardserve_proto.dtypes import is_supported, name_of, to_wire_order
from shardserve_proto.errors import InvalidRequest, ShardserveError
from shardserve_proto.handles import HEX_ID, ID_BYTES, LABEL
from shardserve_proto.messages import ArrayInfo
from shardserve_proto.programs import WireModel, validate
from shardserve_proto.specs import AUTO, Axes, P, Spec, check_spec

from ..link.messages import DECLARED
from .ledger import Ledger
from .mesh import Meshes
from .placement import Placed, Where, is_worth_spreading, open_spec, place
from .safetensors import open_tensor
from .store import Store
from .transfer import padded_block, put_copy

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, np.dtype[Any]]
MOST_TABLE_BYTES = 2**20


class Declaration(WireModel):
    """One entry of the table.

    Attributes:
        file: in the root; `.npy`, or `.safetensors` with the name of a tensor.
        spec, mesh: as in a call; a mesh axis, several, or "" for each dimension.
    """

    file: str = Field(min_length=1, max_length=4096)
    tensor: str | None = None
    spec: str | tuple[str | tuple[str, ...], ...] | None = None
    mesh: str | dict[str, int] | None = None


@dataclass(frozen=True)
class Library:
    """What the declared arrays of one engine are put into."""

    meshes: Meshes
    store: Store
    ledger: Ledger


def load_declared(
    arrays_file: str | None, arrays_root: str | None, library: Library, *, skips_faults: bool = False
) -> tuple[ArrayInfo, ...]:
    """Read all declared arrays to their devices.

    Arguments:
        skips_faults: log what is wrong, and go on without it.

    Raises:
        InvalidRequest: naming the setting and the entry of the table that is wrong.
    """
    if arrays_file is None:
        return ()
    found: list[ArrayInfo] = []
    with _skipping(skips_faults):
        with _named("arrays_root"):
            root = _root(arrays_root)
        with _named("arrays_file"):
            table = read_table(Path(arrays_file))
        for name, entry in table.items():
            with _skipping(skips_faults):
                found.append(_load(name, entry, root, library))
    return tuple(found)


@contextmanager
def _skipping(skips_faults: bool) -> Iterator[None]:
    try:
        yield
    except ShardserveError as error:
        if not skips_faults:
            raise
        logger.error("declared array left out: %s", error.message)


def read_table(path: Path) -> dict[str, Declaration]:
    """The entries of a table by name.

    Raises:
        InvalidRequest: it cannot be read, or an entry is wrong.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MOST_TABLE_BYTES + 1).decode()
        entries = tomllib.loads(text)
    except (OSError, ValueError) as error:  # TOML errors and those of UTF-8 are ValueErrors
        reason = f": {error}" if isinstance(error, tomllib.TOMLDecodeError) else ""
        raise InvalidRequest(f"the table cannot be read ({type(error).__name__}{reason})") from None
    if len(text) > MOST_TABLE_BYTES:
        raise InvalidRequest(f"the table has more than {MOST_TABLE_BYTES} bytes")
    return {name: _declaration(name, entry) for name, entry in entries.items()}


def _declaration(name: str, entry: object) -> Declaration:
    with _in_entry(name):
        if not LABEL.fullmatch(name) or HEX_ID.fullmatch(name):
            raise InvalidRequest("a name is a letter and at most 63 letters, digits or any of . _ - behind it")
        if not isinstance(entry, dict):
            raise InvalidRequest('an entry is a table, such as [catalogue] with file = "vectors.npy"')
        return validate(Declaration, {key: _tuples(value) for key, value in entry.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _load(name: str, entry: Declaration, root: Path, library: Library) -> ArrayInfo:
    with _named("arrays_file"), _in_entry(name):
        path = _inside(root, entry.file)
        array = _open(path, entry)
        if not is_supported(array.dtype):
            raise InvalidRequest("the file holds objects, texts, records or other things that are no numbers")
        where = _where(entry, array, library.meshes)
        key = _key(name, entry, path, array)
        paid_by = library.ledger.reserve(_needed(where, library.meshes), owner=DECLARED)
        stored, _ = library.store.keep(DECLARED, key, read_shards(array, where, library.meshes), where, paid_by)
        paid_by.release()
        return ArrayInfo(**stored.info(), id=key.hex(), name=name, is_declared=True)


def _open(path: Path, entry: Declaration) -> Array:
    """The array of a file, as a read-only mapping."""
    try:
        if path.suffix == ".safetensors":
            if entry.tensor is None:
                raise InvalidRequest('a safetensors file holds several arrays; tensor = "…" names one')
            return open_tensor(path, entry.tensor)
        if path.suffix != ".npy" or entry.tensor is not None:
            raise InvalidRequest("the file is a .npy file, or a .safetensors file with tensor")
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        if isinstance(error, ShardserveError):
            raise
        raise InvalidRequest(f"the file cannot be read ({type(error).__name__})") from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise InvalidRequest("the file is an archive of several arrays, not a .npy file")
    return array


def _where(entry: Declaration, array: Array, meshes: Meshes) -> Where:
    mesh = meshes.shape(tuple(entry.mesh.items()) if isinstance(entry.mesh, dict) else entry.mesh)
    aval = Aval(array.shape, array.dtype.newbyteorder("="))
    spec = _spec(entry.spec)
    if isinstance(spec, P):
        check_spec(spec, ndim=aval.ndim, mesh=mesh, what="the array")
        return Where(place(aval, spec, mesh), mesh)
    if is_worth_spreading([aval], mesh):
        return Where(place(aval, open_spec(aval, Axes(), mesh), mesh), mesh)
    return Where(place(aval, P(), ()), None)


def _spec(given: str | Sequence[str | tuple[str, ...]] | None) -> Spec:
    if given is None or given == "auto":
        return AUTO
    if isinstance(given, str):
        raise InvalidRequest('spec is a list, or "auto"')
    return P(*(entry or None for entry in given))


def _needed(where: Where, meshes: Meshes) -> int:
    sharding = meshes.sharding(where)
    shard: int = where.placed.aval.strong_dtype.itemsize
    for size in sharding.shard_shape(where.placed.padded_shape):
        shard *= size
    return shard * len(sharding.device_set)


def read_shards(array: Array, where: Where, meshes: Meshes) -> jax.Array:
    """Copy a mapped array to its devices, one after the other.

    A copy, because on CPU JAX would share the mapping: whoever writes the file then would change the array.
    """
    placed: Placed = where.placed
    sharding = meshes.sharding(where)
    shards = []
    for device, index in sharding.addressable_devices_indices_map(placed.padded_shape).items():
        block = to_wire_order(padded_block(array, index or (), placed.padded_shape))
        shards.append(put_copy(block, device))
        shards[-1].block_until_ready()  # before the next part is read, so that one part at most waits on the heap
    return jax.make_array_from_single_device_arrays(placed.padded_shape, sharding, shards)


def _key(name: str, entry: Declaration, path: Path, array: Array) -> bytes:
    stat = path.stat()
    identity = [name, entry.file, entry.tensor, stat.st_size, stat.st_mtime_ns, name_of(array.dtype), array.shape]
    return hashlib.blake2b(json.dumps(identity).encode(), digest_size=ID_BYTES).digest()


def _root(given: str | None) -> Path:
    if given is None:
        raise InvalidRequest("declared arrays need the folder that their files are in")
    try:
        root = Path(given).resolve(strict=True)
    except (OSError, RuntimeError):
        raise InvalidRequest("the folder is not there") from None
    if not root.is_dir():
        raise InvalidRequest("it is no folder")
    return root


def _inside(root: Path, file: str) -> Path:
    """The file, symbolic links followed, which must end in the root."""
    try:
        path = (root / file).resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        raise InvalidRequest(f"the file {file[:200]!r} is not in arrays_root") from None
    if not path.is_relative_to(root) or not path.is_file():
        raise InvalidRequest(f"the file {file[:200]!r} is not a file in arrays_root; links may not lead out of it")
    return path


@contextmanager
def _named(setting: str) -> Iterator[None]:
    """Whatever is wrong inside names the setting."""
    try:
        yield
    except ShardserveError as error:
        raise InvalidRequest(f"setting {setting} (SHARDSERVE_{setting.upper()}): {error.message}") from None


@contextmanager
def _in_entry(name: str) -> Iterator[None]:
    """Whatever is wrong inside names the entry of the table."""
    try:
        yield
    except ShardserveError as error:
        raise InvalidRequest(f"[{name[:64]}]: {error.message}", details=error.details) from None
