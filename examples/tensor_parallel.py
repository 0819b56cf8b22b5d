"""A tensor-parallel matmul: rows of x over "data", columns of w over "model", no communication at all.

python examples/tensor_parallel.py [size]
"""

import sys

import numpy as np

import shardserve as ss
from shardserve import P


@ss.jit(in_shardings=(P("data", None), P(None, "model"), P("model", None)), out_shardings=P("data", None))
def two_layers(x, w1, w2):
    """The usual pair: w1 split by columns, w2 by rows, one all-reduce at the end."""
    hidden = ss.with_sharding_constraint(ss.tanh(x @ w1), P("data", "model"))
    return hidden @ w2


def main(client: ss.Client, size: int = 1024) -> None:
    """One product, then a network of two layers."""
    rng = np.random.default_rng(0)
    x, w1, w2 = (rng.standard_normal((size, size), np.float32) / size**0.5 for _ in range(3))
    tp = client.with_options(mesh={"data": 4, "model": 2})
    z = tp.matmul(x, w1, in_shardings=(P("data", None), P(None, "model")), out_shardings=P("data", "model"))
    np.testing.assert_allclose(z, x @ w1, rtol=1e-3, atol=1e-4)
    y = tp.run(two_layers, x, w1, w2)
    np.testing.assert_allclose(y, np.tanh(x @ w1) @ w2, rtol=1e-3, atol=1e-4)
    print(f"{z.shape} and {y.shape}, on data=4 × model=2")


if __name__ == "__main__":
    with ss.LocalServer(devices=8) as server:
        main(server, *map(int, sys.argv[1:]))
