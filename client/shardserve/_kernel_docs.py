"""Signatures and docstrings of the kernel methods, made whole for `help`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from ._options import CALL_KEYWORDS, CallOptions

F = TypeVar("F", bound=Callable[..., Any])

_KEYWORDS = """
Keywords of every call:
    mesh: a mesh's name, or its axes and sizes (one may be -1); default: that of the block or the client.
    in_axes: which dimensions of the arguments carry names, a tree prefix of them: `{1: "batch"}`, `["rows", "cols"]`,
        `["batch", ...]`; ints and None as in `jax.vmap`.
    out_axes: where the names stand in the result; required with names, 0 by default with ints.
    axis_sizes: sizes of names that no argument has.
    axis_resources: the mesh axes that split each name, for example `{"batch": "devices"}`.
    in_shardings, out_shardings: specs of arguments and result; None replicates, AUTO (the default) leaves the choice
        to the server.
    precision: of float32 products and totals: "highest" (default), "high" or "default".
    timeout: seconds until the call gives up.
    progress: is told how far large bodies are; `ss.progress_bar()` shows a bar.
    keep: whether the result stays on the devices, as a `RemoteArray`; default: if any argument is one.
"""


def kernel_method(source: Callable[..., Any]) -> Callable[[F], F]:
    """Give a method the text of a traced function, and show the keywords behind its `**options`.

    Arguments:
        source: the traced function of the same kernel.
    """

    def finish(method: F) -> F:
        method.__doc__ = f"{inspect.cleandoc(source.__doc__ or '')}\n{_KEYWORDS}"
        signature = inspect.signature(method)
        own = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
        shown = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=..., annotation=CallOptions.__annotations__[name]
            )
            for name in CALL_KEYWORDS
        ]
        method.__signature__ = signature.replace(parameters=[*own, *shown])  # type: ignore[attr-defined]
        return method

    return finish
