"""A catalogue of vectors that stays on the devices: put once, asked many times, replaced under its name.

python examples/resident_arrays.py [vectors]
"""

import sys

import numpy as np

import shardserve as ss
from shardserve import P


def nearest(catalogue, query):
    """How similar each vector is to the query, and the best similarity."""
    scores = ss.normalize(catalogue, norm="l2", axis=1) @ ss.normalize(query, norm="l2")
    return scores, scores.max()


def main(client: ss.Client, vectors: int = 100_000) -> None:
    """Only queries and answers cross the network."""
    rng = np.random.default_rng(0)
    big = rng.random((vectors, 64), np.float32)
    h = client.put(big, P("devices", None), name="catalogue", ttl=3600)
    print(h)
    print(h.visualize())

    query = rng.random(64, np.float32)
    scores, best = client.run(nearest, h, query)  # handles, as the catalogue is one
    expected = big @ query / np.linalg.norm(big, axis=1) / np.linalg.norm(query)
    np.testing.assert_allclose(scores.numpy(), expected, rtol=1e-4)
    print(f"the best of {len(scores):,} scores is {float(best):.4f}; the first three are {np.asarray(scores[:3])}")

    client.put(big[::-1], P("devices", None), name="catalogue", replace=True)  # running calls keep the old one
    np.testing.assert_array_equal(client.attach("catalogue")[0].numpy(), big[-1])
    print(client.arrays())
    client.delete("catalogue")


if __name__ == "__main__":
    with ss.LocalServer(devices=8) as server:
        main(server, *map(int, sys.argv[1:]))
