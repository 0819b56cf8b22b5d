"""The inputs of the measurements, made the same way in each process from one seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

SMALL = 256  # float32, so 1 KiB
BATCH = 10_000_000


def small_vectors() -> tuple[Floats, Floats]:
    """Two vectors of 1 KiB."""
    x, y = np.random.default_rng(0).random((2, SMALL), np.float32)
    return x, y


def batched_vectors(batch: int) -> tuple[Floats, Floats]:
    """Pairs of 3-vectors, as (3, batch); 120 MB each when there are ten million."""
    x, y = np.random.default_rng(0).random((2, 3, batch), np.float32)
    return x, y


def fingerprint(result: npt.NDArray[Any]) -> list[float]:
    """What a process says of its result, so that it can be checked in another."""
    flat = np.asarray(result).reshape(-1)
    return [float(flat.astype(np.float64).sum()), float(flat[0]), float(flat[flat.size // 2]), float(flat[-1])]


def check(found: list[float], expected: list[float], what: str) -> None:
    """Hold a result against the right one.

    Raises:
        ValueError: it is wrong, which voids the run.
    """
    if not np.allclose(found, expected, rtol=1e-5):
        raise ValueError(f"{what} computed {found}, not {expected}")
