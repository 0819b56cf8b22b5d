"""The inputs of the measurements, made the same way in each process from one seed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

SMALL = 256  # float32, so 1 KiB
#: The einsum suite: subscripts -> shapes. The first is the matmul of 2048³.
PRODUCTS: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "ij,jk->ik": ((2048, 2048), (2048, 2048)),
    "bij,bjk->bik": ((64, 256, 256), (64, 256, 256)),
    "ij,kj->ik": ((1024, 2048), (1024, 2048)),
    "ijk->ij": ((256, 256, 256),),
}
COLUMNS = 128  # 4 KiB are eight rows: one for each device


def small_vectors() -> tuple[Floats, Floats]:
    """Two vectors of 1 KiB."""
    return vectors(SMALL)


@lru_cache(maxsize=2)
def vectors(size: int) -> tuple[Floats, Floats]:
    """Two vectors."""
    x, y = np.random.default_rng(0).random((2, size), np.float32)
    return x, y


@lru_cache(maxsize=1)
def batched_vectors(batch: int) -> tuple[Floats, Floats]:
    """Pairs of 3-vectors, as (3, batch); 120 MB each when there are ten million."""
    x, y = np.random.default_rng(0).random((2, 3, batch), np.float32)
    return x, y


@lru_cache(maxsize=1)
def payload(nbytes: int) -> Floats:
    """A matrix of so many bytes, whose rows can be split eight ways."""
    return np.random.default_rng(0).random(nbytes // 4, np.float32).reshape(-1, COLUMNS)


@lru_cache(maxsize=1)
def square(nbytes: int) -> tuple[Floats, Floats]:
    """A square matrix of so many bytes, and a vector for it."""
    side = math.isqrt(nbytes // 4)
    random = np.random.default_rng(0)
    return random.random((side, side), np.float32), random.random(side, np.float32)


@lru_cache(maxsize=1)
def product_operands(subscripts: str) -> tuple[Floats, ...]:
    """The operands of an einsum of the suite."""
    random = np.random.default_rng(0)
    return tuple(random.random(shape, np.float32) for shape in PRODUCTS[subscripts])


def release() -> None:
    """Let go of the inputs of the measurement before."""
    for made in (vectors, batched_vectors, payload, square, product_operands):
        made.cache_clear()


def check(found: npt.NDArray[Any], expected: npt.NDArray[Any], *, exactly: bool = False) -> None:
    """Hold a result against the right one.

    Raises:
        ValueError: it is wrong, which voids the round.
    """
    found, expected = np.asarray(found), np.asarray(expected)
    if found.size != expected.size or found.dtype != expected.dtype:
        raise ValueError(f"a wrong answer: {found.dtype} {found.shape}, not {expected.dtype} {expected.shape}")
    both = found.reshape(-1), expected.reshape(-1)
    if not (np.array_equal(*both) if exactly else np.allclose(*both, rtol=1e-4)):
        raise ValueError(f"a wrong answer: {both[0][:3]} …, not {both[1][:3]} …")
