"""Every kernel against NumPy, for random shapes, dtypes, meshes and specs; sizes rarely divide the mesh."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardserve_proto.dtypes import DTYPES, HALF_FLOATS
from shardserve_proto.errors import DTypeError
from shardserve_server.engine.engine import Engine
from tests.calls import Array, run

MESHES = [(("d", 1),), (("x", 2), ("y", 4)), (("x", 4), ("y", 2)), (("d", 8),), (("d", 5),)]
FLOATS = ["float32", "float64"]
REALS = ["bool", "int8", "uint8", "int32", "int64", "uint32", "float16", "float32", "float64", "bfloat16"]
SIZES = st.sampled_from([0, 1, 2, 3, 7, 8, 13])
COMPILING = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))


def sample(seed: int, shape: tuple[int, ...], dtype: str) -> Array:
    """Small values of a dtype, so that integers do not overflow by accident."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype.startswith(("int", "uint")):
        return rng.integers(0 if dtype.startswith("u") else -5, 6, shape).astype(dtype)
    values = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(DTYPES[dtype])


def tolerance(dtype: np.dtype[Any], terms: int) -> float:
    """A few units in the last place, and more for longer totals."""
    unit = {np.dtype(np.float16): 1e-3, DTYPES["bfloat16"]: 8e-3, np.dtype(np.float32): 1.2e-7}
    unit[np.dtype(np.complex64)] = 1.2e-7
    return 4 * unit.get(dtype, 2.3e-16) * (1 if dtype in HALF_FLOATS else 2 + terms)


def assert_same(ours: Array, reference: Any, *, dtype: np.dtype[Any], terms: int = 1, scale: float = 1.0) -> None:
    """NumPy's shape and dtype, and its values within the dtype's rounding."""
    reference = np.asarray(reference)
    assert ours.shape == reference.shape
    assert ours.dtype == dtype
    if dtype.kind in "biu":
        assert np.array_equal(ours, reference.astype(dtype))
        return
    wide = np.complex128 if dtype.kind == "c" else np.float64
    bound = tolerance(dtype, terms)
    np.testing.assert_allclose(ours.astype(wide), reference.astype(wide), rtol=bound, atol=bound * scale)


def specs(draw: st.DrawFn, mesh: tuple[tuple[str, int], ...], rank: int) -> tuple[Any, ...] | None:
    """A random spec: each mesh axis splits at most one dimension."""
    entries: list[Any] = [None] * rank
    for axis, _ in mesh:
        where = draw(st.integers(-1, rank - 1))
        if where >= 0:
            entries[where] = axis if entries[where] is None else (*np.atleast_1d(entries[where]).tolist(), axis)
    return tuple(entries)


@st.composite
def contractions(draw: st.DrawFn) -> tuple[Array, Array, dict[str, Any]]:
    m, k, n = draw(SIZES), draw(SIZES), draw(SIZES)
    mesh = draw(st.sampled_from(MESHES))
    left, right = draw(st.sampled_from(REALS)), draw(st.sampled_from(REALS))
    x, y = sample(draw(st.integers(0, 99)), (m, k), left), sample(draw(st.integers(0, 99)), (k, n), right)
    in_shardings = (specs(draw, mesh, 2), specs(draw, mesh, 2))
    return x, y, {"mesh": mesh, "in_shardings": in_shardings, "out_shardings": (specs(draw, mesh, 2),)}


def common(x: Array, y: Array) -> np.dtype[Any] | None:
    """NumPy's dtype; None for the mixes with bfloat16 that we refuse."""
    if DTYPES["bfloat16"] not in (x.dtype, y.dtype):
        return np.result_type(x, y)
    others = {x.dtype.name, y.dtype.name} - {"bfloat16"}
    if others <= {"bool", "int8", "uint8"}:
        return DTYPES["bfloat16"]
    return DTYPES[next(iter(others))] if others <= {"float32", "float64"} else None


