"""The seven chapters of the tour."""

from __future__ import annotations

from typing import Any

import numpy as np

import shardserve as ss
from shardserve import P

from .tour import Array, Tour

NAMED: dict[str, Any] = {
    "in_axes": ["rows", "cols"],
    "out_axes": ["rows", "cols"],
    "axis_resources": {"rows": "x", "cols": "y"},
}
MILLIONS = 10_000_000


def pairs(*shape: int, seed: int) -> tuple[Array, Array]:
    """Two arrays of float32, uniform in [0, 1)."""
    first, second = np.random.default_rng(seed).random((2, *shape), np.float32)
    return first, second


def normalization(tour: Tour) -> None:
    """Named axes over a grid of devices."""
    tour.screen.chapter(
        1,
        "Normalization over two named axes",
        "100×100 numbers on a 4×2 mesh: rows are split over x, columns over y. The total needs every device.",
    )
    arr = np.random.default_rng(1).random((100, 100))
    tour = tour.on({"x": 4, "y": 2})
    tour.screen.code(
        'axes = dict(in_axes=["rows", "cols"], out_axes=["rows", "cols"],\n'
        '            axis_resources={"rows": "x", "cols": "y"})\n'
        'client.normalize(arr, norm="sum", **axes)'
    )
    tour.compare(
        lambda client: client.normalize(arr, norm="sum", **NAMED),
        lambda: arr / arr.sum(),
        claim="the kernel gives NumPy's numbers",
        rtol=1e-12,
    )
    mine = ss.xmap(lambda x: x / ss.psum(x, ("rows", "cols")), **NAMED)
    tour.screen.code('mine = ss.xmap(lambda x: x / ss.psum(x, ("rows", "cols")), **axes)\nclient.run(mine, arr)')
    tour.compare(
        lambda client: client.run(mine, arr),
        lambda: arr / arr.sum(),
        claim="the user's own function gives the same",
        rtol=1e-12,
        draw=False,
    )


