"""What a function can see besides its arguments: as long as it is the same, so is its trace.

A function that reads a global `scale`, or closes over it, is traced anew once `scale` is another object. What it reads
through attributes and containers is read when it is traced, and not watched.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from ._transformed import Jitted, Mapped

#: Objects that are looked at for one function; what lies beyond is not watched.
_MOST = 1000


class Same:
    """Equal to another for the same object only; it keeps the object, so that its id is not given to another."""

    __slots__ = ("_object",)

    def __init__(self, given: object) -> None:
        self._object = given

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self._object is other._object

    def __hash__(self) -> int:
        return id(self._object)


def fingerprint(function: Any) -> tuple[Any, ...]:
    """A key that is equal while the function, and all that it refers to by name, is the same."""
    seen: dict[int, Any] = {}
    waiting = [function]
    marks: list[Any] = []
    while waiting and len(marks) < _MOST:
        current = waiting.pop()
        if isinstance(current, bool | int | float | complex | str | bytes | None):
            marks.append((type(current), repr(current)))
            continue
        marks.append(Same(current))
        if id(current) not in seen:
            seen[id(current)] = current
            waiting += _referred(current)
    return tuple(marks)


def _referred(current: Any) -> list[Any]:
    if isinstance(current, Mapped | Jitted):
        return [current.function]
    if isinstance(current, functools.partial):
        return [current.func, *current.args, *current.keywords.values()]
    if isinstance(current, MethodType):
        return [current.__self__, current.__func__]
    if isinstance(current, FunctionType) and not _is_library(current):
        return list(_of_function(current))
    return []


def _is_library(function: FunctionType) -> bool:
    return function.__module__.partition(".")[0] in ("shardserve", "numpy") if function.__module__ else False


def _of_function(function: FunctionType) -> Iterator[Any]:
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
    namespace = function.__globals__
    for name in _names(function.__code__):
        found = namespace.get(name)
        if found is not None and not isinstance(found, ModuleType | BuiltinFunctionType):
            yield found


@functools.lru_cache(maxsize=1024)
def _names(code: CodeType) -> tuple[str, ...]:
    """The global names that a function and the functions within it read."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return tuple(dict.fromkeys([*code.co_names, *(name for nested in inner for name in _names(nested))]))
