"""The signatures of the built-in kernels: operands, static parameters, and the rule that gives the result's aval.

One table serves the client's tracers and the server's validation. A kernel that an operator registers has a signature
of its own, with a rule that only the server knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from . import contractions, rules
from .abstract import Aval, Scope
from .errors import ProgramError, nearest
from .messages import ParameterInfo

ParamType = Literal["bool", "int", "float", "str", "dtype", "axes", "names", "shape", "order"]
Rule = Callable[[Sequence[Aval], Mapping[str, Any], Scope], list[Aval]]
REQUIRED = object()

_IS_INT: Callable[[Any], bool] = lambda value: isinstance(value, int) and not isinstance(value, bool)  # noqa: E731
_IS_ORDER: Callable[[Any], bool] = lambda value: isinstance(value, tuple) and all(map(_IS_INT, value))  # noqa: E731
_IS_AXIS: Callable[[Any], bool] = lambda value: isinstance(value, str) or _IS_INT(value)  # noqa: E731


def _is_many(is_one: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: is_one(value) or (isinstance(value, tuple) and all(map(is_one, value)))


_CHECKS: dict[ParamType, tuple[Callable[[Any], bool], str]] = {
    "bool": (lambda value: isinstance(value, bool), "true or false"),
    "int": (_IS_INT, "an integer"),
    "float": (lambda value: isinstance(value, int | float) and not isinstance(value, bool), "a number"),
    "str": (lambda value: isinstance(value, str), "a text"),
    "dtype": (lambda value: value is None or isinstance(value, str), "the name of a dtype"),
    "axes": (lambda value: value is None or _is_many(_IS_AXIS)(value), "a dimension, an axis name, or a list of both"),
    "names": (_is_many(lambda value: isinstance(value, str)), "an axis name, or a list of them"),
    "shape": (_is_many(_IS_INT), "an integer, or a list of them"),
    "order": (lambda value: value is None or _IS_ORDER(value), "a list of dimensions"),
}  # fmt: skip


@dataclass(frozen=True)
class Parameter:
    """A static parameter: part of the compiled program, never an array."""

    name: str
    type: ParamType
    default: Any = REQUIRED

    def check(self, value: Any) -> Any:
        is_valid, wanted = _CHECKS[self.type]
        if not is_valid(value):
            raise ProgramError(f"parameter {self.name!r} is {wanted}, not {value!r}")
        return value

    def info(self) -> ParameterInfo:
        required = self.default is REQUIRED
        return ParameterInfo(
            name=self.name, type=self.type, required=required, default=None if required else self.default
        )


@dataclass(frozen=True)
class Signature:
    """What a kernel takes and gives.

    Attributes:
        operands: names of the array operands; a variadic kernel takes one or more of the last.
        rule: abstract operands and complete parameters -> abstract results.
    """

    name: str
    operands: tuple[str, ...]
    rule: Rule
    parameters: tuple[Parameter, ...] = ()
    is_variadic: bool = False

    def evaluate(self, operands: Sequence[Aval], params: Mapping[str, Any], scope: Scope) -> list[Aval]:
        """The abstract results.

        Raises:
            ProgramError: a wrong number of operands, or an unknown, missing or ill-typed parameter.
        """
        expected = len(self.operands)
        if len(operands) != expected and not (self.is_variadic and len(operands) >= expected):
            at_least = "at least " if self.is_variadic else ""
            raise ProgramError(f"takes {at_least}{expected} arrays ({self}), {len(operands)} were given")
        return self.rule(operands, self.bind(params), scope)

    def bind(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters with their defaults filled in."""
        known = {parameter.name: parameter for parameter in self.parameters}
        for name in params:
            if name not in known:
                raise ProgramError(f"unknown parameter {name!r}{nearest(name, known)} (signature: {self})")
        bound = {}
        for name, parameter in known.items():
            if name in params:
                bound[name] = parameter.check(params[name])
            elif parameter.default is REQUIRED:
                raise ProgramError(f"parameter {name!r} is required (signature: {self})")
            else:
                bound[name] = parameter.default
        return bound

    def __str__(self) -> str:
        operands = ["*" + name if self.is_variadic else name for name in self.operands]
        parts = [*operands, "*"] if self.parameters and not self.is_variadic else operands
        parts += [p.name if p.default is REQUIRED else f"{p.name}={p.default!r}" for p in self.parameters]
        return f"{self.name}({', '.join(parts)})"


_DTYPE = Parameter("dtype", "dtype", None)
_AXIS = Parameter("axis", "axes", None)
_KEEPDIMS = Parameter("keepdims", "bool", False)
_NAMES = Parameter("axis_name", "names")


def _table() -> list[Signature]:
    one, two = ("x",), ("x", "y")
    signatures = [
        Signature("dot", two, contractions.dot, (_DTYPE,)),
        Signature("vecdot", two, contractions.vecdot, (_DTYPE,)),
        Signature("matmul", two, contractions.matmul, (_DTYPE,)),
        Signature(
            "einsum", ("operands",), contractions.einsum, (Parameter("subscripts", "str"), _DTYPE), is_variadic=True
        ),
        Signature("normalize", one, rules.normalize, (Parameter("norm", "str"), _AXIS)),
        Signature("identity", one, rules.identity),
        Signature("astype", one, rules.astype, (Parameter("dtype", "str"),)),
        Signature("where", ("condition", "x", "y"), rules.where),
        Signature("reshape", one, rules.reshape, (Parameter("shape", "shape"),)),
        Signature("transpose", one, rules.transpose, (Parameter("axes", "order", None),)),
        Signature("broadcast_to", one, rules.broadcast_to, (Parameter("shape", "shape"),)),
        Signature("slice", one, rules.slice_of, tuple(Parameter(name, "shape") for name in rules.SLICE_PARAMETERS)),
        Signature("sum", one, rules.total, (_AXIS, _DTYPE, _KEEPDIMS)),
        Signature("mean", one, rules.mean, (_AXIS, _DTYPE, _KEEPDIMS)),
        Signature("max", one, rules.extremum, (_AXIS, _KEEPDIMS)),
        Signature("min", one, rules.extremum, (_AXIS, _KEEPDIMS)),
        Signature("psum", one, rules.psum, (_NAMES,)),
        Signature("pmean", one, rules.pmean, (_NAMES,)),
        Signature("pmax", one, rules.pextremum, (_NAMES,)),
        Signature("pmin", one, rules.pextremum, (_NAMES,)),
        Signature("axis_index", (), rules.axis_index, (_NAMES,)),
        Signature("axis_size", (), rules.axis_size, (_NAMES,)),
    ]
    signatures += [Signature(name, one, rules.elementwise(name)) for name in rules.UNARY]
    signatures += [Signature(name, two, rules.elementwise(name)) for name in rules.BINARY]
    return signatures


BUILTIN: dict[str, Signature] = {signature.name: signature for signature in _table()}
