"""Functions traced as a client traces them, without a server."""

from __future__ import annotations

from typing import Any

from shardserve._functions import TracedFunction, trace_function
from shardserve._tree import flatten


def trace(function: Any, *args: Any) -> TracedFunction:
    """The program of a function for these arguments."""
    leaves, tree = flatten(args)
    return trace_function(function, tree, leaves)
