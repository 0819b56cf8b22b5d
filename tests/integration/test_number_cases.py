"""Bug reports about numbers, each asked of a real server through the client: NumPy's answer, or a named error.

The ids are those of the project's collection of cases (section A dtypes, D numerics).
"""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import shardserve as ss
from shardserve import P

GRID = {"x": 4, "y": 2}
LINE = {"d": 8}


# --- A. dtypes and numbers that change on the way --------------------------------------------------------------------


def test_int64_keeps_its_64_bits(client: ss.Client) -> None:
    """B01."""
    found = client.dot(np.array([2**32, 7]), np.array([1, 0]))
    assert found == 4294967296
    assert found.dtype == np.int64
    x = np.array([2**32, 2**31, -1])
    np.testing.assert_array_equal(client.identity(x), x)
    assert client.identity(x).dtype == np.int64


def test_float64_is_computed_as_float64_and_float32_at_full_precision(client: ss.Client) -> None:
    """B02; the precision of the compiled dot is held by tests/server/engine/test_executable.py."""
    x, y = np.array([[0.3744, 0.1656], [0.4707, 0.1663]]), np.array([[0.3946, 0.1186], [0.1569, 0.3145]])
    np.testing.assert_allclose(client.matmul(x, y), x @ y, rtol=1e-14)
    low = client.matmul(x.astype(np.float32), y.astype(np.float32))
    assert low.dtype == np.float32
    np.testing.assert_allclose(low, x @ y, rtol=2e-6)


def test_the_range_of_float64_stays(client: ss.Client) -> None:
    """B03."""
    assert client.dot(np.array([1e300, 1.0]), np.array([1e-300, 2.0])) == 3.0


def test_uint32_with_int32_is_int64(client: ss.Client) -> None:
    """B04."""
    found = client.dot(np.array([4294967295], np.uint32), np.array([1], np.int32))
    assert found == 4294967295
    assert found.dtype == np.int64
    assert not client.less(np.array([2**31], np.uint32), np.array([0], np.int32))[0]


@pytest.mark.parametrize("dtype", [">f8", "<f8", ">i4"])
def test_byte_order_does_not_matter(client: ss.Client, dtype: str) -> None:
    """B05."""
    x = np.array([0, 1, 4, 5]).astype(dtype)
    found = client.normalize(x, norm="sum")
    np.testing.assert_allclose(found, [0, 0.1, 0.4, 0.5], rtol=1e-15)
    assert found.dtype == np.float64
    assert found.dtype.isnative
    identical = client.identity(x)
    np.testing.assert_array_equal(identical, x)
    assert identical.dtype.isnative


def test_any_memory_layout_arrives_as_it_is(client: ss.Client) -> None:
    """B06."""
    a = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    layouts = [np.asfortranarray(a), a.T, a[::-1], a[:, ::2], np.broadcast_to(np.float32(3), (2, 3))]
    for x in layouts:
        found = client.identity(x)
        assert found.shape == x.shape
        np.testing.assert_array_equal(found, x)


def test_rank_0_stays_rank_0(client: ss.Client) -> None:
    """B07."""
    for x, dtype in ((np.array(0.7, np.float32), np.float32), (np.float64(3.0), np.float64), (2.0, np.float64)):
        found = client.identity(x)
        assert found.shape == ()
        assert found.dtype == dtype
        assert float(found) == float(x)
    assert client.dot([1, 2], [3, 4]).shape == ()
    assert client.dot([1, 2], [3, 4]) == 11


def test_bfloat16_is_not_void(client: ss.Client) -> None:
    """B08."""
    found = client.identity(np.arange(4, dtype=ml_dtypes.bfloat16))
    assert found.dtype.name == "bfloat16"
    np.testing.assert_array_equal(found.astype(float), [0, 1, 2, 3])
    ones = np.ones((4, 4), ml_dtypes.bfloat16)
    product = client.matmul(ones, ones)
    assert product.dtype.name == "bfloat16"
    assert (product.astype(float) == 4).all()


