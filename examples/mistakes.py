"""Two classic mistakes, and the errors that they get: splitting a single number, and a result of 800 TB.

python examples/mistakes.py
"""

import numpy as np

import shardserve as ss
from shardserve import P


def main(client: ss.Client, n: int = 10_000_000) -> None:
    """Each is refused before anything is computed, and says what would work."""
    v = np.ones(3, np.float32)
    try:
        client.dot(v, v, out_shardings=P("devices"))
    except ss.ShardingError as error:
        print(f"ShardingError: {error}\n")
    else:
        raise AssertionError("the dot of two vectors is one number and cannot be split")

    v1s = np.ones((n, 3), np.float32)
    try:
        client.dot(v1s, v1s.T)  # meant: client.vecdot(v1s, v1s)
    except ss.TooLarge as error:
        print(f"TooLarge: {error}")
    else:
        raise AssertionError(f"an {n:,} × {n:,} array does not fit")


if __name__ == "__main__":
    with ss.LocalServer(devices=8) as server:
        main(server)
