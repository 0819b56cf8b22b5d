"""Wrong keywords get the right one: those of older JAX versions and of neighbours have a table."""

from __future__ import annotations

from collections.abc import Iterable

from shardserve_proto.errors import ProgramError, nearest

_RENAMED = {
    "in_axis_resources": "in_shardings",
    "out_axis_resources": "out_shardings",
    "in_specs": "in_shardings",
    "out_specs": "out_shardings",
    "resource_env": "mesh",
    "axes": "in_axes",
    "timeout_s": "timeout",
    "deadline": "timeout",
    "preferred_element_type": "dtype",
    "out_dtype": "dtype",
    "spmd_axis_name": "axis_resources",
    "sharding": "spec",
    "out_shardings": "spec",
    "ttl_s": "ttl",
    "lease": "ttl",
}
_ABSENT = {
    "static_argnums": "close over the value, for example with a lambda",
    "static_argnames": "close over the value, for example with a lambda",
    "donate_argnums": "arguments are never consumed here",
    "donate_argnames": "arguments are never consumed here",
    "backend": "the server chooses its devices",
    "device": "the server chooses its devices",
    "out": "the result is a new array",
    "spmd_axis_name": "ss.xmap splits named axes over mesh axes, by axis_resources",
}


def check_keywords(given: Iterable[str], known: Iterable[str], *, what: str) -> None:
    """Refuse keywords that nobody reads.

    Arguments:
        what: who was called, for the message ("client.dot").

    Raises:
        ProgramError: with the keyword's new name, or the nearest one.
    """
    known = list(known)
    for name in given:
        if name in known:
            continue
        if _RENAMED.get(name) in known:
            hint = f"; it is called {_RENAMED[name]!r} here (renamed)"
        elif name in _ABSENT:
            hint = f"; {_ABSENT[name]}"
        else:
            hint = nearest(name, known)
        raise ProgramError(f"{what} has no keyword {name!r}{hint}", details={"keyword": name})