@pytest.mark.parametrize("name", ["float8_e5m2", "float8_e4m3fn", "int4"])
def test_the_small_kinds_keep_their_names(client: ss.Client, name: str) -> None:
    """B09."""
    x = np.array([1.5, -2, 0.25]).astype(getattr(ml_dtypes, name))
    found = client.identity(x)
    assert found.dtype.name == name
    assert found.tobytes() == x.tobytes()


@pytest.mark.parametrize(
    "x",
    [
        np.zeros(2, [("a", "u4"), ("b", "S1")]),  # B10
        np.array(["hi"]), np.array([None, 1], object), np.array([b"x"]), np.array(["2020-01-01"], "M8[D]"),  # B11
        np.ones(2, np.longdouble),
    ],
)  # fmt: skip
def test_what_cannot_be_carried_is_refused_before_a_byte_is_sent(client: ss.Client, x: Any) -> None:
    """B10, B11: the same for each, by dtype and argument position."""
    with client.record() as log, pytest.raises(ss.UnsupportedArray, match="argument 1") as raised:
        client.dot(np.ones(2), x)
    assert str(x.dtype) in str(raised.value)
    assert isinstance(raised.value, TypeError)
    assert len(log) == 0


def test_nan_in_a_json_answer_is_no_error(client: ss.Client, server_url: str) -> None:
    """B13."""
    assert np.isnan(client.dot([np.nan, 1.0], [1.0, 1.0]))
    body = json.dumps({"arguments": [["NaN", 1.0], [1.0, "Infinity"]]}).encode()
    request = urllib.request.Request(  # noqa: S310 - loopback
        f"{server_url}/v1/kernels/dot", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as reply:  # noqa: S310
        assert reply.status == 200
        assert json.load(reply)["results"][0]["data"] == "NaN"


def test_results_are_the_callers_own(client: ss.Client) -> None:
    """B14."""
    first, second = client.normalize(np.ones(4), norm="sum"), client.normalize(np.ones(4), norm="sum")
    first += 1
    assert first.flags.writeable
    assert not np.shares_memory(first, second)
    np.testing.assert_array_equal(second, [0.25] * 4)


def test_an_argument_may_change_once_the_call_is_over(client: ss.Client) -> None:
    """B15."""
    raw = np.empty(2**20 + 16, np.float32)
    start = (-raw.ctypes.data % 64) // 4
    a = raw[start : start + 2**20]
    a[:] = 1
    found = client.identity(a)
    a[:] = 7
    assert (found == 1).all()
    assert client.sum(np.ones(2**20, np.float32)) == 2**20


# --- D. numerics -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mesh", [{"d": 1}, LINE])
@pytest.mark.parametrize("size", [8, 10_000])
def test_max_and_min_keep_nan(client: ss.Client, mesh: dict[str, int], size: int) -> None:
    """B39."""
    x = np.ones(size, np.float32)
    x[min(1234, size - 1)] = np.nan
    assert np.isnan(client.max(x, mesh=mesh, in_shardings=P("d")))
    assert np.isnan(client.min(x, mesh=mesh, in_shardings=P("d")))
    for reduce in (ss.pmax, ss.pmin):
        function = ss.xmap(lambda v, r=reduce: r(v, "i"), in_axes=["i"], out_axes=[...], axis_resources={"i": "d"})
        with client.mesh(mesh):
            assert np.isnan(client.run(function, x))


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (np.full(8, 200, np.uint8), [0.125] * 8),
        (np.full(4, 2**30, np.int32), [0.25] * 4),
        (np.full(8, 100, np.int8), [0.125] * 8),
        (np.array([1, 1, 0, 0], bool), [0.5, 0.5, 0, 0]),
    ],
)
def test_normalize_of_small_integers_does_not_wrap(client: ss.Client, x: Any, expected: list[float]) -> None:
    """B40; the user's own x / psum(x) neither."""
    found = client.normalize(x, norm="sum")
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, expected)
    own = ss.xmap(lambda v: v / ss.psum(v, "i"), in_axes=["i"], out_axes=["i"], axis_resources={"i": "devices"})
    np.testing.assert_array_equal(client.run(own, x), expected)


