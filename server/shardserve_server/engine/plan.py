"""The plan of a call: everything that is decided before compiling, as a pure function of the call's header.

Equal headers have equal plans, so plans are kept by header; plans with equal keys share one executable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgpack

from shardserve_proto.abstract import Aval, Scope, constant_aval, enter, evaluate_mapped, identity_mapping
from shardserve_proto.dtypes import dtype_named, name_of
from shardserve_proto.errors import TooLarge
from shardserve_proto.frames import decode_header
from shardserve_proto.messages import CallRequest, check_call, segment_bytes
from shardserve_proto.programs import Constant, Mapping, Program, Step, validate
from shardserve_proto.specs import AUTO, MeshShape, P, Spec, spec_from_wire

from ..kernels.registry import Registry
from .constants import strengthen
from .labels import labels_as_specs
from .mesh import Meshes
from .placement import Placed, is_worth_spreading, merge, open_spec, place, place_freely

#: Plans are kept by header up to this size.
REMEMBERED_BYTES = 16 * 1024


@dataclass(frozen=True)
class Plan:
    """What one call will do.

    Attributes:
        call: the validated header.
        program, mapping: as they are traced (einsum's labels are specs by now).
        inputs: abstract values of the program's inputs; one that kept its value is a constant of the executable.
        arguments: where each input that is an array lies, in order.
        outputs: where each output lies.
        mesh: axes and sizes; None when the call runs on one device.
        key: equal for calls that may share an executable.
    """

    call: CallRequest
    program: Program
    mapping: Mapping
    inputs: tuple[Aval, ...]
    arguments: tuple[Placed, ...]
    outputs: tuple[Placed, ...]
    mesh: MeshShape | None
    key: tuple[Any, ...]

    @property
    def array_inputs(self) -> list[int]:
        """Numbers of the inputs that are arguments of the executable."""
        return array_numbers(self.inputs)


def array_numbers(inputs: Sequence[Aval]) -> list[int]:
    return [number for number, aval in enumerate(inputs) if aval.value is None]


@dataclass(frozen=True)
class _Question:
    """A validated call whose placement is still to be decided."""

    program: Program
    mapping: Mapping
    inputs: tuple[Aval, ...]
    outputs: tuple[Aval, ...]
    in_specs: tuple[P | None, ...]
    out_specs: tuple[P | None, ...]
    mesh: MeshShape

    def is_explicit(self) -> bool:
        """Whether the caller said anything about placement; then the whole mesh takes part."""
        given = (*self.in_specs, *self.out_specs)
        return any(spec is not None for spec in given) or any(_constraints(self.program))


class Planner:
    """Turns headers into plans, and keeps the plans of headers seen before.

    Arguments:
        memory_bytes: what all devices together can hold.
        entries: how many plans are kept.
    """

    def __init__(self, registry: Registry, meshes: Meshes, *, memory_bytes: int, entries: int) -> None:
        self._registry = registry
        self._meshes = meshes
        self._memory_bytes = memory_bytes
        self._remembered = lru_cache(maxsize=entries)(self._plan)

    def plan(self, header: bytes) -> Plan:
        """Validate a call and decide its placement.

        Raises:
            ShardserveError: any rule of the protocol, of named axes or of specs; TooLarge if it can never fit.
        """
        # Long headers are rare and would fill the memory that short ones share.
        return self._remembered(header) if len(header) <= REMEMBERED_BYTES else self._plan(header)

    def _plan(self, header: bytes) -> Plan:
        call = validate(CallRequest, decode_header(header))
        check_call(call)
        question = self._ask(call)
        self._check_size([*question.inputs, *question.outputs])
        arguments, outputs, mesh = _answer(question)
        key = _key(call, question, arguments, outputs, mesh)
        return Plan(call, question.program, question.mapping, question.inputs, arguments, outputs, mesh, key)

    def _ask(self, call: CallRequest) -> _Question:
        mesh = self._meshes.shape(call.mesh)
        scope = Scope(mesh=mesh)
        given = [_given_aval(call, number) for number in range(len(call.arguments))]
        mapping = call.mapping or identity_mapping(call.program)
        in_specs, out_specs = _specs(call.in_shardings, given), _specs(call.out_shardings, call.program.outputs)
        mapping, in_specs, out_specs = labels_as_specs(call.program, mapping, given, in_specs, out_specs)
        signatures = self._registry.signatures
        outputs = evaluate_mapped(call.program, mapping, given, scope, signatures)
        inputs = strengthen(call.program, mapping, given, scope, signatures)
        resources = enter(mapping, inputs, scope).resources
        merged_in = [
            merge(spec, axes, resources, ndim=aval.ndim, mesh=mesh, what=f"argument {number}")
            for number, (spec, axes, aval) in enumerate(zip(in_specs, mapping.in_axes, inputs, strict=True))
        ]
        merged_out = [
            merge(spec, axes, resources, ndim=aval.ndim, mesh=mesh, what=f"output {number}")
            for number, (spec, axes, aval) in enumerate(zip(out_specs, mapping.out_axes, outputs, strict=True))
        ]
        return _Question(
            call.program, mapping, tuple(inputs), tuple(outputs), tuple(merged_in), tuple(merged_out), mesh
        )

    def _check_size(self, avals: Sequence[Aval]) -> None:
        """Refuse by size what can never fit, before anything is allocated or compiled."""
        needed = sum(place(aval, P(), ()).nbytes for aval in avals)
        if needed > self._memory_bytes:
            largest = max(avals, key=lambda aval: place(aval, P(), ()).nbytes)
            raise TooLarge(
                f"the arguments and results take {needed} bytes ({largest} alone {place(largest, P(), ()).nbytes}), "
                f"but the devices hold {self._memory_bytes}; split the call, or reduce before you gather",
                details={"needed_bytes": needed, "limit_bytes": self._memory_bytes},
            )


def _given_aval(call: CallRequest, number: int) -> Aval:
    argument = call.arguments[number]
    if isinstance(argument, Constant):
        return constant_aval(argument.scalar)
    segment = call.segments[argument.segment]
    segment_bytes(segment, argument.segment)
    return Aval(segment.shape, dtype_named(segment.dtype))


def _specs(wire: tuple[Any, ...] | None, items: Sequence[Any]) -> list[Spec]:
    return [AUTO] * len(items) if wire is None else [spec_from_wire(spec) for spec in wire]


def _constraints(program: Program) -> Iterator[Step]:
    for step in program.steps:
        if step.specs is not None:
            yield step
        if step.program is not None:
            yield from _constraints(step.program)


def _answer(question: _Question) -> tuple[tuple[Placed, ...], tuple[Placed, ...], MeshShape | None]:
    """Decide where arguments and outputs lie, and on which mesh (None: one device)."""
    mesh, inputs = question.mesh, question.inputs
    arrays = array_numbers(inputs)
    if question.is_explicit():
        in_specs = [question.in_specs[n] or P() for n in arrays]
    elif is_worth_spreading([*(inputs[n] for n in arrays), *question.outputs], mesh):
        in_specs = [open_spec(inputs[n], question.mapping.in_axes[n], mesh) for n in arrays]
    else:
        alone = tuple(place(inputs[n], P(), ()) for n in arrays)
        return alone, tuple(place(aval, P(), ()) for aval in question.outputs), None
    arguments = tuple(place(inputs[n], spec, mesh) for n, spec in zip(arrays, in_specs, strict=True))
    outputs = tuple(
        place_freely(aval, mesh) if spec is None else place(aval, spec, mesh)
        for aval, spec in zip(question.outputs, question.out_specs, strict=True)
    )
    return arguments, outputs, mesh


def _key(
    call: CallRequest,
    question: _Question,
    arguments: Sequence[Placed],
    outputs: Sequence[Placed],
    mesh: MeshShape | None,
) -> tuple[Any, ...]:
    program = msgpack.packb([question.program.to_wire(), question.mapping.to_wire()])
    # repr tells 1 from True and 0.0 from -0.0, which are equal in Python.
    inputs = tuple((aval.shape, name_of(aval.strong_dtype), repr(aval.value)) for aval in question.inputs)
    specs = tuple(placed.spec for placed in (*arguments, *outputs))
    return program, inputs, specs, mesh, call.precision
