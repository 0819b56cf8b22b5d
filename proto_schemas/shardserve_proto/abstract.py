"""Abstract evaluation: the shape, dtype and named axes of every value of a program, before anything is compiled.

The client traces with it and the server validates with it, so both raise the same named errors.
"""

from __future__ import annotations

from collections.abc import Mapping as MappingABC
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from .dtypes import DTYPES, DType, WeakKind, name_of, strong
from .errors import AxisError, NotFound, ProgramError, ShapeError, ShardingError, ShardserveError, nearest
from .limits import LIMITS
from .programs import Constant, Mapping, Program, Scalar, Step
from .specs import AUTO, Axes, MeshShape, WireSpec, check_name, check_spec, describe_mesh, make_axes, spec_from_wire

if TYPE_CHECKING:
    from .signatures import Signature


_INT64, _UINT64 = np.iinfo(np.int64), np.iinfo(np.uint64)


@dataclass(frozen=True)
class Aval:
    """An abstract value.

    Attributes:
        shape: the positional dimensions.
        dtype: a dtype, or the kind of a Python scalar.
        names: the named axes that the value carries.
        value: the number itself, for a constant.
    """

    shape: tuple[int, ...]
    dtype: DType | WeakKind
    names: frozenset[str] = frozenset()
    value: Scalar | None = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def strong_dtype(self) -> DType:
        """The dtype on its own; a Python integer beyond int64 is uint64, as for NumPy."""
        if self.dtype == "int" and isinstance(self.value, int) and self.value > _INT64.max:
            return DTYPES["uint64"]
        return strong(self.dtype)

    def __str__(self) -> str:
        kind = self.dtype if isinstance(self.dtype, str) else name_of(self.dtype)
        return f"{kind}{list(self.shape)}"


def constant_aval(scalar: Scalar) -> Aval:
    """The abstract value of a Python scalar."""
    kinds: tuple[tuple[type, WeakKind], ...] = ((bool, "bool"), (int, "int"), (float, "float"), (complex, "complex"))
    kind = next(kind for cls, kind in kinds if isinstance(scalar, cls))
    return Aval((), kind, value=scalar)


@dataclass(frozen=True)
class Scope:
    """The named axes in sight.

    Attributes:
        sizes: size of each name, outermost first.
        resources: the mesh axes of each name that has some.
        mesh: the mesh, where it is known (the client traces without).
    """

    sizes: MappingABC[str, int] = field(default_factory=dict)
    resources: MappingABC[str, tuple[str, ...]] = field(default_factory=dict)
    mesh: MeshShape | None = None

    def require(self, name: str) -> int:
        """The size of a name.

        Raises:
            AxisError: nobody binds it.
        """
        if name not in self.sizes:
            known = ", ".join(map(repr, self.sizes)) or "none"
            raise AxisError(f"unknown axis {name!r}; known axes: {known}{nearest(name, self.sizes)}")
        return self.sizes[name]

    def check_resources(self, aval: Aval, what: str) -> Aval:
        """Refuse a value in which two names share a mesh axis: it cannot be split twice over the same devices."""
        if len(aval.names) < 2:
            return aval
        owner: dict[str, str] = {}
        for name in sorted(aval.names):
            for axis in self.resources.get(name, ()):
                if axis in owner:
                    raise AxisError(
                        f"{what} carries the axes {owner[axis]!r} and {name!r}, which are both on mesh axis {axis!r}; "
                        "give one of them another mesh axis"
                    )
                owner[axis] = name
        return aval


def evaluate(
    program: Program, inputs: Sequence[Aval], scope: Scope, signatures: MappingABC[str, Signature]
) -> tuple[list[Aval], list[list[Aval]]]:
    """The abstract outputs of a program, and the abstract results of each step.

    Raises:
        ShapeError, DTypeError, AxisError, ShardingError, ProgramError, NotFound: naming the step.
    """
    if len(inputs) != program.inputs:
        raise ProgramError(f"the program takes {program.inputs} inputs and is given {len(inputs)}")
    values = list(inputs)
    steps: list[list[Aval]] = []
    for index, step in enumerate(program.steps):
        title = step.title if len(program.steps) == 1 else f"step {index} ({step.title})"
        try:
            results = _evaluate_step(step, [_operand(op, values) for op in step.operands], scope, signatures)
        except ShardserveError as error:
            raise _within(title, error) from None
        steps.append(results)
        values += results
    for number in program.outputs:
        if not 0 <= number < len(values):
            raise ProgramError(f"output refers to value {number} of {len(values)}")
    return [values[number] for number in program.outputs], steps