def batched_dot(tour: Tour) -> None:
    """Ten million dot products."""
    tour.screen.chapter(
        2,
        "Ten million dot products",
        "(3, 10 000 000) × (3, 10 000 000): the axis 'batch' is split over all devices. 240 MB go up, 40 MB come back.",
    )
    v1s, v2s = pairs(3, MILLIONS // tour.scale, seed=2)

    def numpy_dots() -> Array:
        return np.asarray(np.einsum("ki,ki->i", v1s, v2s))

    tour.screen.code(
        'client.dot(v1s, v2s, in_axes=({1: "batch"}, {1: "batch"}),\n'
        '           out_axes=["batch", ...], axis_resources={"batch": "devices"})'
    )
    tour.compare(
        lambda client: client.dot(
            v1s,
            v2s,
            in_axes=({1: "batch"}, {1: "batch"}),
            out_axes=["batch", ...],
            axis_resources={"batch": "devices"},
        ),
        numpy_dots,
        claim="dot under a mapping gives NumPy's numbers",
        rtol=1e-5,
    )
    tour.screen.code('client.einsum("ki,ki->i", v1s, v2s, axis_resources={"i": "devices"})')
    tour.compare(
        lambda client: client.einsum("ki,ki->i", v1s, v2s, axis_resources={"i": "devices"}),
        numpy_dots,
        claim="einsum, whose labels are named axes, gives the same",
        rtol=1e-5,
        draw=False,
    )


def vmapped_dot(tour: Tour) -> None:
    """The same in the style of pjit."""
    tour.screen.chapter(
        3,
        "vmap(dot) in the style of jit",
        "(10 000 000, 3), inputs replicated on every device, the output split: None and P() mean whole on each device.",
    )
    v1, v2 = pairs(MILLIONS // tour.scale, 3, seed=3)

    def dots(a: Any, b: Any) -> Any:
        return ss.vmap(ss.dot, in_axes=(0, 0))(a, b)

    split = ss.jit(dots, in_shardings=None, out_shardings=P("devices"))
    tour.screen.code(
        '@ss.jit(in_shardings=None, out_shardings=P("devices"))\n'
        "def dots(v1, v2):\n"
        "    return ss.vmap(ss.dot, in_axes=(0, 0))(v1, v2)\n\n"
        "client.run(dots, v1, v2)"
    )
    tour.compare(
        lambda client: client.run(split, v1, v2),
        lambda: np.vecdot(v1, v2),
        claim="ten million rows agree with numpy.vecdot",
        rtol=1e-5,
    )


def mistakes(tour: Tour) -> None:
    """What bad calls are told."""
    tour.screen.chapter(
        4, "Two mistakes", "Each is refused before anything is computed, and the error says what would work."
    )
    v = np.ones(3, np.float32)
    tour.screen.code('client.dot(v1, v2, out_shardings=P("devices"))   # v1 · v2 is one number')
    tour.expect_error(
        lambda client: client.dot(v, v, out_shardings=P("devices")),
        ss.ShardingError,
        "rank 0",
        "batch axis",
        claim="a ShardingError that names the fix",
    )
    v1s = np.ones((MILLIONS, 3), np.float32)
    tour.screen.code("client.dot(v1s, v1s.T)                           # ten million squared numbers")
    tour.expect_error(
        lambda client: client.dot(v1s, v1s.T),
        ss.TooLarge,
        "400000000000000",
        claim="refused by its size, with the bytes it would take",
    )


def all_reduce_dot(tour: Tour) -> None:
    """Both inputs split in both directions."""
    tour.screen.chapter(
        5,
        "An all-reduce inside",
        "4 000 pairs of 10 000-vectors as P('x', 'y') on a 2×4 mesh: each device has a block of them, and the partial "
        "dots are summed over y.",
    )
    a, b = pairs(4_000 // tour.scale, 10_000, seed=5)
    tour.screen.code(
        'client.vecdot(a, b, mesh={"x": 2, "y": 4},\n              in_shardings=P("x", "y"), out_shardings=P("x"))'
    )
    tour.compare(
        lambda client: client.vecdot(a, b, mesh={"x": 2, "y": 4}, in_shardings=P("x", "y"), out_shardings=P("x")),
        lambda: np.vecdot(a, b),
        claim="4 000 dots agree with numpy.vecdot",
        rtol=1e-4,
    )


def tensor_parallel(tour: Tour) -> None:
    """The layout of large models."""
    tour.screen.chapter(
        6,
        "A tensor-parallel matmul",
        "x is split by rows over 'data', w by columns over 'model'. Each device multiplies its blocks; nothing is "
        "exchanged.",
    )
    rng = np.random.default_rng(6)
    x, w = rng.standard_normal((512, 2048), np.float32), rng.standard_normal((2048, 1024), np.float32)
    tour = tour.on({"data": 4, "model": 2})
    tour.screen.code(
        'tp = client.with_options(mesh={"data": 4, "model": 2})\n'
        'tp.matmul(x, w, in_shardings=(P("data", None), P(None, "model")),\n'
        '          out_shardings=P("data", "model"))'
    )
    tour.compare(
        lambda client: client.matmul(
            x, w, in_shardings=(P("data", None), P(None, "model")), out_shardings=P("data", "model")
        ),
        lambda: x @ w,
        claim="the product agrees with NumPy's",
        rtol=1e-4,
        atol=1e-3,
    )


def digits(tour: Tour) -> None:
    """Real images, one program."""
    tour.screen.chapter(
        7,
        "Which images are alike?",
        "scikit-learn's digits, 1797 × 64: unit rows and the similarity of every pair, in one program.",
    )
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        tour.screen.skip("scikit-learn is not installed; pip install scikit-learn brings the images")
        return
    images: Array = load_digits().data.astype(np.float32)

    def similarity(x: Any) -> Any:
        unit = ss.normalize(x, norm="l2", axis=1)
        return unit @ unit.T

    split = ss.jit(similarity, in_shardings=P("devices", None), out_shardings=P("devices", None))

    def by_numpy() -> Array:
        unit = images / np.linalg.norm(images, axis=1, keepdims=True)
        return np.asarray(unit @ unit.T)

    tour.screen.code(
        '@ss.jit(in_shardings=P("devices", None), out_shardings=P("devices", None))\n'
        "def similarity(x):\n"
        '    unit = ss.normalize(x, norm="l2", axis=1)\n'
        "    return unit @ unit.T\n\n"
        "client.run(similarity, images)"
    )
    tour.compare(
        lambda client: client.run(split, images),
        by_numpy,
        claim="1797 × 1797 similarities agree with NumPy",
        rtol=1e-5,
        atol=1e-6,
    )


CHAPTERS = (normalization, batched_dot, vmapped_dot, mistakes, all_reduce_dot, tensor_parallel, digits)
