"""Ten million dot products, (3, N) × (3, N) → (N,): the axis "batch" is split over all devices.

python examples/batched_dot.py [N]
"""

import sys

import numpy as np

import shardserve as ss


def main(client: ss.Client, n: int = 10_000_000) -> None:
    """By dot with a named axis, and by einsum, whose labels are named axes."""
    v1s, v2s = np.random.default_rng(0).random((2, 3, n), np.float32)
    by_dot = client.dot(
        v1s,
        v2s,
        in_axes=({1: "batch"}, {1: "batch"}),
        out_axes=["batch", ...],
        axis_resources={"batch": "devices"},
    )
    by_einsum = client.einsum("ki,ki->i", v1s, v2s, axis_resources={"i": "devices"})
    expected = np.einsum("ki,ki->i", v1s, v2s)
    np.testing.assert_allclose(by_dot, expected, rtol=1e-5)
    np.testing.assert_allclose(by_einsum, expected, rtol=1e-5)
    print(f"{by_dot.shape[0]:,} dot products; the first is {by_dot[0]:.6f}")


if __name__ == "__main__":
    with ss.LocalServer(devices=8) as server:
        main(server, *map(int, sys.argv[1:]))