def _within(title: str, error: ShardserveError) -> ShardserveError:
    prefixed = type(error)(f"{title}: {error.message}", details=error.details)
    prefixed.details.setdefault("step", title)
    return prefixed


def _operand(operand: int | Constant, values: Sequence[Aval]) -> Aval:
    if isinstance(operand, Constant):
        return constant_aval(operand.scalar)
    if not 0 <= operand < len(values):
        raise ProgramError(f"operand refers to value {operand}, but only {len(values)} values come before this step")
    return values[operand]


def _evaluate_step(
    step: Step, operands: list[Aval], scope: Scope, signatures: MappingABC[str, Signature]
) -> list[Aval]:
    if step.program is not None:
        results = evaluate_mapped(
            step.program, step.mapping or identity_mapping(step.program), operands, scope, signatures
        )
    else:
        signature = signature_of(step.kernel or "", signatures)
        results = signature.evaluate(operands, step.params, scope)
    for index, result in enumerate(results):
        scope.check_resources(result, f"result {index}")
    if step.specs is not None:
        _check_constraints(step, results, scope)
    return results


def signature_of(kernel: str, signatures: MappingABC[str, Signature]) -> Signature:
    """The signature of a kernel.

    Raises:
        NotFound: no such kernel, with the nearest name.
    """
    signature = signatures.get(kernel)
    if signature is None:
        raise NotFound(f"unknown kernel {kernel!r}{nearest(kernel, signatures)}", details={"kernel": kernel})
    return signature


def _check_constraints(step: Step, results: Sequence[Aval], scope: Scope) -> None:
    specs = step.specs or ()
    if len(specs) != len(results):
        raise ProgramError(f"{len(specs)} sharding constraints for {len(results)} results")
    for index, (wire, result) in enumerate(zip(specs, results, strict=True)):
        check_constraint(wire, result, scope, what=f"constraint on result {index}")


def check_constraint(wire: WireSpec, value: Aval, scope: Scope, *, what: str) -> None:
    """Hold a constraint against a value, its named axes and, where it is known, the mesh.

    Raises:
        ShardingError: it does not fit, or splits a dimension over a mesh axis that carries one of the names.
    """
    spec = spec_from_wire(wire)
    if spec is AUTO:
        return
    check_spec(spec, ndim=value.ndim, mesh=scope.mesh, what=what)
    taken = {axis: name for name in value.names for axis in scope.resources.get(name, ())}
    for axis in (axis for dimension in range(len(spec)) for axis in spec.axes_of(dimension)):
        if axis in taken:
            raise ShardingError(
                f"{what}: {spec} uses mesh axis {axis!r}, which already carries the named axis {taken[axis]!r}"
            )


def identity_mapping(program: Program) -> Mapping:
    """A mapping that names nothing."""
    return Mapping(in_axes=(Axes(),) * program.inputs, out_axes=(Axes(),) * len(program.outputs))


def evaluate_mapped(
    program: Program,
    mapping: Mapping,
    inputs: Sequence[Aval],
    scope: Scope,
    signatures: MappingABC[str, Signature],
) -> list[Aval]:
    """The full abstract outputs of a program under a mapping, from full abstract inputs."""
    inner = enter(mapping, inputs, scope)
    named = [drop_names(aval, axes) for aval, axes in zip(inputs, mapping.in_axes, strict=True)]
    for index, aval in enumerate(named):
        inner.check_resources(aval, f"argument {index}")
    outputs, _ = evaluate(program, named, inner, signatures)
    return leave(mapping, outputs, inner, scope)


def drop_names(aval: Aval, axes: Axes) -> Aval:
    """The value that a mapped program sees: named dimensions become names."""
    return replace(aval, shape=axes.drop_named(aval.shape), names=aval.names.union(axes.positions()))


def enter(mapping: Mapping, inputs: Sequence[Aval], outer: Scope) -> Scope:
    """The scope inside a mapping; every rule of `xmap` about inputs, sizes and resources is held here.

    Raises:
        AxisError: naming the axis, the sizes and the argument.
    """
    if len(mapping.in_axes) != len(inputs):
        raise AxisError(f"in_axes has {len(mapping.in_axes)} specifications for {len(inputs)} arguments")
    for index, axes in enumerate(mapping.in_axes):
        make_axes(axes.names, rank=axes.rank, what=f"in_axes of argument {index}")
    for index, axes in enumerate(mapping.out_axes):
        make_axes(axes.names, rank=axes.rank, what=f"out_axes of output {index}")
    sizes = _infer_sizes(mapping, inputs)
    for name in sizes:
        if name in outer.sizes:
            raise AxisError(f"axis {name!r} is already bound outside; a nested program needs another name")
    named_out = [name for axes in mapping.out_axes for _, name in axes.names]
    for name in named_out:
        if name not in sizes:
            raise AxisError(
                f"out_axes name axis {name!r}, whose size nothing defines: no argument carries it and axis_sizes does "
                f"not give it{nearest(name, sizes)}"
            )
    resources = _resources(mapping, sizes, outer)
    if len(outer.sizes) + len(sizes) > LIMITS.axes:
        raise AxisError(f"more than {LIMITS.axes} named axes")
    return Scope({**outer.sizes, **sizes}, {**outer.resources, **resources}, outer.mesh)


