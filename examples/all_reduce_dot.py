"""Pairs of long vectors, split in both directions: P("x", "y") on a 2×4 mesh, the result P("x"), an all-reduce inside.

python examples/all_reduce_dot.py [pairs length]
"""

import sys

import numpy as np

import shardserve as ss
from shardserve import P


def main(client: ss.Client, pairs: int = 4_000, length: int = 10_000) -> None:
    """Each device holds a block of pairs and of elements; partial dots are summed over y."""
    x, y = np.random.default_rng(0).random((2, pairs, length), np.float32)
    z = client.vecdot(x, y, mesh={"x": 2, "y": 4}, in_shardings=P("x", "y"), out_shardings=P("x"))
    np.testing.assert_allclose(z, np.vecdot(x, y), rtol=1e-4)
    print(f"{z.shape[0]:,} dots of {length:,} elements; the first is {z[0]:.3f}")


if __name__ == "__main__":
    with ss.LocalServer(devices=8) as server:
        main(server, *map(int, sys.argv[1:]))
