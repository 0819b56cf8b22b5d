"""Transforms of functions: `vmap`, `xmap`, `jit` and sharding constraints, nested in each other as one likes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, overload

from shardserve_proto.errors import AxisError
from shardserve_proto.specs import AUTO, parse_resources

from ._axes import parse_sizes
from ._keywords import check_keywords
from ._transformed import Function, Jitted, Mapped, MappedOver, constrained

#: The mesh axes that split each name.
Resources: TypeAlias = "Mapping[str, str | tuple[str, ...]]"
_VMAP_KEYWORDS = ["in_axes", "out_axes", "axis_name", "axis_size"]
_XMAP_KEYWORDS = ["in_axes", "out_axes", "axis_sizes", "axis_resources"]
_JIT_KEYWORDS = ["in_shardings", "out_shardings"]
_MISSING: Any = object()


def vmap(
    function: Function,
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: str | None = None,
    axis_size: int | None = None,
    **unknown: Any,
) -> Mapped:
    """Map a function over a dimension of its arguments, as `jax.vmap`.

    Arguments:
        function: of positional arguments; it sees arrays without that dimension.
        in_axes: an int or None for all arguments, or a tree prefix of them; negative ints count from the back.
        out_axes: where the dimension stands in each result; None asks for a result that does not vary.
        axis_name: lets collectives such as `psum` run over the dimension.
        axis_size: its size, when no argument has it.

    Returns: a function to call inside traced functions, or to give to `client.run`.

    Raises:
        AxisError: when it is called, if sizes differ, a dimension is out of range or `in_axes` is no prefix.

    Communication: none of its own.

    Example:
        >>> import shardserve as ss
        >>> row_dots = ss.vmap(ss.dot, in_axes=(0, 0))
    """
    check_keywords(unknown, _VMAP_KEYWORDS, what="ss.vmap")
    # An empty name stands for the axis of this vmap, whatever it will be called.
    sizes = () if axis_size is None else (("", axis_size),)
    return Mapped(function, MappedOver(in_axes, out_axes, "vmap", axis_name, sizes))


@overload
def xmap(
    function: Function,
    in_axes: Any = ...,
    out_axes: Any = ...,
    *,
    axis_sizes: Mapping[str, int] | None = ...,
    axis_resources: Resources | None = ...,
    **unknown: Any,
) -> Mapped: ...
@overload
def xmap(
    function: None = None,
    in_axes: Any = ...,
    out_axes: Any = ...,
    *,
    axis_sizes: Mapping[str, int] | None = ...,
    axis_resources: Resources | None = ...,
    **unknown: Any,
) -> Callable[[Function], Mapped]: ...
def xmap(
    function: Function | None = None,
    in_axes: Any = _MISSING,
    out_axes: Any = _MISSING,
    *,
    axis_sizes: Mapping[str, int] | None = None,
    axis_resources: Resources | None = None,
    **unknown: Any,
) -> Mapped | Callable[[Function], Mapped]:
    """Map a function over named axes: it sees its arguments without the named dimensions.

    Arguments:
        function: of positional arguments; left out, the call is a decorator.
        in_axes: which dimensions carry names, a tree prefix of the arguments: `{1: "batch"}`, `["rows", "cols"]`
            (exactly two dimensions), `["batch", ...]` (and any number more). Ints and None as in `vmap`.
        out_axes: where the names stand in each result; a name that the result does not carry is broadcast.
        axis_sizes: sizes of names that no argument has.
        axis_resources: the mesh axis, or a tuple of them (major to minor), that splits each name. A name that is not
            given is whole on each device, unless it is itself the name of a mesh axis. No assignment ever changes the
            result, only how it is carried out.

    Returns: a function to call inside traced functions, or to give to `client.run`.

    Raises:
        AxisError: at once for what is not well formed, when it is called for sizes and ranks that do not fit.

    Communication: none of its own; collectives in the function run over the mesh axes of their names.

    Example:
        >>> import shardserve as ss
        >>> @ss.xmap(in_axes=["rows", "cols"], out_axes=["rows", "cols"], axis_resources={"rows": "x", "cols": "y"})
        ... def normalize(x):
        ...     return x / ss.psum(x, ("rows", "cols"))
    """
    check_keywords(unknown, _XMAP_KEYWORDS, what="ss.xmap")
    if in_axes is _MISSING or out_axes is _MISSING:
        missing = "in_axes" if in_axes is _MISSING else "out_axes"
        raise AxisError(f"ss.xmap needs {missing}, for example {missing}=['batch', ...]")
    if isinstance(out_axes, list | tuple) and not out_axes:
        raise AxisError("ss.xmap needs out_axes that describe a result; [] and () describe none")
    resources = parse_resources(axis_resources or {})
    over = MappedOver(in_axes, out_axes, "xmap", None, parse_sizes(axis_sizes), resources)
    if function is None:
        return lambda decorated: Mapped(decorated, over)
    return Mapped(function, over)


@overload
def jit(function: Function, *, in_shardings: Any = ..., out_shardings: Any = ..., **unknown: Any) -> Jitted: ...
@overload
def jit(
    function: None = None, *, in_shardings: Any = ..., out_shardings: Any = ..., **unknown: Any
) -> Callable[[Function], Jitted]: ...
def jit(
    function: Function | None = None, *, in_shardings: Any = AUTO, out_shardings: Any = AUTO, **unknown: Any
) -> Jitted | Callable[[Function], Jitted]:
    """Give a function's arguments and results shardings, spelled as `jax.jit` does.

    Arguments:
        function: of positional arguments; left out, the call is a decorator.
        in_shardings: a spec, or a tree prefix of the arguments: `P("x", None)`; None and `P()` replicate (plain
            `jax.jit` means "unspecified" by None); AUTO lets the server choose. jax's PartitionSpec and NamedSharding
            are taken too.
        out_shardings: the same for the results.

    Returns: a function to give to `client.run`, or to call inside traced functions, where the specs are constraints.

    Raises:
        ShardingError: when it is called, if the specs are no prefix, or fit neither the arrays nor the mesh.

    Example:
        >>> import shardserve as ss
        >>> from shardserve import P
        >>> @ss.jit(in_shardings=None, out_shardings=P("devices"))
        ... def dots(v1, v2):
        ...     return ss.vmap(ss.dot, in_axes=(0, 0))(v1, v2)
    """
    check_keywords(unknown, _JIT_KEYWORDS, what="ss.jit")
    if function is None:
        return lambda decorated: Jitted(decorated, in_shardings, out_shardings)
    return Jitted(function, in_shardings, out_shardings)


def with_sharding_constraint(x: Any, shardings: Any) -> Any:
    """Hold intermediate values to specs; the values stay the same.

    Arguments:
        x: a traced value, or a tree of them.
        shardings: a spec, or a tree prefix of specs; a spec speaks of the dimensions that the function sees.

    Raises:
        ShardingError: no prefix, or a spec that does not fit the array or the mesh.

    Communication: whatever brings the parts to their new places.
    """
    return constrained(x, shardings, "shardings")
