"""What a function can see besides its arguments: as long as it is the same, so is its trace.

A function that reads a global `scale`, closes over it, or finds it in a container, an attribute or an array is traced
anew once it has changed. docs/programs.md says what is watched; this is the walk that does it. A function that refers
to more than can be looked at has no fingerprint: it is traced for each call, which is slower and never wrong.
"""

from __future__ import annotations

import array
import functools
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import (
    CodeType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, TypeAlias

import numpy as np

from ._transformed import Jitted, Mapped

#: Objects, and bytes of arrays, that are looked at for one call.
MOST_OBJECTS = 1000
MOST_BYTES = 256 * 1024

_BY_VALUE = frozenset({bool, int, str, bytes, type(None)})
_BY_REPR = frozenset({float, complex})  # 0.0 and -0.0 are equal, and NaN is not equal to itself
_MADE_ANEW = frozenset({MethodType, functools.partial})  # at each use, so that their parts are what counts

Names: TypeAlias = tuple[str, ...]


class _TooMuch(Exception):
    """There is no fingerprint; this never leaves the file."""


class Same:
    """Equal to another for the same object only; it keeps the object, so that its id is not given to another."""

    __slots__ = ("_object",)

    def __init__(self, given: object) -> None:
        self._object = given

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self._object is other._object

    def __hash__(self) -> int:
        return id(self._object)


def fingerprint(function: Any) -> tuple[Any, ...] | None:
    """A key that is equal while the function, and all that it refers to, is the same; None where that is too much."""
    try:
        return tuple(_marks(function, _home_of(function)))
    except (_TooMuch, RuntimeError):  # the latter from a container that another thread changes
        return None


def _marks(function: Any, home: str) -> list[Any]:
    marks: list[Any] = []
    bytes_left = MOST_BYTES
    # Each object waits with the names in the code that refers to it: the attributes that this code can read.
    waiting: list[tuple[Any, Names]] = [(function, ())]
    seen: set[tuple[int, int]] = set()
    while waiting:
        current, names = waiting.pop()
        kind: Any = type(current)
        if kind in _BY_VALUE:
            marks.append((kind, current))
            bytes_left -= len(current) if kind is bytes else 0
        elif kind in _BY_REPR:
            marks.append((kind, repr(current)))
        else:
            marks.append(kind if kind in _MADE_ANEW else Same(current))
            place = (id(current), id(names))
            if place not in seen:
                seen.add(place)
                if kind is FunctionType:
                    names = _names(current.__code__)
                waiting += [(part, names) for part in _reader(kind)(current, names, home)]
        if len(marks) > MOST_OBJECTS or bytes_left < 0:
            raise _TooMuch
    return marks


@functools.lru_cache(maxsize=1024)
def _names(code: CodeType) -> Names:
    """The names of globals and attributes that a function and the functions within it read."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return tuple(dict.fromkeys([*code.co_names, *(name for nested in inner for name in _names(nested))]))


# --- whose code is looked into ---------------------------------------------------------------------------------------


def _home_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return _root(getattr(function, "__module__", None))


def _root(module: object) -> str:
    return module.partition(".")[0] if isinstance(module, str) else ""


def _is_open(module: object, home: str) -> bool:
    """Whether the globals and classes of a module are looked into: the user's own are, those of libraries are not."""
    root = _root(module)
    return root not in _CLOSED and (root == home or not _is_installed(root))


_CLOSED = sys.stdlib_module_names - {"__main__"} | {"shardserve", "numpy"}


@functools.lru_cache(maxsize=1024)
def _is_installed(root: str) -> bool:
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


# --- the parts of an object, as far as its identity does not tell them; variable numbers of parts tell their number --


def _of_function(function: FunctionType, names: Names, home: str) -> Iterator[Any]:
    yield from function.__defaults__ or ()
    yield from _pairs(function.__kwdefaults__ or {})
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            yield "<empty>"
    if _is_open(function.__module__, home):
        yield from _named(function.__globals__, names)


def _named(namespace: Mapping[str, Any], names: Names) -> Iterator[Any]:
    found = [name for name in names if name in namespace]
    yield ",".join(found)
    yield from [namespace[name] for name in found]


def _pairs(mapping: Mapping[Any, Any]) -> Iterator[Any]:
    if len(mapping) > MOST_OBJECTS:
        raise _TooMuch
    pairs = list(mapping.items())  # at once, for another thread may change it
    yield len(pairs)
    for pair in pairs:
        yield from pair


def _of_sequence(sequence: Iterable[Any], names: Names, home: str) -> Iterator[Any]:
    items = list(sequence)
    if len(items) > MOST_OBJECTS:
        raise _TooMuch
    yield len(items)
    yield from items
    yield from _of_instance(sequence, names, home)


def _of_dict(mapping: Mapping[Any, Any], names: Names, home: str) -> Iterator[Any]:
    yield from _pairs(mapping)
    yield from _of_instance(mapping, names, home)


def _of_array(values: np.ndarray[Any, Any], names: Names, home: str) -> Iterator[Any]:
    if values.nbytes > MOST_BYTES:
        raise _TooMuch
    yield values.dtype
    yield str(values.shape)
    if values.dtype.hasobject:
        yield from np.asarray(values).ravel().tolist()
    else:
        yield values.tobytes()
    yield from _of_instance(values, names, home)


def _of_buffer(buffer: Any, names: Names, home: str) -> Iterator[Any]:
    view = memoryview(buffer)
    if view.nbytes > MOST_BYTES:
        raise _TooMuch
    yield view.tobytes()
    yield from _of_instance(buffer, names, home)


def _of_module(module: ModuleType, names: Names, home: str) -> Iterator[Any]:  # noqa: ARG001
    if _root(module.__name__) not in ("numpy", "shardserve"):
        yield from _named(vars(module), names)


def _of_class(cls: type, names: Names, home: str) -> Iterator[Any]:
    for own in cls.__mro__:
        if _is_open(own.__module__, home):
            yield from _named(vars(own), names)


def _of_instance(current: Any, names: Names, home: str) -> Iterator[Any]:
    """The attributes of an object, and what the names, or a call of it, find in its classes."""
    classes = [cls for cls in type(current).__mro__ if _is_open(cls.__module__, home)]
    if not classes and type(current) is not SimpleNamespace:
        return
    yield from _pairs(getattr(current, "__dict__", {}))
    for cls in classes:
        yield from _named(vars(cls), (*names, "__call__"))
        for name, slot in list(vars(cls).items()) if "__slots__" in vars(cls) else ():
            if isinstance(slot, MemberDescriptorType) and hasattr(current, name):
                yield name
                yield slot.__get__(current)


def _attributes(*attributes: str) -> Callable[[Any, Names, str], Iterator[Any]]:
    return lambda current, names, home: (getattr(current, attribute) for attribute in attributes)  # noqa: ARG005


def _of_mapped(mapped: Mapped, names: Names, home: str) -> tuple[Any, ...]:  # noqa: ARG001
    return mapped.function, mapped.over.in_axes, mapped.over.out_axes


def _of_partial(partial: functools.partial[Any], names: Names, home: str) -> Iterator[Any]:  # noqa: ARG001
    yield partial.func
    yield len(partial.args)
    yield from partial.args
    yield from _pairs(partial.keywords)


_Reader: TypeAlias = "Callable[[Any, Names, str], Iterable[Any]]"
_READERS: tuple[tuple[type | tuple[type, ...], _Reader], ...] = (
    (FunctionType, _of_function),
    ((np.ndarray, np.generic), _of_array),
    ((dict, MappingProxyType), _of_dict),
    ((list, tuple, set, frozenset, deque), _of_sequence),
    ((bytearray, memoryview, array.array), _of_buffer),
    (ModuleType, _of_module),
    (type, _of_class),
    (Mapped, _of_mapped),
    (Jitted, _attributes("function", "in_shardings", "out_shardings")),
    (MethodType, _attributes("__func__", "__self__")),
    (functools.partial, _of_partial),
    ((staticmethod, classmethod, type(functools.cache(len))), _attributes("__wrapped__")),
    (property, _attributes("fget")),
    (functools.cached_property, _attributes("func")),
)


@functools.lru_cache(maxsize=1024)
def _reader(kind: type) -> _Reader:
    return next((reader for kinds, reader in _READERS if issubclass(kind, kinds)), _of_instance)
