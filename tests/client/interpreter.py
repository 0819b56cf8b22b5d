"""A small interpreter of programs in NumPy: what a traced function means, without a server.

A value is an array whose leading dimensions are its named axes. A kernel runs once for each position of the names, so
this is slow and plainly right.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardserve._arrays import as_leaf, aval_of
from shardserve._functions import TracedFunction, trace_function
from shardserve._tree import flatten, unflatten
from shardserve_proto.abstract import Aval, Scope, enter, evaluate_mapped, identity_mapping
from shardserve_proto.dtypes import dtype_named
from shardserve_proto.programs import Constant, Program, Step
from shardserve_proto.programs import Mapping as AxisMapping
from shardserve_proto.rules import BINARY, UNARY
from shardserve_proto.signatures import BUILTIN
from shardserve_proto.specs import Axes

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Named:
    """An array (or a Python scalar) whose first dimensions are the named axes `names`."""

    data: Any
    names: tuple[str, ...] = ()

    def along(self, names: Sequence[str], sizes: Sizes) -> np.ndarray[Any, Any]:
        """The data with exactly these names in front, broadcast along those that it lacks."""
        data = np.asarray(self.data)
        missing = [name for name in names if name not in self.names]
        positional = data.shape[len(self.names) :]
        shape = (*(sizes[name] for name in missing), *data.shape)
        full = np.broadcast_to(data, shape)
        order = [(*missing, *self.names).index(name) for name in names]
        return full.transpose([*order, *range(len(names), len(names) + len(positional))])


def run(function: Callable[..., Any], *args: Any) -> Any:
    """Trace a function and interpret its program: what `client.run(function, *args)` gives."""
    leaves, tree = flatten(args)
    leaves = [as_leaf(leaf, what="argument") for leaf in leaves]
    return interpret(trace_function(function, tree, leaves), leaves)


def interpret(traced: TracedFunction, leaves: Sequence[Any]) -> Any:
    """The results of a traced function, each held to the shape and dtype that the tracer promised."""
    inputs = [Named(leaf) for leaf in (*leaves, *traced.captured)]
    mapping = traced.mapping or identity_mapping(traced.program)
    avals = [aval_of(value.data) for value in inputs]
    promised = evaluate_mapped(traced.program, mapping, avals, Scope(), BUILTIN)
    assert [(a.shape, a.strong_dtype) for a in promised] == [(a.shape, a.strong_dtype) for a in traced.outputs]
    outputs = _run_mapped(traced.program, mapping, inputs, avals, Scope())
    for output, aval in zip(outputs, promised, strict=True):
        _check(output, aval, Scope())
    return unflatten(traced.out_tree, iter(output.data[()] for output in outputs))


def _check(value: Named, aval: Aval, scope: Scope) -> None:
    array = np.asarray(value.data)
    assert set(value.names) <= aval.names
    assert array.shape[len(value.names) :] == aval.shape
    if aval.value is None:
        assert array.dtype == aval.strong_dtype
    assert all(scope.sizes[name] == array.shape[index] for index, name in enumerate(value.names))


def _run_mapped(
    program: Program, mapping: AxisMapping, inputs: Sequence[Named], avals: Sequence[Aval], outer: Scope
) -> list[Named]:
    scope = enter(mapping, avals, outer)
    views = [_named(value, axes) for value, axes in zip(inputs, mapping.in_axes, strict=True)]
    inner = [
        Aval(axes.drop_named(aval.shape), aval.dtype, aval.names.union(axes.positions()), aval.value)
        for aval, axes in zip(avals, mapping.in_axes, strict=True)
    ]
    outputs = _run(program, views, inner, scope)
    return [_unnamed(value, axes, scope, outer) for value, axes in zip(outputs, mapping.out_axes, strict=True)]


def _named(value: Named, axes: Axes) -> Named:
    if not axes.names:
        return value
    lead = len(value.names)
    data = np.moveaxis(value.data, [lead + p for p, _ in axes.names], [lead + i for i in range(len(axes.names))])
    return Named(data, (*value.names, *(name for _, name in axes.names)))


def _unnamed(value: Named, axes: Axes, scope: Scope, outer: Scope) -> Named:
    kept = [name for name in value.names if name in outer.sizes]
    data = value.along([*kept, *(name for _, name in axes.names)], scope.sizes)
    lead = len(kept)
    sources = [lead + index for index in range(len(axes.names))]
    return Named(np.moveaxis(data, sources, [lead + position for position, _ in axes.names]), tuple(kept))


def _run(program: Program, inputs: Sequence[Named], avals: Sequence[Aval], scope: Scope) -> list[Named]:
    values, known = list(inputs), list(avals)
    for step in program.steps:
        operands = [Named(op.scalar) if isinstance(op, Constant) else values[op] for op in step.operands]
        op_avals = [aval_of(op.scalar) if isinstance(op, Constant) else known[op] for op in step.operands]
        results, result_avals = _step(step, operands, op_avals, scope)
        for result, aval in zip(results, result_avals, strict=True):
            _check(result, aval, scope)
        values += results
        known += result_avals
    return [values[number] for number in program.outputs]


def _step(step: Step, operands: Sequence[Named], avals: Sequence[Aval], scope: Scope) -> tuple[list[Named], list[Aval]]:
    if step.program is not None:
        mapping = step.mapping or identity_mapping(step.program)
        promised = evaluate_mapped(step.program, mapping, avals, scope, BUILTIN)
        return _run_mapped(step.program, mapping, operands, avals, scope), promised
    signature = BUILTIN[step.kernel or ""]
    params = signature.bind(step.params)
    return [_kernel(signature.name, operands, params, scope.sizes)], signature.evaluate(avals, step.params, scope)


# --- kernels ---------------------------------------------------------------------------------------------------------


def _kernel(name: str, operands: Sequence[Named], params: dict[str, Any], sizes: Sizes) -> Named:
    if name in _COLLECTIVES:
        return _reduce(_COLLECTIVES[name], operands[0], _names(params["axis_name"]), (), sizes)
    if name == "axis_index":
        names = _names(params["axis_name"])
        shape = tuple(sizes[own] for own in names)
        return Named(np.arange(np.prod(shape, dtype=int)).reshape(shape), names)
    if name == "axis_size":
        return Named(np.int64(np.prod([sizes[own] for own in _names(params["axis_name"])])))
    if name in ("sum", "mean", "max", "min"):
        return _reduction(name, operands[0], params, sizes)
    if name == "normalize":
        return _normalize(operands[0], params, sizes)
    return _pointwise(_POSITIONAL.get(name) or _ufunc(name), operands, params, sizes)


def _names(given: str | tuple[str, ...]) -> tuple[str, ...]:
    return given if isinstance(given, tuple) else (given,)


def _pointwise(function: Callable[..., Any], operands: Sequence[Named], params: dict[str, Any], sizes: Sizes) -> Named:
    """Run a positional kernel once for each position of the names."""
    names = tuple(dict.fromkeys(name for operand in operands for name in operand.names))
    if not names:
        return Named(function(*(operand.data for operand in operands), **params))
    full = [operand.along(names, sizes) if operand.names else operand.data for operand in operands]
    shape = tuple(sizes[name] for name in names)
    parts = []
    for index in itertools.product(*map(range, shape)):
        at = [data[index] if operand.names else data for data, operand in zip(full, operands, strict=True)]
        parts.append(np.asarray(function(*at, **params)))
    return Named(np.stack(parts).reshape(*shape, *parts[0].shape), names)


def _reduce(
    function: Callable[..., Any], x: Named, names: Sequence[str], dimensions: Sequence[int], sizes: Sizes, **kw: Any
) -> Named:
    kept = tuple(name for name in x.names if name not in names)
    data = x.along([*kept, *names], sizes)
    lead = len(kept)
    axes = [lead + index for index in range(len(names))] + [lead + len(names) + d for d in dimensions]
    return Named(function(data, axis=tuple(axes), **kw), kept)


def _split(axis: Any, x: Named) -> tuple[list[str], list[int]]:
    rank = np.ndim(x.data) - len(x.names)
    if axis is None:
        return [], list(range(rank))
    given = axis if isinstance(axis, tuple) else (axis,)
    return [a for a in given if isinstance(a, str)], [a % rank for a in given if not isinstance(a, str)]


def _reduction(name: str, x: Named, params: dict[str, Any], sizes: Sizes) -> Named:
    names, dimensions = _split(params["axis"], x)
    dtype = {"dtype": dtype_named(params["dtype"])} if params.get("dtype") else {}
    reduced = _reduce(getattr(np, name), x, names, dimensions, sizes, **dtype)
    if not params["keepdims"]:
        return reduced
    lead = len(reduced.names)
    data = np.expand_dims(reduced.data, tuple(lead + d for d in sorted(dimensions)))
    return Named(data, reduced.names)


def _normalize(x: Named, params: dict[str, Any], sizes: Sizes) -> Named:
    names, dimensions = _split(params["axis"], x)
    if params["axis"] is None:
        names = list(x.names)
    wide = Named(np.asarray(x.data, np.complex128 if np.iscomplexobj(x.data) else np.float64), x.names)
    magnitudes = wide if params["norm"] == "sum" else Named(np.abs(wide.data) ** 2, x.names)
    total = _reduction("sum", magnitudes, {"axis": (*names, *dimensions), "keepdims": True}, sizes)
    norm = total if params["norm"] == "sum" else Named(np.sqrt(total.data), total.names)
    quotient = _pointwise(np.divide, [wide, norm], {}, sizes)
    kind = np.asarray(x.data).dtype
    return Named(quotient.data.astype(kind if kind.kind in "fc" else np.float64), quotient.names)


_COLLECTIVES: dict[str, Callable[..., Any]] = {"psum": np.sum, "pmean": np.mean, "pmax": np.max, "pmin": np.min}


def _product(function: Callable[..., Any]) -> Callable[..., Any]:
    def cast(x: Any, y: Any, dtype: str | None) -> Any:
        if dtype is None:
            return function(x, y)
        return function(np.asarray(x).astype(dtype_named(dtype)), np.asarray(y).astype(dtype_named(dtype)))

    return cast


def _einsum(*operands: Any, subscripts: str, dtype: str | None) -> Any:
    return np.einsum(subscripts, *operands, dtype=None if dtype is None else dtype_named(dtype))


def _slice(x: Any, starts: Any, stops: Any, steps: Any) -> Any:
    taken = [list(range(*bounds)) for bounds in zip(starts, stops, steps, strict=True)]
    return np.asarray(x)[np.ix_(*taken)] if taken else np.asarray(x)


_POSITIONAL: dict[str, Callable[..., Any]] = {
    "dot": _product(np.dot),
    "vecdot": _product(np.vecdot),
    "matmul": _product(np.matmul),
    "einsum": _einsum,
    "identity": np.asarray,
    "astype": lambda x, dtype: np.asarray(x).astype(dtype_named(dtype)),
    "where": np.where,
    "reshape": np.reshape,
    "transpose": np.transpose,
    "broadcast_to": np.broadcast_to,
    "slice": _slice,
}


def _ufunc(name: str) -> Callable[..., Any]:
    return (UNARY | BINARY)[name]
