"""The wire form of a program: inputs, steps, outputs, and the mapping of a program over named axes.

Values are numbered: the inputs first, then the results of each step in order. A step's operands and a program's outputs
are such numbers; an operand may also be a constant, which adapts to its partner's dtype as a Python scalar does.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from .errors import InvalidRequest, ProgramError
from .limits import LIMITS
from .specs import Axes, Name, WireSpec

Scalar: TypeAlias = bool | int | float | complex


class WireModel(BaseModel):
    """Strict, immutable, hashable; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    def to_wire(self) -> dict[str, Any]:
        """The fields that were set, as msgpack and JSON carry them."""
        return self.model_dump(exclude_defaults=True)


class Constant(WireModel):
    """A Python scalar: `{"value": 2}`, or `{"complex": [re, im]}`."""

    value: bool | int | float | None = None
    complex: tuple[float, float] | None = None  # shadows the builtin within this class only

    @model_validator(mode="after")
    def _one_of_two(self) -> Constant:
        if (self.value is None) == (self.complex is None):
            raise ValueError("a constant has either a value or a complex pair")
        return self

    @classmethod
    def of(cls, scalar: Scalar) -> Constant:
        if isinstance(scalar, builtins.complex):
            return cls(complex=(scalar.real, scalar.imag))
        if isinstance(scalar, int) and not -(2**63) <= scalar < 2**64:
            scalar = float(scalar)  # no integer dtype takes it, and msgpack has 64 bits
        return cls(value=scalar)

    @property
    def scalar(self) -> Scalar:
        if self.complex is not None:
            return builtins.complex(*self.complex)
        assert self.value is not None  # noqa: S101 - the validator's own promise
        return self.value

    def __hash__(self) -> int:
        return hash(repr(self))

    def __eq__(self, other: object) -> bool:
        # 1, 1.0 and True are equal in Python, but they are different constants; so are 0.0 and -0.0.
        return isinstance(other, Constant) and repr(self) == repr(other)


ParamScalar: TypeAlias = bool | int | float | str | None
_ParamRow: TypeAlias = Annotated[tuple[ParamScalar, ...], Field(fail_fast=True)]
Param: TypeAlias = ParamScalar | Annotated[tuple[ParamScalar | _ParamRow, ...], Field(fail_fast=True)]
Operand: TypeAlias = int | Constant


class Mapping(WireModel):
    """How a program runs over named axes (the semantics of `xmap`).

    Attributes:
        in_axes: one specification for each input.
        out_axes: one for each output; positions are those of the final array.
        axis_sizes: sizes of names that no input defines.
        axis_resources: the mesh axes that split a name; a name without an entry is whole on each device, unless it
            is itself the name of a mesh axis.
    """

    in_axes: Annotated[tuple[Axes, ...], Field(max_length=LIMITS.segments, fail_fast=True)] = ()
    out_axes: Annotated[tuple[Axes, ...], Field(max_length=LIMITS.segments, fail_fast=True)] = ()
    axis_sizes: Annotated[tuple[tuple[Name, int], ...], Field(max_length=LIMITS.axes, fail_fast=True)] = ()
    axis_resources: Annotated[
        tuple[tuple[Name, tuple[Name, ...]], ...], Field(max_length=LIMITS.axes, fail_fast=True)
    ] = ()


def _few(params: object) -> object:
    """Refuse many parameters before each is looked at: thousands of wrong ones would take half a second."""
    if isinstance(params, dict) and len(params) > LIMITS.parameters:
        raise ValueError(f"a kernel takes at most {LIMITS.parameters} parameters")
    return params


class Step(WireModel):
    """One step: a kernel with its static parameters, or a nested program with its own mapping.

    Attributes:
        specs: sharding constraints on the step's results, one for each.
    """

    kernel: Name | None = None
    program: Program | None = None
    mapping: Mapping | None = None
    operands: Annotated[tuple[Operand, ...], Field(max_length=LIMITS.segments, fail_fast=True)] = ()
    params: Annotated[dict[str, Param], BeforeValidator(_few)] = {}
    specs: Annotated[tuple[WireSpec, ...], Field(max_length=LIMITS.segments, fail_fast=True)] | None = None

    @model_validator(mode="after")
    def _kernel_or_program(self) -> Step:
        if (self.kernel is None) == (self.program is None):
            raise ValueError("a step has either a kernel or a program")
        if self.program is None and self.mapping is not None:
            raise ValueError("a mapping belongs to a nested program; a kernel is mapped by a program of one step")
        if self.program is not None and self.params:
            raise ValueError("parameters belong to a kernel, not to a nested program")
        return self

    @property
    def title(self) -> str:
        if self.kernel == "identity" and self.specs is not None:
            return "with_sharding_constraint"  # as the user wrote it
        return self.kernel or "program"


class Program(WireModel):
    """Steps composed into one compiled unit."""

    inputs: Annotated[int, Field(ge=0, le=LIMITS.segments)]
    steps: Annotated[tuple[Step, ...], Field(max_length=LIMITS.steps, fail_fast=True)] = ()
    outputs: Annotated[tuple[int, ...], Field(min_length=1, max_length=LIMITS.segments, fail_fast=True)]

    @classmethod
    def of_kernel(
        cls, kernel: str, *, operands: int, params: dict[str, Param] | None = None, outputs: int = 1
    ) -> Program:
        """A plain kernel call: a program of one step."""
        step = Step(kernel=kernel, operands=tuple(range(operands)), params=params or {})
        return cls(inputs=operands, steps=(step,), outputs=tuple(range(operands, operands + outputs)))


def check_extent(program: Program) -> None:
    """Hold the number of steps and the nesting, nested programs included, against the limits.

    Raises:
        ProgramError: too many or too deep.
    """
    for steps, (depth, _) in enumerate(_walk(program, 1), start=1):
        if depth > LIMITS.program_depth:
            raise ProgramError(f"programs nest deeper than {LIMITS.program_depth} levels")
        if steps > LIMITS.steps:
            raise ProgramError(f"the program has more than {LIMITS.steps} steps")


def _walk(program: Program, depth: int) -> Iterator[tuple[int, Step]]:
    for step in program.steps:
        yield depth, step
        if step.program is not None:
            yield from _walk(step.program, depth + 1)


Model = TypeVar("Model", bound=BaseModel)


def validate(model: type[Model], data: object) -> Model:
    """Read decoded data as a message.

    Raises:
        InvalidRequest: naming the first field that is wrong, and what it should be.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise InvalidRequest(_explain(error)) from None


def _explain(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])[:200] or "the message"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{place}: {plain(first['msg'])}{more}"


def plain(text: str) -> str:
    """The text of an error without pydantic's own words before it."""
    return text.removeprefix("Value error, ")
