"""Python scalars as arguments: give them the dtype that they adapt to, so that their value needs no new compilation."""

from __future__ import annotations

from collections.abc import Mapping as MappingABC
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shardserve_proto.abstract import Aval, Scope, evaluate_mapped
from shardserve_proto.dtypes import loop_dtypes, result_dtype
from shardserve_proto.errors import DTypeError
from shardserve_proto.programs import Mapping, Program
from shardserve_proto.rules import BINARY, UNARY, check_constant
from shardserve_proto.signatures import Rule, Signature

_UFUNCS = UNARY | BINARY


def strengthen(
    program: Program,
    mapping: Mapping,
    inputs: Sequence[Aval],
    scope: Scope,
    signatures: MappingABC[str, Signature],
) -> list[Aval]:
    """The inputs, with Python scalars made arrays of a dtype wherever no step of the program can tell the difference.

    `x * 2.0` and `x * np.float32(2)` are then one program of two arrays. A scalar that must stay weak (it meets
    float32 in one step and float64 in another) stays a constant of the executable.
    """
    if all(aval.value is None for aval in inputs):
        return list(inputs)
    candidate = [_adapted(aval, inputs) for aval in inputs]
    recorded = _dtypes_of_steps(program, mapping, inputs, scope, signatures)
    if recorded == _dtypes_of_steps(program, mapping, candidate, scope, signatures):
        return candidate
    return list(inputs)


def _adapted(aval: Aval, inputs: Sequence[Aval]) -> Aval:
    if aval.value is None:
        return aval
    arrays = {other.dtype for other in inputs if other.value is None}
    try:
        dtype = result_dtype(aval.dtype, *sorted(arrays, key=str)) if arrays else aval.strong_dtype
        check_constant(aval, dtype)
    except DTypeError:
        return aval
    return replace(aval, dtype=dtype, value=None)


def _dtypes_of_steps(
    program: Program,
    mapping: Mapping,
    inputs: Sequence[Aval],
    scope: Scope,
    signatures: MappingABC[str, Signature],
) -> list[Any] | None:
    """The dtypes in which every step computes and answers, nested ones too; None where a step refuses."""
    record: list[Any] = []
    recording = {name: _recording(signature, record) for name, signature in signatures.items()}
    try:
        outputs = evaluate_mapped(program, mapping, inputs, scope, recording)
    except DTypeError:
        return None
    return [*record, *(aval.strong_dtype for aval in outputs)]


def _recording(signature: Signature, record: list[Any]) -> Signature:
    rule: Rule = signature.rule

    def recorded(operands: Sequence[Aval], params: MappingABC[str, Any], scope: Scope) -> list[Aval]:
        results = rule(operands, params, scope)
        ufunc = _UFUNCS.get(signature.name)
        loop = loop_dtypes(ufunc, *(operand.dtype for operand in operands)) if ufunc else ()
        record.append((loop, tuple(aval.strong_dtype for aval in results)))
        return results

    return replace(signature, rule=recorded)
