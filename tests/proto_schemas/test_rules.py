"""The result of every kernel has the shape and dtype that the real NumPy function gives, and errors where it errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardserve_proto.abstract import Aval, Scope, constant_aval
from shardserve_proto.dtypes import BFLOAT16, DTYPES, DType
from shardserve_proto.errors import AxisError, DTypeError, ProgramError, ShapeError, ShardserveError
from shardserve_proto.rules import BINARY, UNARY
from shardserve_proto.signatures import BUILTIN

from .strategies import NUMPY_DTYPES, array_of, numpy_dtypes, shapes

Outcome = tuple[tuple[int, ...], DType] | None
F32, F64, I8 = DTYPES["float32"], DTYPES["float64"], DTYPES["int8"]


def ours(kernel: str, *operands: Aval, scope: Scope | None = None, **params: Any) -> Outcome:
    """Shape and dtype by our rule, or None where it refuses by name."""
    try:
        (result,) = BUILTIN[kernel].evaluate(operands, params, scope or Scope())
    except ShardserveError:
        return None
    return result.shape, result.strong_dtype


def theirs(function: Callable[..., Any], *operands: Any, **params: Any) -> Outcome:
    """Shape and dtype by NumPy, or None where it refuses."""
    try:
        with np.errstate(all="ignore"):
            result = np.asarray(function(*operands, **params))
    except (ValueError, TypeError, IndexError):
        return None
    return result.shape, result.dtype


def both(
    kernel: str, function: Callable[..., Any], given: Sequence[tuple[tuple[int, ...], DType]], **params: Any
) -> tuple[Outcome, Outcome]:
    mine = ours(kernel, *(Aval(shape, dtype) for shape, dtype in given), **params)
    return mine, theirs(function, *(array_of(shape, dtype) for shape, dtype in given), **params)


pairs = st.tuples(shapes(), numpy_dtypes)

# --- elementwise -----------------------------------------------------------------------------------------------------

#: What NumPy computes and we refuse by name: complex numbers have no order, and an exponent could be negative.
STRICTER = {"maximum", "minimum", "less", "less_equal", "greater", "greater_equal", "power"}


@pytest.mark.parametrize("name", UNARY)
@given(given=pairs)
def test_unary_kernels_follow_numpy(name: str, given: tuple[tuple[int, ...], DType]) -> None:
    mine, real = both(name, UNARY[name], [given])
    assert mine == real


@pytest.mark.parametrize("name", BINARY)
@given(left=pairs, right=pairs)
def test_binary_kernels_broadcast_and_promote_as_numpy(
    name: str, left: tuple[tuple[int, ...], DType], right: tuple[tuple[int, ...], DType]
) -> None:
    mine, real = both(name, BINARY[name], [left, right])
    if mine is None and name in STRICTER:
        kinds = left[1].kind + right[1].kind
        assert real is None or "c" in kinds or (name == "power" and "i" in right[1].kind)
    else:
        assert mine == real


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("scalar", [True, 2, 2.5, 1j], ids=repr)
@pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=str)
def test_python_scalars_are_weak_as_in_numpy(name: str, scalar: Any, dtype: DType) -> None:
    mine = ours(name, Aval((2,), dtype), constant_aval(scalar))
    real = theirs(BINARY[name], np.ones(2, dtype), scalar)
    assert mine == real or (mine is None and name in STRICTER and ("c" in dtype.kind or isinstance(scalar, complex)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("add", 300),
        ("add", -1),
        ("multiply", -1),
        ("maximum", 256),
        ("power", 300),
        ("where", -1),
        ("dot", 300),
        ("dot", -1),
    ],
)
def test_a_python_integer_that_does_not_fit_is_refused_and_never_wraps(name: str, value: int) -> None:
    x = Aval((2,), DTYPES["uint8"])
    operands = (Aval((2,), DTYPES["bool"]), x, constant_aval(value)) if name == "where" else (x, constant_aval(value))
    with pytest.raises(DTypeError, match=rf"the Python integer {value} does not fit uint8 \(0 to 255\)"):
        BUILTIN[name].evaluate(operands, {}, Scope())


@pytest.mark.parametrize("base", ["int32", "uint8", "bool"])
def test_integer_powers_that_numpy_refuses_or_may_refuse_are_refused(base: str) -> None:
    x = Aval((2,), DTYPES[base])
    with pytest.raises(DTypeError, match="negative integer powers|could be negative"):
        BUILTIN["power"].evaluate((Aval((2,), DTYPES["int32"]), constant_aval(-1)), {}, Scope())
    with pytest.raises(DTypeError, match="could be negative"):
        BUILTIN["power"].evaluate((x, Aval((2,), DTYPES["int32"])), {}, Scope())
    assert ours("power", x, Aval((2,), DTYPES["uint8"])) == theirs(np.power, np.ones(2, base), np.ones(2, np.uint8))


@pytest.mark.parametrize("name", sorted(STRICTER - {"power"}))
def test_complex_numbers_are_not_ordered(name: str) -> None:
    with pytest.raises(DTypeError, match="order complex numbers"):
        BUILTIN[name].evaluate((Aval((2,), DTYPES["complex64"]),) * 2, {}, Scope())


@given(condition=pairs, x=pairs, y=pairs)
def test_where_follows_numpy(
    condition: tuple[tuple[int, ...], DType], x: tuple[tuple[int, ...], DType], y: tuple[tuple[int, ...], DType]
) -> None:
    mine, real = both("where", np.where, [condition, x, y])
    assert mine == real


@pytest.mark.parametrize(("source", "target"), list(itertools.product(NUMPY_DTYPES, repeat=2)), ids=str)
def test_astype_gives_the_dtype_and_never_drops_an_imaginary_part(source: DType, target: DType) -> None:
    mine = ours("astype", Aval((2, 3), source), dtype=target.name)
    drops = source.kind == "c" and target.kind not in "cb"
    assert mine == (None if drops else ((2, 3), target))


# --- products --------------------------------------------------------------------------------------------------------

PRODUCTS: dict[str, Callable[..., Any]] = {"dot": np.dot, "vecdot": np.vecdot, "matmul": np.matmul}


@pytest.mark.parametrize("name", PRODUCTS)
@settings(max_examples=400)
@given(left=shapes(4, 3), right=shapes(4, 3))
def test_products_have_the_shapes_of_numpy(name: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    mine, real = both(name, PRODUCTS[name], [(left, F64), (right, F64)])
    assert mine == real


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_have_the_dtypes_of_numpy(name: str) -> None:
    for left, right in itertools.product(NUMPY_DTYPES, repeat=2):
        mine, real = both(name, PRODUCTS[name], [((3,), left), ((3,), right)])
        assert mine == real, (left, right)


def test_dtype_of_a_product_casts_in_kind_as_numpy_does() -> None:
    for left, right, wanted in itertools.product(NUMPY_DTYPES, repeat=3):
        mine = ours("matmul", Aval((2, 2), left), Aval((2, 2), right), dtype=wanted.name)
        real = theirs(np.matmul, np.ones((2, 2), left), np.ones((2, 2), right), dtype=wanted)
        assert mine == real, (left, right, wanted)


@pytest.mark.parametrize("name", PRODUCTS)
def test_bfloat16_products_stay_bfloat16_and_widen_on_demand(name: str) -> None:
    x = Aval((3,), BFLOAT16)
    assert ours(name, x, x) == ((), BFLOAT16)
    assert ours(name, x, Aval((3,), I8)) == ((), BFLOAT16)
    assert ours(name, x, Aval((3,), I8), dtype="float32") == ((), F32)  # case B48
    assert ours(name, x, Aval((3,), F64)) == ((), F64)
    assert ours(name, x, x, dtype="int32") is None


@pytest.mark.parametrize("name", [*PRODUCTS, "einsum"])
@pytest.mark.parametrize("dtype", ["int4", "uint4", "float8_e5m2", "float8_e4m3fn"])
def test_narrow_dtypes_are_carried_but_not_multiplied(name: str, dtype: str) -> None:
    x = Aval((3,), DTYPES[dtype])
    params = {"subscripts": "i,i->"} if name == "einsum" else {}
    with pytest.raises(DTypeError, match=f"no arithmetic in {dtype}; cast with astype"):
        BUILTIN[name].evaluate((x, x), params, Scope())


def test_a_misfit_names_both_shapes_and_dimensions() -> None:
    with pytest.raises(ShapeError, match=r"\(2, 3\) and \(4, 5\) .*: 3 \(dimension 1\) is not 4 \(dimension 0\)"):
        BUILTIN["matmul"].evaluate((Aval((2, 3), F32), Aval((4, 5), F32)), {}, Scope())


def test_a_product_too_large_to_compute_still_has_a_shape() -> None:
    """Case B68: it is refused by its bytes, later, with the figure."""
    assert ours("dot", Aval((10_000_000, 3), F32), Aval((3, 10_000_000), F32)) == ((10_000_000, 10_000_000), F32)


# --- reductions ------------------------------------------------------------------------------------------------------

axes = st.none() | st.integers(-4, 3) | st.lists(st.integers(-3, 2), max_size=3).map(tuple)
REDUCTIONS: dict[str, Callable[..., Any]] = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}


@pytest.mark.parametrize("name", REDUCTIONS)
@given(operand=pairs, axis=axes, keepdims=st.booleans())
@pytest.mark.filterwarnings("ignore:Mean of empty slice:RuntimeWarning")  # NumPy's own, and its answer is nan
def test_reductions_follow_numpy(name: str, operand: tuple[tuple[int, ...], DType], axis: Any, keepdims: bool) -> None:
    mine, real = both(name, REDUCTIONS[name], [operand], axis=axis, keepdims=keepdims)
    is_axis_of_a_scalar = operand[0] == () and axis not in (None, ())  # NumPy lets 0 and -1 pass there
    if is_axis_of_a_scalar or (name in ("max", "min") and operand[1].kind == "c"):
        assert mine is None
    else:
        assert mine == real


@pytest.mark.parametrize("name", ["sum", "mean"])
def test_dtype_of_a_total_is_the_asked_one_where_it_keeps_the_kind(name: str) -> None:
    for source, wanted in itertools.product(NUMPY_DTYPES, repeat=2):
        mine = ours(name, Aval((3,), source), dtype=wanted.name)
        if np.can_cast(source, wanted, "same_kind"):
            assert mine == theirs(REDUCTIONS[name], np.ones(3, source), dtype=wanted), (source, wanted)
        else:
            assert mine is None


@pytest.mark.parametrize(
    ("axis", "text"),
    [(2, "axis 2 is out of bounds for an array of rank 2"), (-3, "out of bounds"), ((0, 0), "twice"),
     ((0, -2), "twice"), ("i", "unknown axis 'i'; known axes: none"), (("i", "i"), "twice"), ((0, "i"), "unknown")],
    ids=str,
)  # fmt: skip
def test_an_axis_that_is_not_there_is_named(axis: Any, text: str) -> None:
    for name in (*REDUCTIONS, "normalize"):
        params = {"norm": "sum"} if name == "normalize" else {}
        with pytest.raises(AxisError, match=text):
            BUILTIN[name].evaluate((Aval((2, 3), F32),), {"axis": axis, **params}, Scope())


def test_the_maximum_of_nothing_is_refused_as_in_numpy() -> None:
    with pytest.raises(ShapeError, match="of no elements"):
        BUILTIN["max"].evaluate((Aval((0, 3), F32),), {}, Scope())
    scope = Scope(sizes={"i": 0})
    for name, key in (("max", "axis"), ("pmax", "axis_name")):
        with pytest.raises(ShapeError, match="of no elements"):
            BUILTIN[name].evaluate((Aval((3,), F32, frozenset("i")),), {key: "i"}, scope)


@pytest.mark.parametrize("norm", ["sum", "l2"])
@pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=str)
def test_normalize_answers_in_floats(norm: str, dtype: DType) -> None:
    """Case B40: small integers and bools included."""
    expected = dtype if dtype.kind in "fc" else F64
    assert ours("normalize", Aval((3, 4), dtype), norm=norm, axis=1) == ((3, 4), expected)
    assert ours("normalize", Aval((3, 4), BFLOAT16), norm=norm) == ((3, 4), BFLOAT16)


@pytest.mark.parametrize(
    ("params", "text"), [({}, "parameter 'norm' is required"), ({"norm": "l1"}, "norm is 'sum' or 'l2', not 'l1'"),
                         ({"norm": 2}, "parameter 'norm' is a text, not 2")]
)  # fmt: skip
def test_normalize_wants_to_know_the_norm(params: dict[str, Any], text: str) -> None:
    with pytest.raises(ProgramError, match=text):
        BUILTIN["normalize"].evaluate((Aval((3,), F32),), params, Scope())


# --- shapes ----------------------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(shape=shapes(4, 4), wanted=st.integers(-1, 20) | st.lists(st.integers(-1, 6), max_size=4).map(tuple))
def test_reshape_follows_numpy(shape: tuple[int, ...], wanted: Any) -> None:
    mine = ours("reshape", Aval(shape, F32), shape=wanted)
    assert mine == theirs(np.reshape, np.ones(shape, np.float32), wanted)


def test_only_minus_one_stands_for_the_open_size() -> None:
    """NumPy takes any negative number for it; nobody means that."""
    assert ours("reshape", Aval((4,), F32), shape=(-2, 2)) is None


@settings(max_examples=300)
@given(shape=shapes(4, 4), axes=st.none() | st.lists(st.integers(-4, 4), max_size=4).map(tuple))
def test_transpose_follows_numpy(shape: tuple[int, ...], axes: Any) -> None:
    mine, real = both("transpose", np.transpose, [(shape, F32)], axes=axes)
    assert mine == real


@settings(max_examples=300)
@given(shape=shapes(3, 3), wanted=st.integers(-1, 4) | st.lists(st.integers(-1, 4), max_size=4).map(tuple))
def test_broadcast_to_follows_numpy(shape: tuple[int, ...], wanted: Any) -> None:
    mine = ours("broadcast_to", Aval(shape, F32), shape=wanted)
    assert mine == theirs(np.broadcast_to, np.ones(shape, np.float32), wanted)


@pytest.mark.parametrize("shape", [(2**40, 2**40), (0, 2**63), (1,) * 33, (2**64 - 1,)])
def test_a_shape_that_no_array_can_have_is_refused_by_name(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError):
        BUILTIN["broadcast_to"].evaluate((Aval((), F32),), {"shape": shape}, Scope())
    if 0 in shape:
        with pytest.raises(ShapeError):
            BUILTIN["reshape"].evaluate((Aval((0,), F32),), {"shape": shape}, Scope())


@given(data=st.data())
def test_a_slice_takes_the_positions_that_pythons_slices_take(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 6), max_size=3).map(tuple))
    index = tuple(data.draw(st.slices(size)) for size in shape)
    bounds = [taken.indices(size) for taken, size in zip(index, shape, strict=True)]
    starts, stops, steps = (tuple(b[n] for b in bounds) for n in range(3))
    mine = ours("slice", Aval(shape, F32), starts=starts, stops=stops, steps=steps)
    assert mine == theirs(lambda x: x[index], np.ones(shape, np.float32))


@pytest.mark.parametrize(
    ("starts", "stops", "steps"),
    [((-1, 0), (1, 1), (1, 1)), ((0, 0), (1, 4), (1, 1)), ((0, 0), (1, 1), (1, 0)), ((0,), (1,), (1,)), (0, 1, 1)],
)
def test_a_slice_beyond_the_array_is_refused(starts: Any, stops: Any, steps: Any) -> None:
    with pytest.raises(ShapeError):
        BUILTIN["slice"].evaluate((Aval((2, 3), F32),), {"starts": starts, "stops": stops, "steps": steps}, Scope())
