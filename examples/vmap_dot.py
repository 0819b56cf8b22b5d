"""vmap(dot) on (N, 3): a function in the style of jit, with replicated inputs and an output that is split.

python examples/vmap_dot.py [N]
"""

import sys

import numpy as np

import shardserve as ss
from shardserve import P


@ss.jit(in_shardings=None, out_shardings=P("devices"))
def dots(v1, v2):
    """One dot for each row."""
    return ss.vmap(ss.dot, in_axes=(0, 0))(v1, v2)


def main(client: ss.Client, n: int = 10_000_000) -> None:
    """None replicates: both inputs are whole on each device, and each computes its part of the result."""
    v1, v2 = np.random.default_rng(0).random((2, n, 3), np.float32)
    y = client.run(dots, v1, v2)
    np.testing.assert_allclose(y, np.vecdot(v1, v2), rtol=1e-5)
    print(f"{y.shape[0]:,} dot products; the first is {y[0]:.6f}")


if __name__ == "__main__":
    with ss.LocalServer(devices=8) as server:
        main(server, *map(int, sys.argv[1:]))
