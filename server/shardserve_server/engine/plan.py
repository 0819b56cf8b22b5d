"""The plan of a call: everything that is decided before compiling, as a pure function of the call's header and of where
its resident arrays lie.

Equal headers have equal plans, so plans are kept by header; plans with equal keys share one executable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import msgpack

from shardserve_proto.abstract import Aval, Scope, constant_aval, enter, evaluate_mapped, identity_mapping
from shardserve_proto.dtypes import dtype_named, name_of
from shardserve_proto.errors import ShardingError, TooLarge
from shardserve_proto.frames import decode_header
from shardserve_proto.messages import ArrayArgument, CallRequest, Keep, check_call, segment_bytes
from shardserve_proto.programs import Constant, Mapping, Program, Step, validate
from shardserve_proto.specs import AUTO, MeshShape, P, Spec, spec_from_wire

from ..kernels.registry import Registry
from .constants import strengthen
from .cut import Cut, cut_of
from .labels import labels_as_specs
from .mesh import Meshes
from .placement import (
    REPLICATE_BYTES,
    Placed,
    Where,
    is_worth_spreading,
    merge,
    nbytes,
    open_spec,
    place,
    place_freely,
)

#: Plans are kept by header up to this size.
REMEMBERED_BYTES = 16 * 1024


@dataclass(frozen=True)
class Plan:
    """What one call will do.

    Attributes:
        call: the validated header.
        program, mapping: as they are traced (einsum's labels are specs by now).
        inputs: abstract values of the program's inputs; one that kept its value is a constant of the executable.
        arguments: where each input that is an array lies during the call, in order.
        residents: for each of these, where it lies now; None for one that is uploaded.
        outputs: where each output lies; the spec of one may be open.
        kept: for each output, what to keep of it; None for its data.
        mesh: axes and sizes; None when the call runs on one device.
        is_transfer: the call computes nothing; it moves arrays on to, off, or between devices.
        cut: of a transfer that brings a part of one resident array to the caller: that part.
        key: equal for calls that may share an executable.
    """

    call: CallRequest
    program: Program
    mapping: Mapping
    inputs: tuple[Aval, ...]
    arguments: tuple[Where, ...]
    residents: tuple[Where | None, ...]
    outputs: tuple[Where, ...]
    kept: tuple[Keep | None, ...]
    mesh: MeshShape | None
    is_transfer: bool
    key: tuple[Any, ...]
    cut: Cut | None = None

    @cached_property
    def array_inputs(self) -> list[int]:
        """Numbers of the inputs that are arguments of the executable."""
        return array_numbers(self.inputs)

    @cached_property
    def moves(self) -> list[tuple[Where, Where] | None]:
        """For each argument that is resident elsewhere: from where to where."""
        pairs = zip(self.residents, self.arguments, strict=True)
        return [None if source in (None, target) else (source, target) for source, target in pairs]

    @cached_property
    def data_outputs(self) -> list[Placed]:
        """The outputs that go back to the caller."""
        return [where.placed for where, keep in zip(self.outputs, self.kept, strict=True) if keep is None]

    @cached_property
    def data_bytes(self) -> int:
        """What goes back to the caller."""
        return sum(placed.nbytes for placed in self.data_outputs)

    @cached_property
    def upload_bytes(self) -> int:
        """What comes from the caller."""
        pairs = zip(self.arguments, self.residents, strict=True)
        return sum(where.placed.nbytes for where, lies in pairs if lies is None)


def array_numbers(inputs: Sequence[Aval]) -> list[int]:
    return [number for number, aval in enumerate(inputs) if aval.value is None]


@dataclass(frozen=True)
class _Question:
    """A validated call whose placement is still to be decided.

    Attributes:
        residents: for each input, where it lies already.
        names_mesh: whether the caller chose the mesh.
        shares_cores: whether the devices are parts of one CPU.
    """

    program: Program
    mapping: Mapping
    inputs: tuple[Aval, ...]
    residents: tuple[Where | None, ...]
    outputs: tuple[Aval, ...]
    in_specs: tuple[P | None, ...]
    out_specs: tuple[P | None, ...]
    mesh: MeshShape
    names_mesh: bool
    shares_cores: bool

    def is_explicit(self) -> bool:
        """Whether specs, or where arrays lie, say anything about placement; then the whole mesh takes part."""
        given = (*self.in_specs, *self.out_specs)
        is_given = any(spec is not None for spec in given) or any(_constraints(self.program))
        return is_given or any(where is not None and where.mesh is not None for where in self.residents)

    def is_worth_spreading(self) -> bool:
        """Whether a call that says nothing about placement runs on the whole mesh.

        Resident arguments lie on one device here; a call stays with them unless they are cheap to move.
        """
        resident = [aval for aval, lies in zip(self.inputs, self.residents, strict=True) if lies is not None]
        if sum(map(nbytes, resident)) >= REPLICATE_BYTES:
            return False
        # Devices that share the host's cores read no faster together; they do make large results faster, in parts that
        # the allocator keeps (measured: a dot of 16 MiB takes 1.4 times as long on eight, an exp of 32 MiB a quarter).
        inputs = [] if self.shares_cores else [aval for aval in self.inputs if aval.value is None]
        return is_worth_spreading([*inputs, *self.outputs], self.mesh)

    def new_arrays(self) -> list[Aval]:
        """What the call brings on to the devices; the results of a transfer are its inputs."""
        inputs = [aval for aval, lies in zip(self.inputs, self.residents, strict=True) if lies is None]
        return inputs if self.is_transfer else [*inputs, *self.outputs]

    @property
    def is_transfer(self) -> bool:
        """Whether the program computes nothing; a scalar that became no array is compiled into one."""
        has_names = any(axes.names for axes in (*self.mapping.in_axes, *self.mapping.out_axes))
        return not self.program.steps and not has_names and len(array_numbers(self.inputs)) == len(self.inputs)


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
        self._remembered_calls = lru_cache(maxsize=entries)(self._read)
        self._remembered = lru_cache(maxsize=entries)(self._plan)

    def call(self, header: bytes) -> CallRequest:
        """The call of a header.

        Raises:
            ShardserveError: it breaks a rule that needs neither shapes nor devices.
        """
        return self._remembered_calls(header) if len(header) <= REMEMBERED_BYTES else self._read(header)

    def _read(self, header: bytes) -> CallRequest:
        call = validate(CallRequest, decode_header(header))
        check_call(call)
        return call

    def plan(self, header: bytes, residents: tuple[Where | None, ...] = ()) -> Plan:
        """Validate a call and decide its placement.

        Arguments:
            residents: for each argument, where it lies already; may be left out when none does.

        Raises:
            ShardserveError: any rule of the protocol, of named axes or of specs; TooLarge if it can never fit.
        """
        # Long headers are rare and would fill the memory that short ones share.
        if len(header) <= REMEMBERED_BYTES:
            return self._remembered(header, residents)
        return self._plan(header, residents)

    def _plan(self, header: bytes, residents: tuple[Where | None, ...]) -> Plan:
        call = self.call(header)
        question = self._ask(call, residents or (None,) * len(call.arguments))
        cut = cut_of(call, question.residents)
        self._check_size(question.new_arrays())
        arguments, outputs, mesh = _answer(question) if cut is None else _answer_cut(question)
        numbers = array_numbers(question.inputs)
        plan = Plan(
            call=call,
            program=question.program,
            mapping=question.mapping,
            inputs=question.inputs,
            arguments=arguments,
            residents=tuple(question.residents[number] for number in numbers),
            outputs=outputs,
            kept=call.kept(),
            mesh=mesh,
            is_transfer=question.is_transfer or cut is not None,
            key=(),
            cut=cut,
        )
        return replace(plan, key=_key(plan))

    def _ask(self, call: CallRequest, residents: tuple[Where | None, ...]) -> _Question:
        lying = [where.mesh for where in residents if where is not None and where.mesh is not None]
        mesh = lying[0] if lying and call.mesh is None else self._meshes.shape(call.mesh)
        scope = Scope(mesh=mesh)
        given = [_given_aval(call, number, where) for number, where in enumerate(residents)]
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
            call.program,
            mapping,
            tuple(inputs),
            residents,
            tuple(outputs),
            tuple(merged_in),
            tuple(merged_out),
            mesh,
            call.mesh is not None,
            self._meshes.devices[0].platform == "cpu",
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


def _given_aval(call: CallRequest, number: int, where: Where | None) -> Aval:
    argument = call.arguments[number]
    if isinstance(argument, Constant):
        return constant_aval(argument.scalar)
    if isinstance(argument, ArrayArgument):
        assert where is not None  # noqa: S101 - whoever plans a call looks its arrays up first
        return where.placed.aval
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


_Answer = tuple[tuple[Where, ...], tuple[Where, ...], MeshShape | None]


def _answer(question: _Question) -> _Answer:
    """Decide where arguments and outputs lie, and on which mesh (None: one device)."""
    if question.is_transfer:
        return _answer_transfer(question)
    arrays = array_numbers(question.inputs)
    if question.is_explicit():
        arguments = [_explicit(question, number) for number in arrays]
    elif question.is_worth_spreading():
        arguments = [_open(question, number) for number in arrays]
    else:
        alone = tuple(_alone(question.inputs[number]) for number in arrays)
        return alone, tuple(map(_alone, question.outputs)), None
    mesh = question.mesh
    outputs = tuple(
        Where(place_freely(aval, mesh) if spec is None else place(aval, spec, mesh), mesh)
        for aval, spec in zip(question.outputs, question.out_specs, strict=True)
    )
    return tuple(arguments), outputs, mesh


def _answer_cut(question: _Question) -> _Answer:
    """A part of a resident array, which stays where it is."""
    (lies,) = question.residents
    assert lies is not None  # noqa: S101 - what is cut is resident
    return (lies,), (Where(place(question.outputs[0], P(), ()), lies.mesh),), lies.mesh


def _answer_transfer(question: _Question) -> _Answer:
    """Arrays that only move: each goes where its own result is wanted, and stays where it is if nobody says."""
    wanted: dict[int, P] = {}
    for number, spec in zip(question.program.outputs, question.out_specs, strict=True):
        if spec is not None and wanted.setdefault(number, spec) != spec:
            raise ShardingError(f"argument {number} is two results, with the specs {wanted[number]} and {spec}")
    is_spread = is_worth_spreading(question.inputs, question.mesh)
    arguments = tuple(
        _transferred(question, number, wanted.get(number), is_spread=is_spread)
        for number in range(len(question.inputs))
    )
    meshes = [where.mesh for where in arguments if where.mesh is not None]
    outputs = tuple(arguments[number] for number in question.program.outputs)
    return arguments, outputs, meshes[0] if meshes else None


def _transferred(question: _Question, number: int, wanted: P | None, *, is_spread: bool) -> Where:
    aval, lies = question.inputs[number], question.residents[number]
    spec = question.in_specs[number] if wanted is None else wanted
    if spec is not None:
        return _settled(question, number, spec)
    if lies is not None and (not question.names_mesh or lies.mesh == question.mesh):
        return lies
    return _open(question, number) if is_spread or lies is not None else _alone(aval)


def _explicit(question: _Question, number: int) -> Where:
    """An argument of a call in which something was said about placement."""
    spec, lies = question.in_specs[number], question.residents[number]
    if spec is None and lies is not None:
        return lies if lies.mesh == question.mesh else _open(question, number)
    return _settled(question, number, spec or P())


def _settled(question: _Question, number: int, spec: P) -> Where:
    """At a spec; an array that lies there already keeps its own padding."""
    lies = question.residents[number]
    if lies is not None and lies.mesh == question.mesh and lies.placed.spec == spec:
        return lies
    return Where(place(question.inputs[number], spec, question.mesh), question.mesh)


def _open(question: _Question, number: int) -> Where:
    """Where an argument goes whose placement is open, in a call that is spread over the mesh."""
    aval, mesh, lies = question.inputs[number], question.mesh, question.residents[number]
    if lies is not None and lies.placed.spec and _has_axes(mesh, lies.placed.spec):
        return Where(place(aval, lies.placed.spec, mesh), mesh)  # of another mesh, whose axes have the same names
    return Where(place(aval, open_spec(aval, question.mapping.in_axes[number], mesh), mesh), mesh)


def _has_axes(mesh: MeshShape, spec: P) -> bool:
    used = {axis for dimension in range(len(spec)) for axis in spec.axes_of(dimension)}
    return used <= {axis for axis, _ in mesh}


def _alone(aval: Aval) -> Where:
    return Where(place(aval, P(), ()), None)


def _key(plan: Plan) -> tuple[Any, ...]:
    program = msgpack.packb([plan.program.to_wire(), plan.mapping.to_wire()])
    # repr tells 1 from True and 0.0 from -0.0, which are equal in Python.
    inputs = tuple((aval.shape, name_of(aval.strong_dtype), repr(aval.value)) for aval in plan.inputs)
    places = tuple(
        (where.placed.spec, where.placed.padded_shape, where.mesh) for where in (*plan.arguments, *plan.outputs)
    )
    return program, inputs, places, tuple(plan.moves), plan.mesh, plan.call.precision
