"""Named axes of a direct kernel call: `client.dot(a, b, in_axes=..., out_axes=...)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardserve_proto.abstract import Aval, Scope, drop_names, enter, evaluate
from shardserve_proto.errors import AxisError
from shardserve_proto.limits import LIMITS
from shardserve_proto.programs import Mapping as AxisMapping
from shardserve_proto.programs import Param, Program, validate
from shardserve_proto.signatures import BUILTIN
from shardserve_proto.specs import parse_resources

from ._arrays import Leaf, aval_of
from ._axes import anonymous_axis, argument_axes, has_positions, names_anything, parse_sizes, result_axes
from ._tree import LEAF, Tree

_KEYWORDS = ("in_axes", "out_axes", "axis_sizes", "axis_resources")


def kernel_mapping(
    kernel: str, params: dict[str, Param], leaves: Sequence[Leaf], options: Mapping[str, Any]
) -> AxisMapping | None:
    """The mapping that the options describe; None when they name no axis.

    Raises:
        AxisError: no prefix, not well formed, or out_axes are missing.
    """
    if not any(keyword in options for keyword in _KEYWORDS):
        return None
    name = anonymous_axis(0)
    avals = [aval_of(leaf) for leaf in leaves]
    tree = Tree(tuple, (), (LEAF,) * len(leaves))
    fields = {
        "in_axes": tuple(argument_axes(options.get("in_axes"), tree, avals, style="xmap", name=name)),
        "axis_sizes": parse_sizes(options.get("axis_sizes")),
        "axis_resources": parse_resources(options.get("axis_resources") or {}),
    }
    mapping = validate(AxisMapping, fields)
    prefix = _out_prefix(options)
    rank = _result_rank(kernel, params, avals, mapping) if has_positions(prefix) else LIMITS.rank
    out_axes = result_axes(prefix, LEAF, [Aval((0,) * rank, "float")], style="xmap", name=name)
    return mapping.model_copy(update={"out_axes": tuple(out_axes)})


def _out_prefix(options: Mapping[str, Any]) -> Any:
    """out_axes as given; with ints alone 0 as in `jax.vmap`, and nothing where nothing is named."""
    in_axes = options.get("in_axes")
    if "out_axes" in options:
        return options["out_axes"]
    if names_anything(in_axes) or options.get("axis_sizes"):
        raise AxisError(
            "out_axes is required where axes have names: they say where the names stand in the result, "
            "for example out_axes=['batch', ...]"
        )
    return 0 if has_positions(in_axes) else None


def _result_rank(kernel: str, params: dict[str, Param], avals: Sequence[Aval], mapping: AxisMapping) -> int:
    """The rank that the kernel itself sees for its result, which negative out_axes count from."""
    if kernel not in BUILTIN:
        return LIMITS.rank  # only the server knows; it refuses what is out of range
    scope = enter(without_labels(kernel, mapping), avals, Scope())
    views = [drop_names(aval, axes) for aval, axes in zip(avals, mapping.in_axes, strict=True)]
    program = Program.of_kernel(kernel, operands=len(avals), params=params)
    (result,), _ = evaluate(program, views, scope, BUILTIN)
    return result.ndim


def without_labels(kernel: str, mapping: AxisMapping) -> AxisMapping:
    """The mapping that can be checked here: einsum's labels are no axes of it, and the server resolves them."""
    if kernel != "einsum":
        return mapping
    bound = {name for axes in mapping.in_axes for _, name in axes.names} | {name for name, _ in mapping.axis_sizes}
    kept = tuple(pair for pair in mapping.axis_resources if pair[0] in bound)
    return mapping.model_copy(update={"axis_resources": kept})
