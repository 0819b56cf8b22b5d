"""Blocks of code in which a client behaves differently: `with client.mesh(...)`, `with client.record()`.

A block holds for the thread or task that entered it, and for the tasks that are started inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from shardserve_proto.specs import WireMesh

from ._calls import Call, Log

_meshes: ContextVar[tuple[tuple[object, WireMesh], ...]] = ContextVar("shardserve_meshes", default=())
_logs: ContextVar[tuple[tuple[object, Log], ...]] = ContextVar("shardserve_logs", default=())


@contextmanager
def _entered(variable: ContextVar[tuple[Any, ...]], entry: Any) -> Iterator[None]:
    token = variable.set((*variable.get(), entry))
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def mesh_block(owner: object, mesh: WireMesh) -> Iterator[None]:
    """Every call of this client in the block uses this mesh."""
    with _entered(_meshes, (owner, mesh)):
        yield


def mesh_of(owner: object) -> WireMesh | None:
    """The mesh of the innermost block of this client."""
    return next((mesh for known, mesh in reversed(_meshes.get()) if known is owner), None)


@contextmanager
def record_block(owner: object) -> Iterator[Log]:
    """Every call of this client in the block is in the log."""
    log = Log()
    with _entered(_logs, (owner, log)):
        yield log


def note(owner: object, call: Call) -> None:
    """Put a call into the logs of this client's blocks."""
    for known, log in _logs.get():
        if known is owner:
            log.add(call)