def _infer_sizes(mapping: Mapping, inputs: Sequence[Aval]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    origin: dict[str, str] = {}
    for index, (aval, axes) in enumerate(zip(inputs, mapping.in_axes, strict=True)):
        axes.check_rank(aval.ndim, what=f"argument {index}")
        for position, name in axes.names:
            _set_size(sizes, origin, name, aval.shape[position], f"argument {index} of shape {aval.shape}")
    for name, size in mapping.axis_sizes:
        check_name(name)
        if size < 0:
            raise AxisError(f"axis_sizes gives axis {name!r} the size {size}")
        _set_size(sizes, origin, name, size, "axis_sizes")
    return sizes


def _set_size(sizes: dict[str, int], origin: dict[str, str], name: str, size: int, where: str) -> None:
    if sizes.setdefault(name, size) != size:
        raise AxisError(
            f"axis {name!r} has size {sizes[name]} in {origin[name]}, but size {size} in {where}",
            details={"axis": name, "sizes": [sizes[name], size]},
        )
    origin.setdefault(name, where)


def _resources(mapping: Mapping, sizes: MappingABC[str, int], outer: Scope) -> dict[str, tuple[str, ...]]:
    resources: dict[str, tuple[str, ...]] = {}
    mesh = None if outer.mesh is None else dict(outer.mesh)
    for name, axes in mapping.axis_resources:
        if name not in sizes:
            known = ", ".join(map(repr, sizes)) or "none"
            raise AxisError(f"axis_resources name axis {name!r}; known axes: {known}{nearest(name, sizes)}")
        if name in resources:
            raise AxisError(f"axis_resources name axis {name!r} twice")
        if len(set(axes)) < len(axes):
            raise AxisError(f"axis_resources give axis {name!r} the same mesh axis twice: {axes}")
        for axis in axes:
            if mesh is not None and axis not in mesh:
                raise AxisError(
                    f"axis_resources put axis {name!r} on mesh axis {axis!r}, which is not on the mesh "
                    f"({describe_mesh(outer.mesh or ())}){nearest(axis, mesh)}"
                )
        resources[name] = axes
    for name in sizes:  # a named axis that is called as a mesh axis goes there by default
        if mesh is not None and name in mesh and name not in resources and not _is_used(name, resources, outer):
            resources[name] = (name,)
    return {name: axes for name, axes in resources.items() if axes}


def _is_used(axis: str, resources: MappingABC[str, tuple[str, ...]], outer: Scope) -> bool:
    return any(axis in axes for axes in (*resources.values(), *outer.resources.values()))


def leave(mapping: Mapping, outputs: Sequence[Aval], inner: Scope, outer: Scope) -> list[Aval]:
    """The full outputs of a mapped program, with its names back in their positions.

    Raises:
        AxisError: an output varies along a name that its out_axes forget, or has the wrong rank.
    """
    if len(mapping.out_axes) != len(outputs):
        raise AxisError(f"out_axes has {len(mapping.out_axes)} specifications for {len(outputs)} outputs")
    full = []
    for index, (aval, axes) in enumerate(zip(outputs, mapping.out_axes, strict=True)):
        what = f"output {index}"
        own = {name for name in aval.names if name not in outer.sizes}
        forgotten = sorted(own - axes.positions().keys())
        if forgotten:
            raise AxisError(
                f"{what} varies along axis {forgotten[0]!r}, but its out_axes {axes} do not name it; name it there, or "
                f"reduce it first, for example psum(..., {forgotten[0]!r})"
            )
        carried = replace(aval, names=aval.names.union(axes.positions()), value=None)
        inner.check_resources(carried, what)
        shape = axes.insert_named(aval.shape, inner.sizes, what=what)
        if len(shape) > LIMITS.rank:
            raise ShapeError(f"{what} would have rank {len(shape)}; at most {LIMITS.rank} dimensions are supported")
        full.append(Aval(shape, aval.strong_dtype, aval.names - own))
    return full
