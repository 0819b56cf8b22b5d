"""Normalize a 100×100 array on a 4×2 mesh, rows over x and columns over y: a kernel, and a function of one's own.

python examples/normalize.py [rows columns]
"""

import sys

import numpy as np

import shardserve as ss


@ss.xmap(in_axes=["rows", "cols"], out_axes=["rows", "cols"], axis_resources={"rows": "x", "cols": "y"})
def normalize(x):
    """Divide by the total: x has no dimension here, and psum runs over both names."""
    return x / ss.psum(x, ("rows", "cols"))


def main(client: ss.Client, rows: int = 100, cols: int = 100) -> None:
    """Both ways, on any shape, even or not."""
    arr = np.random.default_rng(0).random((rows, cols))
    with client.mesh({"x": 4, "y": -1}):
        mine = client.run(normalize, arr)
        kernel = client.normalize(
            arr,
            norm="sum",
            in_axes=["rows", "cols"],
            out_axes=["rows", "cols"],
            axis_resources={"rows": "x", "cols": "y"},
        )
    np.testing.assert_allclose(mine, arr / arr.sum(), rtol=1e-12)
    np.testing.assert_allclose(kernel, arr / arr.sum(), rtol=1e-12)
    print(f"{arr.shape} normalized; the total is now {mine.sum():.6f}")


if __name__ == "__main__":
    with ss.LocalServer(devices=8) as server:
        main(server, *map(int, sys.argv[1:]))