@pytest.mark.parametrize("kernel", ["matmul", "dot"])
@given(case=contractions())
@COMPILING
def test_a_product_of_matrices_is_numpys_for_any_dtypes_sizes_and_specs(
    engine: Engine, kernel: str, case: tuple[Array, Array, dict[str, Any]]
) -> None:
    x, y, fields = case
    dtype = common(x, y)
    if dtype is None:
        with pytest.raises(DTypeError, match="cast"):
            run(engine, kernel, x, y, **fields)
        return
    is_float = dtype.kind == "f" or dtype in HALF_FLOATS
    wide = np.dtype(np.float64) if is_float else dtype
    ours = run(engine, kernel, x, y, **fields).value
    reference = getattr(np, kernel)(x.astype(wide), y.astype(wide))
    assert_same(ours, reference, dtype=dtype, terms=x.shape[1], scale=4.0)


@given(
    shape=st.tuples(SIZES, SIZES),
    dtype=st.sampled_from([*REALS, "complex64", "complex128"]),
    norm=st.sampled_from(["sum", "l2"]),
    axis=st.sampled_from([None, 0, 1, -1, (0, 1)]),
    mesh=st.sampled_from(MESHES),
    data=st.data(),
)
@COMPILING
def test_normalize_divides_by_a_total_in_double_precision(
    engine: Engine, shape: tuple[int, int], dtype: str, norm: str, axis: Any, mesh: Any, data: st.DataObject
) -> None:
    x = np.abs(sample(3, shape, dtype)) if not dtype.startswith("complex") else sample(3, shape, dtype)
    spec = data.draw(st.composite(specs)(mesh, 2))
    params = {"norm": norm, "axis": axis}
    ours = run(engine, "normalize", x, params=params, mesh=mesh, in_shardings=(spec,)).value
    wide = x.astype(np.complex128 if dtype.startswith("complex") else np.float64)
    total = (
        wide.sum(axis=axis, keepdims=True) if norm == "sum" else np.sqrt((abs(wide) ** 2).sum(axis=axis, keepdims=True))
    )
    with np.errstate(all="ignore"):
        reference = wide / total
    kept = x.dtype if x.dtype.kind in "fc" or dtype == "bfloat16" else np.dtype(np.float64)
    assert_same(ours, reference.astype(kept), dtype=kept, terms=8)


@pytest.mark.parametrize("kernel", ["add", "subtract", "multiply", "divide", "maximum", "minimum", "less", "equal"])
@given(
    shapes=st.sampled_from([((7, 5), (5,)), ((3, 1), (1, 9)), ((), (4,)), ((0, 3), (1, 3)), ((11,), (11,))]),
    dtypes=st.tuples(st.sampled_from(REALS[:-1]), st.sampled_from(REALS[:-1])),
)
@COMPILING
def test_a_binary_kernel_gives_numpys_value_dtype_and_refusal(
    engine: Engine, kernel: str, shapes: Any, dtypes: tuple[str, str]
) -> None:
    x, y = sample(1, shapes[0], dtypes[0]), sample(2, shapes[1], dtypes[1])
    try:
        with np.errstate(all="ignore"):
            reference = getattr(np, kernel)(x, y)
    except TypeError:
        with pytest.raises(DTypeError):
            run(engine, kernel, x, y)
        return
    ours = run(engine, kernel, x, y).value
    assert ours.dtype == reference.dtype
    np.testing.assert_array_equal(ours, reference)  # a single operation is exact


@pytest.mark.parametrize("kernel", ["exp", "log", "sqrt", "tanh", "abs", "negative"])
@given(
    dtype=st.sampled_from([*REALS[:-1], "complex64", "complex128"]), shape=st.sampled_from([(), (13,), (3, 7), (0,)])
)
@COMPILING
def test_a_unary_kernel_gives_numpys_value_dtype_and_refusal(
    engine: Engine, kernel: str, dtype: str, shape: tuple[int, ...]
) -> None:
    x = sample(5, shape, dtype)
    numpy_name = {"abs": "absolute"}.get(kernel, kernel)
    try:
        with np.errstate(all="ignore"):
            reference = getattr(np, numpy_name)(x)
    except TypeError:
        with pytest.raises(DTypeError):
            run(engine, kernel, x)
        return
    assert_same(run(engine, kernel, x).value, reference, dtype=np.asarray(reference).dtype, terms=4)


