"""Traces: what a function did to its tracers, step by step, until it is a program.

A trace is open while its function runs. Nested transforms open a trace within a trace; a value of an outer one that is
used inside becomes one more operand of the nested program. Shapes and dtypes come from the signatures' own rules, so a
mistake raises the same error here as it would on the server.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardserve_proto.abstract import Aval, Scope, check_constraint, constant_aval
from shardserve_proto.errors import ProgramError, ShardingError, ShardserveError, UntraceableFunction
from shardserve_proto.limits import LIMITS
from shardserve_proto.programs import Constant, Param, Program, Step, validate
from shardserve_proto.programs import Mapping as AxisMapping
from shardserve_proto.signatures import BUILTIN
from shardserve_proto.specs import WireMesh, WireSpec

from ._arrays import Array, as_array, aval_of, is_scalar
from ._config import CAPTURED_BYTES
from ._location import user_line
from ._remote import Remote


@dataclass(eq=False)
class Value:
    """One value of a trace; it gets its number when the trace becomes a program."""

    trace: Trace
    aval: Aval


Operand = Value | Constant


@dataclass(eq=False)
class _Record:
    """One step, in terms of values."""

    operands: tuple[Operand, ...]
    results: tuple[Value, ...]
    kernel: str | None = None
    params: dict[str, Param] = field(default_factory=dict)
    program: Program | None = None
    mapping: AxisMapping | None = None
    specs: tuple[WireSpec, ...] | None = None


def significant(kernel: str, params: Mapping[str, Param]) -> dict[str, Param]:
    """The parameters that differ from their defaults: equal calls have equal headers, however they were spelled."""
    defaults = {parameter.name: parameter.default for parameter in BUILTIN[kernel].parameters}
    return {name: value for name, value in params.items() if name not in defaults or value is not defaults[name]}


def _aval(given: Any, operand: Operand) -> Aval:
    # An int beyond 64 bits keeps its value here, so that a rule can refuse it where the result is an integer.
    return operand.aval if isinstance(operand, Value) else constant_aval(given)


def _step(record: _Record, numbers: Mapping[Value, int]) -> Step:
    operands = tuple(operand if isinstance(operand, Constant) else numbers[operand] for operand in record.operands)
    fields = {
        "kernel": record.kernel,
        "program": record.program,
        "mapping": record.mapping,
        "operands": operands,
        "params": record.params,
        "specs": record.specs,
    }
    return validate(Step, fields)


@contextmanager
def told_where(title: str = "") -> Iterator[None]:
    """Errors about shapes, dtypes, axes and specs name what raised them, and the user's line."""
    try:
        yield
    except UntraceableFunction:
        raise  # which names its line itself
    except ShardserveError as error:
        raise type(error)(f"{title}{error.message} ({user_line()})", details=error.details) from None


_current: ContextVar[Trace | None] = ContextVar("shardserve_trace", default=None)


