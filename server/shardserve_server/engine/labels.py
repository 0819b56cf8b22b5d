"""einsum's labels are named axes: resources of a label become specs of the dimensions that carry it."""

from __future__ import annotations

from collections.abc import Sequence

from shardserve_proto.abstract import Aval
from shardserve_proto.einsum import Labels, parse_subscripts
from shardserve_proto.errors import AxisError, ShardingError, nearest
from shardserve_proto.programs import Mapping, Program
from shardserve_proto.specs import Auto, Axes, P, Spec


def labels_as_specs(
    program: Program, mapping: Mapping, inputs: Sequence[Aval], in_specs: Sequence[Spec], out_specs: Sequence[Spec]
) -> tuple[Mapping, list[Spec], list[Spec]]:
    """The mapping without the resources of labels, and the specs with them.

    Only a plain call of einsum has labels; any other program comes back as it is.

    Raises:
        AxisError: resources for a label that the subscripts do not have.
        ShardingError: a spec places a label's dimension elsewhere.
    """
    if len(program.steps) != 1 or program.steps[0].kernel != "einsum" or not mapping.axis_resources:
        return mapping, list(in_specs), list(out_specs)
    named = {name for axes in mapping.in_axes for _, name in axes.names} | {name for name, _ in mapping.axis_sizes}
    resources = {name: axes for name, axes in mapping.axis_resources if name not in named}
    if not resources or len(inputs) != len(mapping.in_axes):
        return mapping, list(in_specs), list(out_specs)
    ranks = [
        aval.ndim - sum(position < aval.ndim for position, _ in axes.names)
        for aval, axes in zip(inputs, mapping.in_axes, strict=True)
    ]
    labels = parse_subscripts(str(program.steps[0].params.get("subscripts", "")), ranks)
    _check_known(resources, labels)
    kept = tuple(pair for pair in mapping.axis_resources if pair[0] in named)
    placed_in = [_placed(*item, resources) for item in zip(in_specs, mapping.in_axes, labels.inputs, strict=True)]
    placed_out = [_placed(out_specs[0], mapping.out_axes[0], labels.output, resources)]
    return mapping.model_copy(update={"axis_resources": kept}), placed_in, placed_out


def _check_known(resources: dict[str, tuple[str, ...]], labels: Labels) -> None:
    known = sorted({label for own in labels.inputs for label in own})
    for name in resources:
        if name not in known:
            raise AxisError(
                f"axis_resources name label {name!r}; known labels: {', '.join(known)}{nearest(name, known)}"
            )


def _placed(spec: Spec, axes: Axes, labels: Sequence[str], resources: dict[str, tuple[str, ...]]) -> Spec:
    """The spec of one array with the resources of its labels filled in."""
    positions: dict[str, int] = {}
    for position, label in _positions(axes, labels):
        positions.setdefault(label, position)  # a diagonal is split once: its other dimension is whole
    wanted = {position: resources[label] for label, position in positions.items() if resources.get(label)}
    if not wanted:
        return spec
    own = P() if isinstance(spec, Auto) else spec
    entries = [own.axes_of(position) for position in range(max(len(own), max(wanted) + 1))]
    for position, mesh_axes in wanted.items():
        if entries[position] and entries[position] != mesh_axes:
            raise ShardingError(
                f"axis_resources put a label on {mesh_axes}, but {own} puts its dimension {position} on "
                f"{entries[position]}; give it in one of the two places"
            )
        entries[position] = mesh_axes
    return P(*(entry or None for entry in entries))


def _positions(axes: Axes, labels: Sequence[str]) -> list[tuple[int, str]]:
    """Each label with its position in the full array, where named dimensions stand between the labelled ones."""
    taken = {position for position, _ in axes.names}
    free = (position for position in range(len(labels) + len(taken)) if position not in taken)
    return list(zip(free, labels, strict=False))
