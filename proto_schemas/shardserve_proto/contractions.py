"""The result rules of products: dot, vecdot, matmul and einsum, as in NumPy."""

from __future__ import annotations

from collections.abc import Sequence

from .abstract import Aval, Scope
from .dtypes import DType, dtype_named, name_of, result_dtype
from .einsum import parse_subscripts
from .errors import DTypeError, ShapeError
from .rules import Operands, Params, all_names, broadcast, casts, check_constant, computable, single


def contraction_dtype(operands: Operands, params: Params) -> DType:
    """The dtype of a product of arrays: the common dtype, or `dtype=`, to which the operands must cast in kind."""
    common = result_dtype(*(operand.dtype for operand in operands))
    for operand in operands:
        check_constant(operand, common)
    if params["dtype"] is None:
        return computable(common)
    wanted = computable(dtype_named(params["dtype"]))
    for operand in operands:
        check_constant(operand, wanted)
        if not casts(operand.strong_dtype, wanted):
            raise DTypeError(
                f"dtype={name_of(wanted)!r} would lose the kind of an operand of {name_of(operand.strong_dtype)}; "
                "cast the operand with astype first if that is meant"
            )
    return wanted


def dot(operands: Operands, params: Params, scope: Scope) -> list[Aval]:  # noqa: ARG001
    x, y = operands
    dtype, names = contraction_dtype(operands, params), all_names(operands)
    if x.ndim == 0 or y.ndim == 0:
        return single(x.shape + y.shape, dtype, names)
    contracted = y.ndim - 2 if y.ndim > 1 else 0
    if x.shape[-1] != y.shape[contracted]:
        raise _misfit(x, y, x.ndim - 1, contracted)
    return single(x.shape[:-1] + y.shape[:contracted] + y.shape[contracted + 1 :], dtype, names)


def _misfit(x: Aval, y: Aval, i: int, j: int) -> ShapeError:
    return ShapeError(
        f"shapes {x.shape} and {y.shape} do not fit: {x.shape[i]} (dimension {i}) is not {y.shape[j]} (dimension {j})",
        details={"shapes": [list(x.shape), list(y.shape)]},
    )


def vecdot(operands: Operands, params: Params, scope: Scope) -> list[Aval]:  # noqa: ARG001
    x, y = operands
    dtype = contraction_dtype(operands, params)
    if x.ndim == 0 or y.ndim == 0:
        raise ShapeError(f"vecdot needs vectors in the last dimension; the shapes are {x.shape} and {y.shape}")
    if x.shape[-1] != y.shape[-1]:
        raise _misfit(x, y, x.ndim - 1, y.ndim - 1)
    return single(_batch(x, y, 1), dtype, all_names(operands))


def _batch(x: Aval, y: Aval, core: int) -> tuple[int, ...]:
    return broadcast([Aval(x.shape[:-core], x.dtype), Aval(y.shape[:-core], y.dtype)])


def matmul(operands: Operands, params: Params, scope: Scope) -> list[Aval]:  # noqa: ARG001
    x, y = operands
    dtype, names = contraction_dtype(operands, params), all_names(operands)
    if x.ndim == 0 or y.ndim == 0:
        raise ShapeError(f"matmul does not take scalars; the shapes are {x.shape} and {y.shape}; use multiply")
    row = y.ndim - 2 if y.ndim > 1 else 0
    if x.shape[-1] != y.shape[row]:
        raise _misfit(x, y, x.ndim - 1, row)
    rows = x.shape[-2:-1]
    columns = y.shape[-1:] if y.ndim > 1 else ()
    left = x if x.ndim > 1 else Aval((1, *x.shape), x.dtype)
    right = y if y.ndim > 1 else Aval((*y.shape, 1), y.dtype)
    return single(_batch(left, right, 2) + rows + columns, dtype, names)


def einsum(operands: Operands, params: Params, scope: Scope) -> list[Aval]:  # noqa: ARG001
    labels = parse_subscripts(params["subscripts"], [operand.ndim for operand in operands])
    sizes: dict[str, int] = {}
    for index, (operand, own) in enumerate(zip(operands, labels.inputs, strict=True)):
        for label, size in _label_sizes(own, operand.shape, params["subscripts"], index).items():
            known = sizes.setdefault(label, size)
            if size != known and 1 not in (size, known):
                raise _label_misfit(label, known, size, params["subscripts"], index)
            sizes[label] = size if known == 1 else known  # NumPy stretches a size of 1 to its partner's
    dtype = contraction_dtype(operands, params)
    return single([sizes[label] for label in labels.output], dtype, all_names(operands))


def _label_sizes(own: Sequence[str], shape: Sequence[int], subscripts: str, index: int) -> dict[str, int]:
    """The size of each label of one operand; a label that stands twice (a diagonal) has one size."""
    sizes: dict[str, int] = {}
    for label, size in zip(own, shape, strict=True):
        if sizes.setdefault(label, size) != size:
            raise _label_misfit(label, sizes[label], size, subscripts, index)
    return sizes


def _label_misfit(label: str, known: int, size: int, subscripts: str, index: int) -> ShapeError:
    return ShapeError(f"label {label!r} of {subscripts!r} has size {known}, but size {size} in operand {index}")
