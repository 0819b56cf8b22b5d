"""From a plan to an executable: slice to the true shape, run the program, pad the outputs, all inside one jit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from shardserve_proto.abstract import Aval, Scope
from shardserve_proto.dtypes import name_of
from shardserve_proto.errors import CompileFailed, TooLarge
from shardserve_proto.frames import encode_header
from shardserve_proto.messages import PlacementReport, Precision, Report, Segment
from shardserve_proto.specs import P, spec_to_wire

from ..kernels.registry import Registry, cast
from .mesh import Meshes, Sharding, sharding
from .move import Move, build_move
from .named_axes import Runner
from .placement import Placed, Where, place, trimmed
from .plan import Plan
from .products import check_products
from .transfer import carrier

PRECISIONS: dict[Precision, jax.lax.Precision] = {
    "highest": jax.lax.Precision.HIGHEST,
    "high": jax.lax.Precision.HIGH,
    "default": jax.lax.Precision.DEFAULT,
}
#: Rounding to a narrow float is part of the answer: XLA may not keep more digits between two steps.
_COMPILER_OPTIONS: dict[str, Any] = {"xla_allow_excess_precision": False}


#: A program of so little work takes a CPU some 0.05 ms.
QUICK_FLOPS = 1e6
QUICK_BYTES = 2**19
#: An output of an open spec is padded in every dimension before the compiler chooses one. A large one that has so much
#: more than it needs then is compiled once more.
WASTE_BYTES = 2**20
WASTE_PART = 1.1
_EMPTY_MAP = b"\x80"


@dataclass(frozen=True)
class Executable:
    """A compiled program and where its arrays lie.

    Attributes:
        run: padded arguments -> padded outputs.
        in_shardings: of the padded arguments.
        moves: for each argument that may be resident elsewhere, what brings it here.
        outputs: where each output lies, the compiler's choices included.
        devices: in the mesh's order.
        device_bytes: arguments, outputs and temporaries on all devices together; those of a transfer count its results.
        report: the wire form of every report, but for its times.
        compiled: None for a transfer, which is not compiled.
        is_quick: it runs in less time than another thread takes to wake up.
    """

    run: Callable[..., Sequence[jax.Array]]
    in_shardings: tuple[Sharding, ...]
    moves: tuple[Move | None, ...]
    outputs: tuple[Where, ...]
    devices: tuple[jax.Device, ...]
    device_bytes: int
    report: dict[str, Any]
    compiled: jax.stages.Compiled | None = None
    lowered_text: str = ""
    is_quick: bool = False
    _replies: dict[tuple[tuple[bool, ...], bool], bytes] = field(default_factory=dict, repr=False)

    def reply(self, plan: Plan, *, compiled: bool, phases_s: dict[str, float]) -> bytes:
        """The header of a reply: all of it but the seconds, which stand last, is remembered."""
        key = (tuple(keep is None for keep in plan.kept), compiled)
        before = self._replies.get(key)
        if before is None:
            report = {**self.report, "compiled": compiled, "phases_s": {}}
            whole = encode_header({"segments": list(map(segment_of, plan.data_outputs)), "report": report})
            before = self._replies[key] = whole.removesuffix(_EMPTY_MAP)
        return before + encode_header(phases_s)

    def hlo(self) -> str:
        """The optimised HLO text, where collectives can be counted."""
        return "" if self.compiled is None else str(self.compiled.as_text())

    def bytes_per_device(self) -> dict[str, int]:
        """Bytes of arguments, outputs and temporaries on each device."""
        return memory_of(self.compiled) if self.compiled is not None else {}


def memory_of(compiled: jax.stages.Compiled) -> dict[str, int]:
    """What the compiler says a program takes on each device."""
    analysis: Any = compiled.memory_analysis()
    return {
        "arguments": int(analysis.argument_size_in_bytes),
        "outputs": int(analysis.output_size_in_bytes),
        "temporaries": int(analysis.temp_size_in_bytes),
    }


def segment_of(placed: Placed) -> dict[str, Any]:
    """The wire form of the segment that an output becomes."""
    segment = Segment(dtype=name_of(placed.aval.strong_dtype), shape=placed.aval.shape, nbytes=placed.nbytes)
    return segment.model_dump()


def build(plan: Plan, registry: Registry, meshes: Meshes, *, memory_bytes: int) -> Executable:
    """Trace and compile.

    Raises:
        CompileFailed: XLA refused the program.
        TooLarge: the program, or a product in it, needs more memory than all devices have.
    """
    if plan.is_transfer:
        return _transfer(plan, meshes)
    mesh = meshes.of(plan.mesh)
    shardings_in = tuple(meshes.sharding(where) for where in plan.arguments)
    shardings_out = tuple(None if o.placed.spec is None else meshes.sharding(o) for o in plan.outputs)
    lowered = _lower(plan, registry, mesh, shardings_in, shardings_out)
    check_products(lowered.as_text(), memory_bytes)
    try:
        compiled = _compile(lowered)
    except ValueError:
        if mesh is None or None not in shardings_out:
            raise
        # XLA chose to split an output over a part of a mesh axis, which JAX 0.12 has no name for.
        shardings_out = tuple(sharding(mesh, P()) if chosen is None else chosen for chosen in shardings_out)
        lowered = _lower(plan, registry, mesh, shardings_in, shardings_out)
        compiled = _compile(lowered)
    found = compiled.output_shardings
    pairs = zip(plan.outputs, shardings_out, found, strict=True)
    outputs = tuple(_found(where, f if asked is None else asked) for where, asked, f in pairs)
    exact = tuple(map(_exact, outputs))
    if exact != outputs:
        return build(replace(plan, outputs=exact), registry, meshes, memory_bytes=memory_bytes)
    devices = meshes.members(plan.mesh)
    needed = sum(memory_of(compiled).values()) * len(devices)
    _check_memory(needed, devices, memory_bytes)
    return Executable(
        run=compiled,
        in_shardings=shardings_in,
        moves=_moves(plan, meshes),
        outputs=outputs,
        devices=devices,
        device_bytes=needed,
        report=_report(plan, outputs, meshes),
        compiled=compiled,
        lowered_text=lowered.as_text(),
        is_quick=mesh is None and devices[0].platform == "cpu" and _is_quick(compiled),
    )


def _transfer(plan: Plan, meshes: Meshes) -> Executable:
    """What only moves arrays is not compiled: where an argument arrives is where its result lies."""
    shardings = tuple(meshes.sharding(where) for where in plan.arguments)
    pairs = zip(plan.arguments, shardings, strict=True)
    sizes = [bytes_on_devices(where.placed, sharding) for where, sharding in pairs]
    passed = plan.program.outputs if plan.cut is None else (0,)
    return Executable(
        run=lambda *arrays: [arrays[number] for number in passed],
        in_shardings=shardings,
        moves=_moves(plan, meshes),
        outputs=plan.outputs,
        devices=meshes.members(plan.mesh),
        device_bytes=sum(sizes),
        report=_report(plan, plan.outputs, meshes),
    )


def bytes_on_devices(placed: Placed, sharding: Sharding) -> int:
    """What an array takes on all its devices, padding and replicas included."""
    shard = sharding.shard_shape(placed.padded_shape)
    return math.prod(shard) * carrier(placed.aval.strong_dtype).itemsize * len(sharding.device_set)


def _moves(plan: Plan, meshes: Meshes) -> tuple[Move | None, ...]:
    return tuple(None if move is None else build_move(*move, meshes) for move in plan.moves)


def _exact(where: Where) -> Where:
    """An output at the spec that the compiler chose, padded no more than that spec needs, where this saves much."""
    placed = where.placed
    assert placed.spec is not None  # noqa: S101 - it was found
    if where.mesh is None or math.prod(placed.padded_shape) * placed.aval.strong_dtype.itemsize < WASTE_BYTES:
        return where
    tight = place(placed.aval, placed.spec, where.mesh)
    is_wasteful = math.prod(placed.padded_shape) > WASTE_PART * math.prod(tight.padded_shape)
    return replace(where, placed=tight) if is_wasteful else where


def _found(where: Where, chosen: Sharding) -> Where:
    if where.placed.spec is not None:
        return where
    spec = trimmed(P(*chosen.spec)) if isinstance(chosen, NamedSharding) else P()
    return replace(where, placed=replace(where.placed, spec=spec))


def _is_quick(compiled: jax.stages.Compiled) -> bool:
    costs: Any = compiled.cost_analysis()
    costs = costs[0] if isinstance(costs, list) else costs or {}
    work = {"flops": QUICK_FLOPS, "transcendentals": QUICK_FLOPS / 10, "bytes accessed": QUICK_BYTES}
    return all(costs.get(kind, 0.0) <= most for kind, most in work.items())


def _lower(
    plan: Plan,
    registry: Registry,
    mesh: Mesh | None,
    shardings_in: Sequence[Sharding],
    shardings_out: Sequence[Sharding | None],
) -> jax.stages.Lowered:
    function = jax.jit(
        _function(plan, registry, mesh), in_shardings=tuple(shardings_in), out_shardings=tuple(shardings_out)
    )
    placed = [where.placed for where in plan.arguments]
    return function.lower(*(jax.ShapeDtypeStruct(p.padded_shape, carrier(p.aval.strong_dtype)) for p in placed))


def _compile(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    try:
        return lowered.compile(compiler_options=_COMPILER_OPTIONS)
    except jax.errors.JaxRuntimeError as error:
        raise CompileFailed(f"the compiler refused the program: {str(error).splitlines()[0][:300]}") from error


def _report(plan: Plan, outputs: Sequence[Where], meshes: Meshes) -> dict[str, Any]:
    devices = meshes.members(plan.mesh)
    moves = zip(plan.arguments, plan.moves, strict=True)
    report = Report(
        device_kind=devices[0].device_kind,
        mesh=plan.mesh or (),
        devices=tuple(device.id for device in devices),
        precision=plan.call.precision,
        arguments=tuple(_placement(where, meshes, moved=move is not None) for where, move in moves),
        outputs=tuple(_placement(where, meshes) for where in outputs),
        compiled=False,
        phases_s={},
    )
    # Replies are encoded whole: a reader of the wire finds every field, defaults included.
    return report.model_dump()


def _placement(where: Where, meshes: Meshes, *, moved: bool = False) -> PlacementReport:
    placed = where.placed
    return PlacementReport(
        dtype=name_of(placed.aval.strong_dtype),
        shape=placed.aval.shape,
        spec=spec_to_wire(placed.spec or P()),
        padded_shape=placed.padded_shape,
        shard_shape=meshes.sharding(where).shard_shape(placed.padded_shape),
        moved=moved,
    )


def _check_memory(needed: int, devices: Sequence[jax.Device], memory_bytes: int) -> None:
    if needed > memory_bytes:
        raise TooLarge(
            f"the compiled program needs {needed} bytes on {len(devices)} devices, temporaries included, "
            f"but they hold {memory_bytes}; split the call",
            details={"needed_bytes": needed, "limit_bytes": memory_bytes},
        )


def _function(plan: Plan, registry: Registry, mesh: Mesh | None) -> Any:
    runner = Runner(registry, PRECISIONS[plan.call.precision], mesh)
    scope = Scope(mesh=plan.mesh)

    def run(*padded: jax.Array) -> tuple[jax.Array, ...]:
        arrays = iter(_strip(array, where.placed, mesh) for array, where in zip(padded, plan.arguments, strict=True))
        values = [next(arrays) if aval.value is None else aval.value for aval in plan.inputs]
        outputs, avals = runner.run_mapped(plan.program, plan.mapping, values, plan.inputs, scope)
        return tuple(
            _pad(output, aval, where.placed, mesh)
            for output, aval, where in zip(outputs, avals, plan.outputs, strict=True)
        )

    return run


def _strip(array: jax.Array, placed: Placed, mesh: Mesh | None) -> jax.Array:
    """The true shape. XLA keeps ceil(n/k) rows on each device and masks the rest itself, without communication."""
    array = cast(array, placed.aval.strong_dtype)
    if not placed.is_padded:
        return array
    return _hold(jax.lax.slice(array, [0] * array.ndim, placed.aval.shape), placed.spec, mesh)


def _pad(output: jax.Array, aval: Aval, placed: Placed, mesh: Mesh | None) -> jax.Array:
    if output.shape != placed.aval.shape or aval.strong_dtype != output.dtype:
        raise RuntimeError(f"the program gave {output.dtype}{output.shape}, planned was {placed.aval}")
    output = cast(output, carrier(output.dtype))
    if not placed.is_padded:
        return output
    output = _hold(output, placed.spec, mesh)
    widths = [(0, padded - true, 0) for padded, true in zip(placed.padded_shape, output.shape, strict=True)]
    return jax.lax.pad(output, jax.numpy.zeros((), output.dtype), widths)


def _hold(array: jax.Array, spec: P | None, mesh: Mesh | None) -> jax.Array:
    if mesh is None or spec is None:
        return array
    held: jax.Array = jax.lax.with_sharding_constraint(array, sharding(mesh, spec))
    return held
