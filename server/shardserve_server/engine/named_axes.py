"""Run a program under JAX's tracing: steps in order, named axes as nested vmaps.

One vmap for each name, outermost the first seen; positions are adjusted for the names already taken away, so nothing is
transposed. Every rule was checked by abstract evaluation before; here nothing can be wrong any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh

from shardserve_proto.abstract import Aval, Scope, constant_aval, drop_names, enter, identity_mapping, leave
from shardserve_proto.dtypes import scalar_array
from shardserve_proto.programs import Constant, Mapping, Program, Step
from shardserve_proto.specs import Auto, Axes, spec_from_wire

from ..kernels.registry import Context, Registry
from .mesh import sharding

Values = tuple[Any, ...]


@dataclass(frozen=True)
class Runner:
    """Traces programs with one registry, mesh and precision.

    Attributes:
        mesh: where sharding constraints apply; None on a single device, where they mean nothing.
    """

    registry: Registry
    precision: jax.lax.Precision
    mesh: Mesh | None

    def run_mapped(
        self, program: Program, mapping: Mapping | None, values: Sequence[Any], avals: Sequence[Aval], outer: Scope
    ) -> tuple[list[Any], list[Aval]]:
        """The full outputs of a program under a mapping, with their abstract values."""
        mapping = mapping or identity_mapping(program)
        inner = enter(mapping, avals, outer)
        inner_avals = [drop_names(aval, axes) for aval, axes in zip(avals, mapping.in_axes, strict=True)]
        out_avals: list[Aval] = []

        def body(*views: Any) -> Values:
            outputs, found = self._run(program, views, inner_avals, inner)
            out_avals[:] = found
            return tuple(outputs)

        names = [name for name in inner.sizes if name not in outer.sizes]
        arrays = _as_arrays(values, avals)
        outputs = _nest(body, names, mapping, inner)(*arrays)
        return list(outputs), leave(mapping, out_avals, inner, outer)

    def _run(
        self, program: Program, inputs: Sequence[Any], avals: Sequence[Aval], scope: Scope
    ) -> tuple[list[Any], list[Aval]]:
        values, known = list(inputs), list(avals)
        for step in program.steps:
            results, result_avals = self._step(step, values, known, scope)
            values += results
            known += result_avals
        return [values[number] for number in program.outputs], [known[number] for number in program.outputs]

    def _step(
        self, step: Step, values: Sequence[Any], known: Sequence[Aval], scope: Scope
    ) -> tuple[list[Any], list[Aval]]:
        operands = [op.scalar if isinstance(op, Constant) else values[op] for op in step.operands]
        avals = [constant_aval(op.scalar) if isinstance(op, Constant) else known[op] for op in step.operands]
        if step.program is not None:
            results, result_avals = self.run_mapped(step.program, step.mapping, operands, avals, scope)
        else:
            results, result_avals = self._kernel(step, operands, avals, scope)
        return self._constrain(step, results), result_avals

    def _kernel(
        self, step: Step, operands: Sequence[Any], avals: Sequence[Aval], scope: Scope
    ) -> tuple[list[Any], list[Aval]]:
        kernel = self.registry[step.kernel or ""]
        promised = kernel.signature.evaluate(avals, step.params, scope)
        context = Context(tuple(avals), tuple(promised), scope, self.precision)
        found = kernel.implementation(context, *operands, **kernel.signature.bind(step.params))
        results = list(found) if isinstance(found, tuple) else [found]
        for result, aval in zip(results, promised, strict=True):
            if result.shape != aval.shape or result.dtype != aval.strong_dtype:
                raise RuntimeError(f"kernel {step.kernel} gave {result.dtype}{result.shape} and had promised {aval}")
        return results, promised

    def _constrain(self, step: Step, results: list[Any]) -> list[Any]:
        if step.specs is None or self.mesh is None:
            return results
        specs = [spec_from_wire(wire) for wire in step.specs]
        return [
            value if isinstance(spec, Auto) else jax.lax.with_sharding_constraint(value, sharding(self.mesh, spec))
            for value, spec in zip(results, specs, strict=True)
        ]


def _as_arrays(values: Sequence[Any], avals: Sequence[Aval]) -> list[Any]:
    """vmap takes arrays only, so a constant becomes one; its abstract value stays that of a Python scalar."""
    return [
        value if aval.value is None else scalar_array(aval.value, aval.strong_dtype)
        for value, aval in zip(values, avals, strict=True)
    ]


def _nest(body: Callable[..., Values], names: Sequence[str], mapping: Mapping, scope: Scope) -> Callable[..., Values]:
    function = body
    for depth in reversed(range(len(names))):
        name, outer = names[depth], names[:depth]
        function = jax.vmap(
            function,
            in_axes=tuple(_position(axes, name, outer) for axes in mapping.in_axes),
            out_axes=tuple(_position(axes, name, outer) for axes in mapping.out_axes),
            axis_size=scope.sizes[name],
            axis_name=name,
            spmd_axis_name=scope.resources.get(name),
        )
    return function


def _position(axes: Axes, name: str, outer: Sequence[str]) -> int | None:
    """Where the name stands once the outer names are taken away; None if the array does not carry it."""
    positions = axes.positions()
    if name not in positions:
        return None
    return positions[name] - sum(other in positions and positions[other] < positions[name] for other in outer)
