"""Calls that bring values down, and that cut parts out of arrays. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shardserve_proto.abstract import Aval
from shardserve_proto.dtypes import name_of
from shardserve_proto.errors import DTypeError, InvalidRequest, ShapeError
from shardserve_proto.limits import LIMITS
from shardserve_proto.messages import Keep
from shardserve_proto.programs import Program, Step, validate
from shardserve_proto.specs import WireSpec, spec_to_wire

from ._array import RemoteArray, RemoteSlice
from ._arrays import Array, describe
from ._options import Defaults
from ._requests import Outgoing, Setting, encode_call, remembered_header
from ._tree import Tree, flatten, unflatten

Source = RemoteArray | RemoteSlice
#: Arrays of one call; one more segment has their ids.
MOST = LIMITS.segments - 1
#: A larger part comes down split as its array is; for a smaller one that is not worth a message between devices.
SPLIT_BYTES = 64 * 1024


def get_calls(
    sources: Sequence[Source], tree: Tree, out: Any, defaults: Defaults
) -> tuple[list[Outgoing], Callable[[Sequence[Any]], Any]]:
    """The calls of a get, and what puts their values together.

    Whole arrays come by one call, which computes nothing, and parts by one for each mesh that they lie on; a tree that
    has more of them than a call takes comes by several.

    Arguments:
        out: None, or a tree of the caller's arrays like that of the sources.
    """
    targets = None if out is None else _targets(sources, tree, out)
    groups: dict[Any, list[int]] = {}
    for number, source in enumerate(sources):
        place = tuple(source.base.mesh.items()) if isinstance(source, RemoteSlice) else None
        groups.setdefault(place, []).append(number)
    batches = [some[start : start + MOST] for some in groups.values() for start in range(0, len(some), MOST)]
    calls = [
        _get([sources[n] for n in some], None if targets is None else [targets[n] for n in some], defaults)
        for some in batches
    ]

    def rebuild(answers: Sequence[Any]) -> Any:
        found = {
            number: value
            for some, values in zip(batches, answers, strict=True)
            for number, value in zip(some, values, strict=True)
        }
        return unflatten(tree, iter([found[number] for number in range(len(sources))]))

    return calls, rebuild


def _targets(sources: Sequence[Source], tree: Tree, out: Any) -> list[Array]:
    targets, given = flatten(out)
    if given != tree:
        raise InvalidRequest("out is an array for one array, or a tree of them like that of the arrays")
    for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
        _check_target(source, target, "out" if tree.is_leaf else f"out, array {index},")
    return targets


def _check_target(source: Source, target: Any, what: str) -> None:
    if not isinstance(target, np.ndarray):
        raise InvalidRequest(f"{what} is a NumPy array, not a {type(target).__name__}")
    if target.shape != source.shape:
        raise ShapeError(f"{what} has the shape {target.shape}, the array {source.shape}")
    if name_of(target.dtype) != name_of(source.dtype):
        raise DTypeError(f"{what} has the dtype {target.dtype}, the array {source.dtype}")
    if not target.flags.writeable:
        raise InvalidRequest(f"{what} is read-only")


def _get(sources: Sequence[Source], targets: Sequence[Array] | None, defaults: Defaults) -> Outgoing:
    if targets is None:
        return _cut(sources, list, defaults)
    in_place = tuple(target if _is_plain(target) else None for target in targets)
    return replace(_cut(sources, lambda values: _filled(targets, values), defaults), targets=in_place)


def _is_plain(array: Array) -> bool:
    """Whether the wire's bytes can be received in place."""
    return array.flags.c_contiguous and array.dtype.isnative


def _filled(targets: Sequence[Array], values: Sequence[Any]) -> Sequence[Array]:
    for target, value in zip(targets, values, strict=True):
        if not _is_plain(target):
            target[...] = value
    return targets


def cut_call(part: RemoteSlice, defaults: Defaults) -> Outgoing:
    """A part as an array of its own."""
    outgoing = _cut([part], lambda values: values[0], defaults, keeps=(Keep(array=0),))
    return replace(outgoing.keeping(1), title="slice")


def _cut(
    sources: Sequence[Source],
    rebuild: Callable[[Sequence[Any]], Any],
    defaults: Defaults,
    keeps: tuple[Keep, ...] | None = None,
) -> Outgoing:
    leaves = tuple(source.base if isinstance(source, RemoteSlice) else source for source in sources)
    parts = tuple(source.parts if isinstance(source, RemoteSlice) else () for source in sources)
    # On the mesh where the arrays lie, whatever the client's own is.
    setting = Setting(None, None, _out_specs(sources, keeps), None, "highest", defaults.timeout_s, keeps)
    key = ("cut", describe(leaves), parts, setting)
    header = remembered_header(key, lambda: encode_call(_program(sources), leaves, setting))
    expected = tuple(Aval(source.shape, source.dtype) for source in sources)
    return Outgoing("get", header, leaves, expected, rebuild, setting.timeout_s, defaults.progress)


def _out_specs(sources: Sequence[Source], keeps: Sequence[Keep] | None) -> tuple[WireSpec, ...] | None:
    """Where parts come to lie; left to itself the compiler makes a part whole on every device."""
    specs = tuple(_out_spec(source, stays=keeps is not None) for source in sources)
    return None if all(spec == "auto" for spec in specs) else specs


def _out_spec(source: Source, *, stays: bool) -> WireSpec:
    if isinstance(source, RemoteArray) or not source.base.mesh or not (stays or source.nbytes > SPLIT_BYTES):
        return "auto"
    return spec_to_wire(source.spec)


def _program(sources: Sequence[Source]) -> Program:
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
