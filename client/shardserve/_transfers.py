"""Calls that move arrays and compute nothing: put, get, reshard, and the cutting of parts. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from shardserve_proto.abstract import Aval
from shardserve_proto.dtypes import name_of
from shardserve_proto.errors import DTypeError, InvalidRequest, ProgramError, ShapeError, ShardingError
from shardserve_proto.limits import LIMITS
from shardserve_proto.messages import Keep
from shardserve_proto.programs import Program, Step, validate
from shardserve_proto.specs import AUTO

from ._array import RemoteArray, RemoteSlice
from ._arrays import Array, Leaf, as_array, aval_of, describe
from ._options import Defaults
from ._requests import Outgoing, Setting, encode_call, remembered_header
from ._specs import is_spec, read_mesh, read_shardings
from ._tree import LEAF, Prefix, Tree, flatten, unflatten

Source = RemoteArray | RemoteSlice
Rebuild = Callable[[Sequence[Any]], Any]
#: Arrays of one call; one more segment has their ids.
MOST = LIMITS.segments - 1
_OUT_TREE = "out is an array for one array, or a tree of them like that of the arrays"


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


def cut_call(part: RemoteSlice, defaults: Defaults) -> Outgoing:
    """A part as an array of its own."""
    outgoing = _cut([part], _tree_of(Tree()), defaults, keeps=(Keep(array=0),))
    return replace(outgoing.keeping(1), title="slice")


def get_calls(sources: Sequence[Source], tree: Tree, out: Any, defaults: Defaults) -> tuple[list[Outgoing], Rebuild]:
    """The calls of a get, and what puts their values together."""
    if len(sources) <= MOST:
        return [get_call(sources, tree, out, defaults)], _only
    outs, given = (None, tree) if out is None else flatten(out)
    if given != tree:
        raise InvalidRequest(_OUT_TREE)
    calls = []
    for some in _batches(len(sources)):
        part = sources[some]
        flat = Tree(list, (), (LEAF,) * len(part))
        calls.append(get_call(part, flat, None if outs is None else outs[some], defaults))
    return calls, _chained(tree)


def get_call(sources: Sequence[Source], tree: Tree, out: Any, defaults: Defaults) -> Outgoing:
    """Values of arrays and parts of them.

    Arguments:
        out: None, or a tree of the caller's arrays like that of the sources.
    """
    rebuild = _tree_of(tree)
    if out is None:
        return _cut(sources, rebuild, defaults)
    arrays, given = flatten(out)
    if given != tree:
        raise InvalidRequest(_OUT_TREE)
    for index, (source, array) in enumerate(zip(sources, arrays, strict=True)):
        _check_target(source, array, "out" if tree.is_leaf else f"out, array {index},")
    targets = tuple(array if _is_plain(array) else None for array in arrays)
    return replace(_cut(sources, lambda values: rebuild(_filled(arrays, values)), defaults), targets=targets)


def _check_target(source: Source, array: Any, what: str) -> None:
    if not isinstance(array, np.ndarray):
        raise InvalidRequest(f"{what} is a NumPy array, not a {type(array).__name__}")
    if array.shape != source.shape:
        raise ShapeError(f"{what} has the shape {array.shape}, the array {source.shape}")
    if name_of(array.dtype) != name_of(source.dtype):
        raise DTypeError(f"{what} has the dtype {array.dtype}, the array {source.dtype}")
    if not array.flags.writeable:
        raise InvalidRequest(f"{what} is read-only")


def _is_plain(array: Array) -> bool:
    """Whether the wire's bytes can be received in place."""
    return array.flags.c_contiguous and array.dtype.isnative


def _filled(arrays: Sequence[Array], values: Sequence[Any]) -> Sequence[Array]:
    for array, value in zip(arrays, values, strict=True):
        if not _is_plain(array):
            array[...] = value
    return arrays


def _cut(
    sources: Sequence[Source], rebuild: Rebuild, defaults: Defaults, keeps: tuple[Keep, ...] | None = None
) -> Outgoing:
    leaves = tuple(source.base if isinstance(source, RemoteSlice) else source for source in sources)
    parts = tuple(source.parts if isinstance(source, RemoteSlice) else () for source in sources)
    # On the mesh where the arrays lie, whatever the client's own is.
    setting = Setting(None, None, None, None, "highest", defaults.timeout_s, keeps)
    key = ("cut", describe(leaves), parts, setting)
    header = remembered_header(key, lambda: encode_call(_cutting(sources), leaves, setting))
    expected = tuple(Aval(source.shape, source.dtype) for source in sources)
    return Outgoing("get", header, leaves, expected, rebuild, setting.timeout_s, defaults.progress)


def _cutting(sources: Sequence[Source]) -> Program:
    """The program that cuts the parts out; without parts it has no steps."""
    steps: list[Step] = []
    outputs: list[int] = []
    for number, source in enumerate(sources):
        value = number
        for step in _steps(source):
            steps.append(validate(Step, {**step, "operands": (value,)}))
            value = len(sources) + len(steps) - 1
        outputs.append(value)
    return validate(Program, {"inputs": len(sources), "steps": tuple(steps), "outputs": tuple(outputs)})


def _steps(source: Source) -> list[dict[str, Any]]:
    if isinstance(source, RemoteArray):
        return []
    steps: list[dict[str, Any]] = []
    shape = source.base.shape
    for part in source.parts:
        if part.sizes != shape or any(step != 1 for step in part.steps):
            steps.append({"kernel": "slice", "params": part.params})
        if part.sizes != part.shape:
            steps.append({"kernel": "reshape", "params": {"shape": part.shape}})
        shape = part.shape
    return steps