class Trace:
    """The steps of one function.

    Arguments:
        scope: the named axes in sight.
        parent: the trace in which the function is called; None for the outermost.
    """

    def __init__(self, scope: Scope, parent: Trace | None) -> None:
        self.scope = scope
        self.parent = parent
        self.inputs: list[Value] = []
        self.lifted: list[Value] = []  # operands in the parent of the inputs that were added
        self.captured: list[Array] = []  # arrays behind the inputs that were added to the outermost
        self._captured_by_key: dict[Any, Value] = {}
        self._lifted_by_value: dict[Value, Value] = {}
        self._records: list[_Record] = []
        self.mesh: WireMesh | None = None  # brought along by jax's NamedShardings
        self.is_lasting = True
        self._steps = 0  # of the whole program; counted by the outermost
        self._is_open = True

    def add_input(self, aval: Aval) -> Value:
        if len(self.inputs) == LIMITS.segments:
            raise ProgramError(
                f"{user_line()}: the program has more than {LIMITS.segments} inputs, captured arrays included; stack "
                "them into fewer arrays",
                details={"limit": LIMITS.segments},
            )
        value = Value(self, aval)
        self.inputs.append(value)
        return value

    # --- operands ----------------------------------------------------------------------------------------------------

    def operand(self, given: Any, *, what: str = "") -> Operand:
        """Any operand as one of this trace: a tracer's value, a Python scalar, or an array that the function captured.

        Arguments:
            what: the operand in words, for messages.

        Raises:
            UntraceableFunction: a value of a function that has ended, or too large an array.
            UnsupportedArray: an array that cannot be carried.
        """
        value = getattr(given, "_value", None)
        if isinstance(value, Value):
            return self._own(value)
        if is_scalar(given):
            return Constant.of(given)
        if isinstance(given, Remote):
            raise UntraceableFunction(
                f"{user_line()} captures a resident array; pass it as an argument of the function, so that it is used "
                "where it lies"
            )
        return self._capture(given, what or f"the array in {user_line()}")

    def _own(self, value: Value) -> Value:
        """A value of this trace, or of one around it."""
        if value.trace is self:
            return value
        if self.parent is None or not value.trace._is_open:
            raise UntraceableFunction(
                f"{user_line()} uses a traced value outside of the function that made it; return it from there instead"
            )
        if value not in self._lifted_by_value:
            outer = self.parent._own(value)
            self.lifted.append(outer)
            self._lifted_by_value[value] = self.add_input(outer.aval)
        return self._lifted_by_value[value]

    def _capture(self, given: Any, what: str) -> Value:
        return self._own(self._outermost._capture_here(given, what))

    @property
    def _outermost(self) -> Trace:
        trace = self
        while trace.parent is not None:
            trace = trace.parent
        return trace

    def _capture_here(self, given: Any, what: str) -> Value:
        array = as_array(given, what=what)
        if not isinstance(given, np.ndarray | np.generic | list | tuple):
            self.is_lasting = False  # the next array that NumPy makes of it may be another
        if array.nbytes > CAPTURED_BYTES:
            raise UntraceableFunction(
                f"{user_line()} captures an array of {array.nbytes} bytes; a function may capture up to "
                f"{CAPTURED_BYTES}. Pass it as an argument, so that it is sent as data and can be placed",
                details={"nbytes": array.nbytes, "limit_bytes": CAPTURED_BYTES},
            )
        # Equal NumPy scalars are one; of a 0-d array the value may still change.
        key = (array.dtype, array.tobytes()) if isinstance(given, np.generic) else id(array)
        if key not in self._captured_by_key:
            self.captured.append(array)  # which also keeps its id from being given to another
            self._captured_by_key[key] = self.add_input(aval_of(array))
        return self._captured_by_key[key]

    # --- steps -------------------------------------------------------------------------------------------------------

    def kernel(self, name: str, operands: Sequence[Any], params: Mapping[str, Param]) -> list[Value]:
        """Add a step that runs a kernel.

        Raises:
            ShardserveError: what the kernel's own rule says, with the user's line.
        """
        given = significant(name, params)
        wired = tuple(map(self.operand, operands))
        avals = [_aval(*pair) for pair in zip(operands, wired, strict=True)]
        with told_where(f"{name}: "):
            results = BUILTIN[name].evaluate(avals, given, self.scope)
            for index, result in enumerate(results):
                self.scope.check_resources(result, f"result {index}")
        return self._add(_Record(wired, self._values(results), name, given))

    def program(
        self, program: Program, mapping: AxisMapping, operands: Sequence[Operand], avals: Sequence[Aval]
    ) -> list[Value]:
        """Add a step that runs a nested program, whose results are known."""
        return self._add(_Record(tuple(operands), self._values(avals), program=program, mapping=mapping))

    def constrain(self, given: Any, spec: WireSpec) -> Value:
        """Add a step that holds a value to a spec."""
        operand = self.operand(given)
        (result,) = BUILTIN["identity"].evaluate([_aval(given, operand)], {}, self.scope)
        check_constraint(spec, result, self.scope, what="the constraint")
        return self._add(_Record((operand,), self._values([result]), "identity", specs=(spec,)))[0]

    def _values(self, avals: Sequence[Aval]) -> tuple[Value, ...]:
        return tuple(Value(self, aval) for aval in avals)

    def _add(self, record: _Record) -> list[Value]:
        root = self._outermost
        root._steps += 1
        if root._steps > LIMITS.steps:
            raise ProgramError(
                f"{user_line()}: the function takes more than {LIMITS.steps} steps; a loop that Python runs is as many "
                "steps as rounds: use ss.vmap, a reduction or larger arrays, or split it over several calls",
                details={"limit": LIMITS.steps},
            )
        self._records.append(record)
        return list(record.results)

    def note_mesh(self, mesh: WireMesh | None) -> None:
        """A sharding of the function brought its mesh along.

        Raises:
            ShardingError: another one brought another mesh.
        """
        root = self._outermost
        if mesh is not None and root.mesh not in (None, mesh):
            raise ShardingError(f"the function's shardings are over two meshes, {root.mesh} and {mesh}; a call has one")
        root.mesh = mesh or root.mesh

    def axis_size(self, names: Param) -> int:
        """The size of a named axis, or the product of several.

        Raises:
            ShardserveError: what the kernel's own rule says, with the user's line.
        """
        with told_where("axis_size: "):
            BUILTIN["axis_size"].evaluate([], {"axis_name": names}, self.scope)
        given = names if isinstance(names, tuple) else (names,)
        return math.prod(self.scope.sizes[str(name)] for name in given)

    # --- the end -----------------------------------------------------------------------------------------------------

    def output(self, given: Any, *, what: str) -> Value:
        """A result of the function as a value; a Python scalar becomes an array here.

        Arguments:
            what: the result in words, for messages.
        """
        operand = self.operand(given, what=what)
        if isinstance(operand, Value) and operand.aval.value is None:
            return operand
        return self.kernel("identity", [given], {})[0]

    def finish(self, outputs: Sequence[Value]) -> Program:
        """The program, values numbered: inputs first, then the results of each step."""
        numbers = {value: number for number, value in enumerate(self.inputs)}
        steps = []
        for record in self._records:
            steps.append(_step(record, numbers))
            for value in record.results:
                numbers[value] = len(numbers)
        fields = {
            "inputs": len(self.inputs),
            "steps": tuple(steps),
            "outputs": tuple(numbers[value] for value in outputs),
        }
        return validate(Program, fields)

    @contextmanager
    def running(self) -> Iterator[None]:
        """The function of this trace runs: `current_trace` is this one."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)
            self._is_open = False


def current_trace(what: str) -> Trace:
    """The trace of the function that runs now.

    Arguments:
        what: who asks, for the message ("ss.dot").

    Raises:
        UntraceableFunction: no function is being traced.
    """
    trace = _current.get()
    if trace is None:
        raise UntraceableFunction(
            f"{what} works on traced values, inside a function that client.run(...) is given; "
            "outside, a Client has methods for arrays, for example client.dot(x, y)"
        )
    return trace
