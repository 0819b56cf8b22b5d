"""Functions with a transform around them: each becomes a nested program, or constraints, where it is called."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from shardserve_proto.abstract import Aval, constant_aval, drop_names, enter, leave
from shardserve_proto.errors import AxisError, ProgramError, UntraceableFunction
from shardserve_proto.limits import LIMITS
from shardserve_proto.programs import Constant, validate
from shardserve_proto.programs import Mapping as AxisMapping
from shardserve_proto.specs import AUTO, Axes

from ._arrays import is_scalar
from ._axes import anonymous_axis, argument_axes, result_axes
from ._location import line_of
from ._specs import read_shardings
from ._traced import TracedArray
from ._tracing import Operand, Trace, Value, current_trace, told_where
from ._tree import Tree, flatten, unflatten

Function: TypeAlias = Callable[..., Any]


def outputs_of(trace: Trace, function: Function, args: Any) -> tuple[list[Value], Tree]:
    """Run a function in its trace: its results as values, and their tree.

    Raises:
        UntraceableFunction: there is none.
    """
    with trace.running():
        result = function(*args)
        leaves, tree = flatten(result)
        if not leaves:
            raise UntraceableFunction(
                f"the function at {line_of(function)} returns {result!r}, which holds no array; is a `return` missing?"
            )
        if len(leaves) > LIMITS.segments:
            raise ProgramError(
                f"the function at {line_of(function)} returns {len(leaves)} arrays, at most {LIMITS.segments} are "
                "allowed; stack them"
            )
        return [
            trace.output(leaf, what=path) for leaf, path in zip(leaves, tree.paths("the result"), strict=True)
        ], tree


class Transformed:
    """A function with a transform around it; it is called inside traced functions, or given to `client.run`."""

    def __init__(self, function: Function, title: str) -> None:
        if not callable(function):
            raise ProgramError(f"{title} takes a function, not {function!r}")
        self.function = function
        self.title = title
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if keywords:
            raise ProgramError(f"a function under {self.title} takes positional arguments only, not {sorted(keywords)}")
        return self._call(current_trace(self.title), args)

    def _call(self, outer: Trace, args: tuple[Any, ...]) -> Any:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{self.title} of the function at {line_of(self.function)}>"


@dataclass(frozen=True)
class MappedOver:
    """What `vmap` and `xmap` are told.

    Attributes:
        style: "vmap" (ints and None) or "xmap" (every form).
        axis_name: of the axis that ints place; None leaves it without a name.
    """

    in_axes: Any
    out_axes: Any
    style: str
    axis_name: str | None = None
    axis_sizes: tuple[tuple[str, int], ...] = ()
    axis_resources: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Mapped(Transformed):
    """A function mapped over named axes; it becomes a nested program with its own mapping."""

    def __init__(self, function: Function, over: MappedOver) -> None:
        super().__init__(function, f"ss.{over.style}")
        self.over = over

    def _call(self, outer: Trace, args: tuple[Any, ...]) -> Any:
        over = self.over
        leaves, tree = flatten(args)
        operands = [outer.operand(leaf) for leaf in leaves]
        name = over.axis_name or anonymous_axis(len(outer.scope.sizes))
        with told_where():
            avals = [_aval(operand) for operand in operands]
            axes = argument_axes(over.in_axes, tree, avals, style=over.style, name=name)
            if over.style == "vmap" and not any(a.names for a in axes) and not over.axis_sizes:
                raise AxisError("vmap maps no argument: give one of them a dimension in in_axes, or give axis_size")
            fields = {
                "in_axes": tuple(axes),
                "axis_sizes": self._sizes(name),
                "axis_resources": over.axis_resources,
            }
            mapping = validate(AxisMapping, fields)
            scope = enter(mapping, avals, outer.scope)
            inner = Trace(scope, outer)
            kept, given = _inputs(inner, leaves, operands, avals, axes)
        outputs, out_tree = outputs_of(inner, self.function, unflatten(tree, iter(given)))
        return self._leave(outer, inner, kept, mapping, outputs, out_tree, name)

    def _sizes(self, name: str) -> tuple[tuple[str, int], ...]:
        return tuple((own or name, size) for own, size in self.over.axis_sizes)

    def _leave(
        self,
        outer: Trace,
        inner: Trace,
        kept: Sequence[tuple[Operand, Axes]],
        mapping: AxisMapping,
        outputs: Sequence[Value],
        out_tree: Tree,
        name: str,
    ) -> Any:
        operands = [operand for operand, _ in kept] + list(inner.lifted)
        in_axes = [axes for _, axes in kept] + [Axes()] * len(inner.lifted)
        results = [value.aval for value in outputs]
        with told_where():
            out_axes = result_axes(self.over.out_axes, out_tree, results, style=self.over.style, name=name)
            mapping = mapping.model_copy(update={"in_axes": tuple(in_axes), "out_axes": tuple(out_axes)})
            scope = enter(mapping, [_aval(operand) for operand in operands], outer.scope)
            full = leave(mapping, results, scope, outer.scope)
        values = outer.program(inner.finish(outputs), mapping, operands, full)
        return unflatten(out_tree, iter([TracedArray(value) for value in values]))


def _aval(operand: Operand) -> Aval:
    return operand.aval if isinstance(operand, Value) else constant_aval(operand.scalar)


def _inputs(
    inner: Trace, leaves: Sequence[Any], operands: Sequence[Operand], avals: Sequence[Aval], axes: Sequence[Axes]
) -> tuple[list[tuple[Operand, Axes]], list[Any]]:
    """The operands of the nested program, and what its function is called with: Python scalars stay what they are."""
    kept: list[tuple[Operand, Axes]] = []
    given: list[Any] = []
    for index, (leaf, operand, aval, own) in enumerate(zip(leaves, operands, avals, axes, strict=True)):
        if isinstance(operand, Constant):
            given.append(leaf)
            continue
        view = inner.scope.check_resources(drop_names(aval, own), f"argument {index}")
        kept.append((operand, own))
        given.append(TracedArray(inner.add_input(view)))
    return kept, given


class Jitted(Transformed):
    """A function with shardings for its arguments and results.

    Given to `client.run`, they are those of the call; inside another function they are constraints.
    """

    def __init__(self, function: Function, in_shardings: Any, out_shardings: Any) -> None:
        super().__init__(function, "ss.jit")
        self.in_shardings = in_shardings
        self.out_shardings = out_shardings

    def _call(self, outer: Trace, args: tuple[Any, ...]) -> Any:  # noqa: ARG002
        return constrained(self.function(*constrained(args, self.in_shardings, "in_shardings")), self.out_shardings)


def constrained(value: Any, shardings: Any, what: str = "out_shardings") -> Any:
    """A tree of values, held to specs where they are given."""
    if shardings is AUTO:
        return value
    trace = current_trace("ss.with_sharding_constraint")
    leaves, tree = flatten(value)
    with told_where():
        read = read_shardings(shardings, tree, what)
        trace.note_mesh(read.mesh)
        held = [
            leaf if spec == "auto" or is_scalar(leaf) else TracedArray(trace.constrain(leaf, spec))
            for leaf, spec in zip(leaves, read.specs or (), strict=True)
        ]
    return unflatten(tree, iter(held))
