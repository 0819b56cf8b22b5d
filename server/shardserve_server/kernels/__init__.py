"""The kernels: one idea a file, all in one registry."""

from __future__ import annotations

from . import dot, einsum, elementwise, matmul, normalize, reductions, shapes
from .registry import Context, Kernel, Registry

__all__ = ["Context", "Kernel", "Registry", "default_registry"]


def default_registry() -> Registry:
    """A registry with every built-in kernel; `add` opens it to more."""
    registry = Registry()
    for family in (dot, matmul, normalize, einsum, elementwise, reductions, shapes):
        family.register(registry)
    return registry
