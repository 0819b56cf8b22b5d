"""From a plan to an executable: slice to the true shape, run the program, pad the outputs, all inside one jit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding

from shardserve_proto.abstract import Aval, Scope
from shardserve_proto.dtypes import name_of
from shardserve_proto.errors import CompileFailed, TooLarge
from shardserve_proto.messages import CallReply, PlacementReport, Precision, Report, Segment
from shardserve_proto.specs import P, spec_to_wire

from ..kernels.registry import Registry, cast
from .mesh import sharding
from .named_axes import Runner
from .placement import Placed
from .plan import Plan
from .products import check_products
from .transfer import carrier

Sharding = NamedSharding | SingleDeviceSharding

PRECISIONS: dict[Precision, jax.lax.Precision] = {
    "highest": jax.lax.Precision.HIGHEST,
    "high": jax.lax.Precision.HIGH,
    "default": jax.lax.Precision.DEFAULT,
}
#: Rounding to a narrow float is part of the answer: XLA may not keep more digits between two steps.
_COMPILER_OPTIONS: dict[str, Any] = {"xla_allow_excess_precision": False}


@dataclass(frozen=True)
class Executable:
    """A compiled program and where its arrays lie.

    Attributes:
        in_shardings: of the padded arguments.
        out_shardings: of the padded outputs, the compiler's choices included.
        devices: in the mesh's order.
        template: the wire form of every reply, but for its times.
    """

    compiled: jax.stages.Compiled
    lowered_text: str
    in_shardings: tuple[Sharding, ...]
    out_shardings: tuple[Sharding, ...]
    devices: tuple[jax.Device, ...]
    template: dict[str, Any]

    def reply(self, *, compiled: bool, phases_s: dict[str, float]) -> dict[str, Any]:
        """The wire form of a `CallReply`; all but these two is the same for every call."""
        return {**self.template, "report": {**self.template["report"], "compiled": compiled, "phases_s": phases_s}}

    def hlo(self) -> str:
        """The optimised HLO text, where collectives can be counted."""
        return str(self.compiled.as_text())

    def bytes_per_device(self) -> dict[str, int]:
        """Bytes of arguments, outputs and temporaries on each device."""
        analysis: Any = self.compiled.memory_analysis()
        return {
            "arguments": int(analysis.argument_size_in_bytes),
            "outputs": int(analysis.output_size_in_bytes),
            "temporaries": int(analysis.temp_size_in_bytes),
        }


def build(plan: Plan, registry: Registry, mesh: Mesh | None, device: jax.Device, *, memory_bytes: int) -> Executable:
    """Trace and compile a plan.

    Arguments:
        mesh: of the plan; None puts everything on `device`.

    Raises:
        CompileFailed: XLA refused the program.
        TooLarge: the program, or a product in it, needs more memory than all devices have.
    """
    shardings_in = tuple(_sharding(placed, mesh, device) for placed in plan.arguments)
    shardings_out = tuple(None if p.spec is None else _sharding(p, mesh, device) for p in plan.outputs)
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
    devices = (device,) if mesh is None else tuple(mesh.devices.flat)
    chosen = _chosen(compiled, shardings_out)
    template = _template(plan, shardings_in, chosen, devices)
    executable = Executable(compiled, lowered.as_text(), shardings_in, chosen, devices, template)
    _check_memory(executable, memory_bytes)
    return executable


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
    return function.lower(*(jax.ShapeDtypeStruct(p.padded_shape, carrier(p.aval.strong_dtype)) for p in plan.arguments))


def _compile(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    try:
        return lowered.compile(compiler_options=_COMPILER_OPTIONS)
    except jax.errors.JaxRuntimeError as error:
        raise CompileFailed(f"the compiler refused the program: {str(error).splitlines()[0][:300]}") from error


def _sharding(placed: Placed, mesh: Mesh | None, device: jax.Device) -> Sharding:
    if mesh is None or placed.spec is None:
        return SingleDeviceSharding(device)
    return sharding(mesh, placed.spec)


def _chosen(compiled: jax.stages.Compiled, asked: Sequence[Sharding | None]) -> tuple[Sharding, ...]:
    found = compiled.output_shardings
    return tuple(f if a is None else a for a, f in zip(asked, found, strict=True))


def _template(
    plan: Plan, shardings_in: Sequence[Sharding], shardings_out: Sequence[Sharding], devices: Sequence[jax.Device]
) -> dict[str, Any]:
    segments = tuple(
        Segment(dtype=name_of(placed.aval.strong_dtype), shape=placed.aval.shape, nbytes=placed.nbytes)
        for placed in plan.outputs
    )
    report = Report(
        device_kind=devices[0].device_kind,
        mesh=plan.mesh or (),
        devices=tuple(device.id for device in devices),
        precision=plan.call.precision,
        arguments=tuple(_placement(*pair) for pair in zip(plan.arguments, shardings_in, strict=True)),
        outputs=tuple(_placement(*pair) for pair in zip(plan.outputs, shardings_out, strict=True)),
        compiled=False,
        phases_s={},
    )
    # Replies are encoded whole: a reader of the wire finds every field, defaults included.
    return CallReply(segments=segments, report=report).model_dump()


def _placement(placed: Placed, sharding: Sharding) -> PlacementReport:
    spec = P(*sharding.spec) if isinstance(sharding, NamedSharding) else P()
    return PlacementReport(
        dtype=name_of(placed.aval.strong_dtype),
        shape=placed.aval.shape,
        spec=spec_to_wire(spec),
        padded_shape=placed.padded_shape,
        shard_shape=sharding.shard_shape(placed.padded_shape),
    )


def _check_memory(executable: Executable, memory_bytes: int) -> None:
    needed = sum(executable.bytes_per_device().values()) * len(executable.devices)
    if needed > memory_bytes:
        raise TooLarge(
            f"the compiled program needs {needed} bytes on {len(executable.devices)} devices, temporaries included, "
            f"but they hold {memory_bytes}; split the call",
            details={"needed_bytes": needed, "limit_bytes": memory_bytes},
        )


def _function(plan: Plan, registry: Registry, mesh: Mesh | None) -> Any:
    runner = Runner(registry, PRECISIONS[plan.call.precision], mesh)
    scope = Scope(mesh=plan.mesh)

    def run(*padded: jax.Array) -> tuple[jax.Array, ...]:
        arrays = iter(_strip(array, placed, mesh) for array, placed in zip(padded, plan.arguments, strict=True))
        values = [next(arrays) if aval.value is None else aval.value for aval in plan.inputs]
        outputs, avals = runner.run_mapped(plan.program, plan.mapping, values, plan.inputs, scope)
        return tuple(
            _pad(output, aval, placed, mesh) for output, aval, placed in zip(outputs, avals, plan.outputs, strict=True)
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
