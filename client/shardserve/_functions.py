"""A user's function as a program: traced once for each form of its arguments, and remembered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shardserve_proto.abstract import Aval, Scope
from shardserve_proto.errors import ProgramError
from shardserve_proto.programs import Mapping, Program
from shardserve_proto.specs import AUTO, WireMesh, WireSpec

from ._arrays import Array, Leaf, aval_of, describe
from ._config import HEADERS_OF_A_TRACE, TRACES_KEPT
from ._fingerprint import fingerprint
from ._lru import Remembered
from ._specs import Shardings, read_shardings
from ._traced import TracedArray
from ._tracing import Trace
from ._transformed import Jitted, outputs_of
from ._tree import Tree, unflatten


@dataclass(frozen=True, eq=False)
class TracedFunction:
    """A program and what surrounds it.

    Attributes:
        mapping: of the whole program, when the function is one `xmap` or `vmap`.
        captured: arrays that the function refers to; they are sent behind its arguments.
        outputs: abstract results.
        out_tree: what the results are put together to.
        in_specs, out_specs: of the wire; None leaves all to the server.
        mesh: brought along by jax's NamedShardings.
        is_lasting: whether it holds as long as what the function refers to is the same.
        headers: of the calls that were made with it.
    """

    program: Program
    mapping: Mapping | None
    captured: tuple[Array, ...]
    outputs: tuple[Aval, ...]
    out_tree: Tree
    in_specs: tuple[WireSpec, ...] | None
    out_specs: tuple[WireSpec, ...] | None
    mesh: WireMesh | None
    is_lasting: bool
    headers: Remembered[bytes] = field(default_factory=lambda: Remembered(HEADERS_OF_A_TRACE))


_traces: Remembered[TracedFunction] = Remembered(TRACES_KEPT, lambda found: found.is_lasting)


def traced(function: Any, tree: Tree, leaves: Sequence[Leaf]) -> TracedFunction:
    """The function's program for arguments of this form; the function runs only if it, or what it sees, is new.

    Raises:
        ShardserveError: it cannot be traced.
    """
    seen = fingerprint(function)
    if seen is None:
        return trace_function(function, tree, leaves)
    return _traces.get((seen, tree, describe(leaves)), lambda: trace_function(function, tree, leaves))


def trace_function(function: Any, tree: Tree, leaves: Sequence[Leaf]) -> TracedFunction:
    """Run a function once on tracers.

    Arguments:
        tree: of the tuple of arguments.
        leaves: the arguments; only their shapes and dtypes matter, and the values of Python scalars.
    """
    if not callable(function):
        raise ProgramError(f"client.run takes a function and its arguments, not {function!r}")
    in_shardings, out_shardings = AUTO, AUTO
    if isinstance(function, Jitted):  # the outermost shardings are those of the call
        in_shardings, out_shardings, function = function.in_shardings, function.out_shardings, function.function
    trace = Trace(Scope(), None)
    tracers = [TracedArray(trace.add_input(aval_of(leaf))) for leaf in leaves]
    values, out_tree = outputs_of(trace, function, unflatten(tree, iter(tracers)))
    into = read_shardings(in_shardings, tree, "in_shardings")
    out = read_shardings(out_shardings, out_tree, "out_shardings")
    for shardings in (into, out):
        trace.note_mesh(shardings.mesh)
    program, mapping = unwrapped(trace.finish(values))
    return TracedFunction(
        program,
        mapping,
        tuple(trace.captured),
        tuple(value.aval for value in values),
        out_tree,
        _padded(into, len(trace.inputs)),
        out.specs,
        trace.mesh,
        trace.is_lasting,
    )


def _padded(shardings: Shardings, inputs: int) -> tuple[WireSpec, ...] | None:
    """The specs of the arguments, and the server's choice for captured arrays behind them."""
    if shardings.specs is None:
        return None
    open_spec: WireSpec = "auto"
    return shardings.specs + (open_spec,) * (inputs - len(shardings.specs))


def unwrapped(program: Program) -> tuple[Program, Mapping | None]:
    """A program that only calls a nested one, as that one and its mapping.

    The mapping is then that of the call itself, and its axis_resources place the arguments as they arrive.
    """
    if len(program.steps) != 1:
        return program, None
    (step,) = program.steps
    inputs = tuple(range(program.inputs))
    outputs = step.program and tuple(range(program.inputs, program.inputs + len(step.program.outputs)))
    if step.program is None or step.specs is not None or step.operands != inputs or program.outputs != outputs:
        return program, None
    return step.program, step.mapping