def test_16_bit_totals_are_kept_in_32_bits(client: ss.Client) -> None:
    """B41."""
    found = client.normalize(np.ones(1000, ml_dtypes.bfloat16), norm="sum")
    assert found.dtype.name == "bfloat16"
    assert (found.astype(float) == 0.00099945068359375).all()
    np.testing.assert_array_equal(client.normalize(np.full(8, 20000, np.float16), norm="sum"), [0.125] * 8)
    x = np.array([2048] + [1] * 7, np.float16)
    assert client.sum(x, mesh=LINE, in_shardings=P("d")) == 2056
    total = ss.xmap(lambda v: ss.psum(v, "d"), in_axes=["d"], out_axes=[...])
    with client.mesh(LINE):
        assert client.run(total, x) == 2056


def test_a_total_over_the_range_of_float32_does_not_make_zeros(client: ss.Client) -> None:
    """B42."""
    huge = np.full(8, 1e38, np.float32)
    np.testing.assert_array_equal(client.normalize(huge, norm="sum"), np.full(8, 0.125, np.float32))
    x = np.array([1, 2, 3, 4], np.float32)
    np.testing.assert_array_max_ulp(client.normalize(x, norm="sum"), x / x.sum(), maxulp=1)
    y = np.array([1e38, 1e38], np.float32)
    np.testing.assert_array_equal(client.divide(y, np.float32(1e38)), np.ones(2, np.float32))


def test_an_int8_product_wraps_as_in_numpy_and_widens_when_asked(client: ss.Client) -> None:
    """B44; docs/numbers.md says which."""
    a, b = np.array([[-44, -20], [-126, 6]], np.int8), np.array([[24, -75], [127, -101]], np.int8)
    wide = client.matmul(a, b, dtype="int32")
    assert wide.dtype == np.int32
    np.testing.assert_array_equal(wide, [[-3596, 5320], [-2262, 8844]])
    narrow = client.matmul(a, b)
    assert narrow.dtype == np.int8
    np.testing.assert_array_equal(narrow, a @ b)


@pytest.mark.parametrize("spec", [None, P("x"), P(None, "y"), P("x", "y")])
def test_a_slice_of_a_product_is_the_product_of_the_slice(client: ss.Client, spec: Any) -> None:
    """B46."""
    rng = np.random.default_rng(0)
    x, k = rng.standard_normal((2, 4)).astype(np.float32), rng.standard_normal((4, 2)).astype(np.float32)
    whole = client.matmul(x, k, mesh=GRID, in_shardings=(spec, None))
    for i in range(2):
        np.testing.assert_allclose(whole[i : i + 1], client.matmul(x[i : i + 1], k), rtol=2e-6, atol=2e-6)


def test_bfloat16_with_int8_is_rounded_once(client: ss.Client) -> None:
    """B48."""
    a, b = np.array([[-1.6171875, 0.5703125]], ml_dtypes.bfloat16), np.array([[127], [-4]], np.int8)
    assert client.matmul(a, b, dtype="float32")[0, 0] == pytest.approx(-207.66406, rel=1e-5)
    default = client.matmul(a, b)
    assert default.dtype.name == "bfloat16"
    assert float(default[0, 0]) == -208


def test_subnormals_pass_through_identity_and_the_server_says_that_they_flush(client: ss.Client) -> None:
    """B50."""
    tiny = np.array([1e-40], np.float32)
    assert client.identity(tiny).tobytes() == tiny.tobytes()
    assert client.dot(tiny, np.ones(1, np.float32)) in (np.float32(1e-40), np.float32(0))
    assert any("subnormal" in note for note in client.info().notes)


def test_the_same_request_gives_the_same_bits(client: ss.Client) -> None:
    """B51."""
    x = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    assert len({client.sum(x, mesh=LINE, in_shardings=P("d")).tobytes() for _ in range(50)}) == 1
    totals = [float(client.sum(x, mesh={"d": n}, in_shardings=P("d"))) for n in (1, 2, 4, 8)]
    assert max(totals) - min(totals) <= 1e-6 * float(np.abs(x).sum())
