"""Calls that put arrays on the devices, and move them there. No I/O here; the way down is in `_downloads.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from shardserve_proto.abstract import Aval
from shardserve_proto.errors import InvalidRequest, ProgramError, ShardingError
from shardserve_proto.messages import Keep
from shardserve_proto.programs import Program, validate
from shardserve_proto.specs import AUTO

from ._array import RemoteArray
from ._arrays import Leaf, as_array, aval_of, describe
from ._downloads import MOST
from ._options import Defaults
from ._requests import Outgoing, Setting, encode_call, remembered_header
from ._specs import is_spec, read_mesh, read_shardings
from ._tree import Prefix, Tree, flatten, unflatten

Rebuild = Callable[[Sequence[Any]], Any]


def put_calls(x: Any, spec: Any, labels: Mapping[str, Any], **options: Any) -> tuple[list[Outgoing], Rebuild]:
    """The calls of a put, and what puts their values together: one call, unless a tree has more arrays than one takes.

    Arguments:
        options: mesh and defaults, as `put_call` takes them.
    """
    given, tree = flatten(x)
    if len(given) <= MOST:
        return [put_call(x, spec, labels=labels, **options)], _only
    specs = [spec] * len(given) if spec is AUTO else Prefix("spec", is_spec, ShardingError).broadcast(spec, tree)
    names = _names(labels.get("name"), tree)
    calls = []
    for some in _batches(len(given)):
        mine = {**labels, "name": None if labels.get("name") is None else list(names[some])}
        calls.append(put_call(given[some], AUTO if spec is AUTO else specs[some], labels=mine, **options))
    return calls, _chained(tree)


def _batches(count: int) -> list[slice]:
    return [slice(start, start + MOST) for start in range(0, count, MOST)]


def _only(values: Sequence[Any]) -> Any:
    return values[0]


def _chained(tree: Tree) -> Rebuild:
    return lambda several: unflatten(tree, chain.from_iterable(several))


def put_call(x: Any, spec: Any, *, mesh: Any, labels: Mapping[str, Any], defaults: Defaults) -> Outgoing:
    """Arrays to the devices, a tree of them in one call.

    Arguments:
        x: NumPy arrays, what NumPy takes for one, or resident arrays, which are copied where they lie.
        spec: one for all, or a tree prefix.
        labels: name, ttl, pinned, replace.
    """
    given, tree = flatten(x)
    if not given:
        raise ProgramError(f"there is no array in {x!r} to put")
    leaves = tuple(_array(leaf, path) for leaf, path in zip(given, tree.paths("x"), strict=True))
    names = _names(labels.get("name"), tree)
    shardings = read_shardings(spec, tree, "spec")
    is_remote = all(isinstance(leaf, RemoteArray) for leaf in leaves)
    wanted = read_mesh(mesh) or shardings.mesh or (None if is_remote else defaults.mesh)
    keeps = tuple(_keep(name, labels) for name in names)
    setting = Setting(None, None, shardings.specs, wanted, "highest", defaults.timeout_s, keeps)
    header = remembered_header(("put", describe(leaves), setting), lambda: encode_call(_moved(leaves), leaves, setting))
    outgoing = Outgoing("put", header, leaves, _avals(leaves), _tree_of(tree), setting.timeout_s, defaults.progress)
    return replace(outgoing.keeping(len(leaves)), names=names, is_pinned=bool(labels.get("pinned")))


def _array(leaf: Any, path: str) -> Leaf:
    return leaf if isinstance(leaf, RemoteArray) else as_array(leaf, what=f"the array {path}")


def _names(name: Any, tree: Tree) -> tuple[str | None, ...]:
    if name is None:
        return (None,) * tree.leaves
    labels, given = flatten(name)
    if given != tree or not all(isinstance(label, str) for label in labels):
        raise InvalidRequest(f"name is one label for one array, or a tree of them like the arrays' own, not {name!r}")
    label, times = Counter(labels).most_common(1)[0]
    if times > 1:
        raise InvalidRequest(f"name gives {label!r} to several arrays; a label is that of one")
    return tuple(labels)


def _keep(name: str | None, labels: Mapping[str, Any]) -> Keep:
    ttl, pinned = labels.get("ttl"), bool(labels.get("pinned"))
    if pinned and ttl is not None:
        raise InvalidRequest("a pinned array has no lease; give ttl= or pinned=True, not both")
    fields = {
        "array": 0,
        "name": name,
        "ttl_s": check_ttl(ttl),
        "pinned": pinned,
        "replace": bool(labels.get("replace")),
    }
    return validate(Keep, fields)


def check_ttl(ttl: Any) -> float | None:
    """A lease in seconds.

    Raises:
        InvalidRequest: no positive number.
    """
    if ttl is None:
        return None
    if not isinstance(ttl, int | float) or isinstance(ttl, bool) or not 0 < ttl < float("inf"):
        raise InvalidRequest(f"ttl is a positive number of seconds, not {ttl!r}; pinned=True makes an array stay")
    return float(ttl)


def _moved(leaves: Sequence[Leaf]) -> Program:
    return Program(inputs=len(leaves), outputs=tuple(range(len(leaves))))


def _avals(leaves: Sequence[Leaf]) -> tuple[Aval, ...]:
    return tuple(map(aval_of, leaves))


def _tree_of(tree: Tree) -> Rebuild:
    return lambda values: unflatten(tree, iter(values))


def reshard_call(handle: RemoteArray, spec: Any, mesh: Any, defaults: Defaults) -> Outgoing:
    """The same values laid out otherwise, as another array."""
    outgoing = put_call(handle, spec, mesh=mesh, labels={}, defaults=defaults)
    return replace(outgoing, title="reshard")