@pytest.mark.parametrize("kernel", ["sum", "mean", "max", "min"])
@given(
    shape=st.tuples(st.sampled_from([1, 2, 7, 8, 13]), SIZES.filter(bool)),
    dtype=st.sampled_from(REALS[:-1]),
    axis=st.sampled_from([None, 0, 1, -1, (0, 1), (1,)]),
    keepdims=st.booleans(),
    mesh=st.sampled_from(MESHES),
    data=st.data(),
)
@COMPILING
def test_a_reduction_gives_numpys_value_and_dtype(
    engine: Engine, kernel: str, shape: Any, dtype: str, axis: Any, keepdims: bool, mesh: Any, data: st.DataObject
) -> None:
    x = sample(7, shape, dtype)
    spec = data.draw(st.composite(specs)(mesh, 2))
    params = {"axis": axis, "keepdims": keepdims}
    ours = run(engine, kernel, x, params=params, mesh=mesh, in_shardings=(spec,)).value
    wide = x.astype(np.float64) if dtype == "float16" else x
    reference = np.asarray(getattr(np, kernel)(wide, axis=axis, keepdims=keepdims))
    promised = np.asarray(getattr(np, kernel)(x, axis=axis, keepdims=keepdims)).dtype
    assert_same(ours, reference.astype(promised), dtype=promised, terms=x.size, scale=4.0)


@pytest.mark.parametrize(
    ("subscripts", "shapes"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]), ("ki,ki->i", [(3, 7), (3, 7)]), ("ii->i", [(4, 4)]), ("ij->ji", [(3, 5)]),
        ("ij,jk", [(3, 4), (4, 5)]), ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]), ("i,j,k->ijk", [(2,), (3,), (4,)]),
        ("ij->", [(3, 5)]), ("b...,b...->...b", [(6, 2, 3), (6, 2, 3)]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "complex64"])
def test_einsum_gives_numpys_value(engine: Engine, subscripts: str, shapes: Any, dtype: str) -> None:
    operands = [sample(index, shape, dtype) for index, shape in enumerate(shapes)]
    ours = run(engine, "einsum", *operands, params={"subscripts": subscripts}).value
    reference = np.einsum(subscripts, *operands)
    assert_same(ours, reference, dtype=reference.dtype, terms=16, scale=8.0)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_identity_is_exact_in_every_dtype_of_the_table_on_every_mesh(engine: Engine, dtype: str) -> None:
    x = np.arange(8).reshape(4, 2).astype(DTYPES[dtype])
    for mesh in MESHES:
        ours = run(engine, "identity", x, mesh=mesh, in_shardings=((mesh[0][0], None),)).value
        assert ours.dtype == x.dtype
        assert ours.tobytes() == x.tobytes()


@pytest.mark.parametrize(
    ("kernel", "params", "reference"),
    [
        ("reshape", {"shape": (6, -1)}, lambda x: x.reshape(6, -1)),
        ("transpose", {"axes": None}, np.transpose),
        ("transpose", {"axes": (1, 0, -1)}, lambda x: x.transpose(1, 0, -1)),
        ("broadcast_to", {"shape": (5, 3, 4, 2)}, lambda x: np.broadcast_to(x, (5, 3, 4, 2))),
        ("astype", {"dtype": "int16"}, lambda x: x.astype("int16")),
        ("slice", {"starts": (1, 0, 1), "stops": (3, 4, 2), "steps": (1, 2, 1)}, lambda x: x[1:3, 0:4:2, 1:2]),
        ("slice", {"starts": (2, 3, 0), "stops": (-1, 0, 2), "steps": (-1, -2, 1)}, lambda x: x[::-1, 3:0:-2]),
        ("slice", {"starts": (3, 0, 0), "stops": (1, 4, 2), "steps": (1, 3, 1)}, lambda x: x[3:1, ::3]),
    ],
)
@pytest.mark.parametrize("spec", [None, ("d",), (None, "d"), (None, None, "d")])
def test_a_kernel_that_only_moves_elements_is_exact(
    engine: Engine, kernel: str, params: dict[str, Any], reference: Any, spec: Any
) -> None:
    x = np.arange(24, dtype=np.float32).reshape(3, 4, 2)
    ours = run(engine, kernel, x, params=params, mesh=(("d", 8),), in_shardings=(spec,)).value
    assert ours.dtype == reference(x).dtype
    np.testing.assert_array_equal(ours, reference(x))
