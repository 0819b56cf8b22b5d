"""Ten million dot products with the batch over eight devices, beside JAX in process and NumPy."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import shardserve as ss

from .children import LocalJax
from .inputs import batched_vectors, check, fingerprint
from .phases import median_phases
from .rounds import Contender, Rounds, interleave, time_calls

OURS, NUMPY = "shardserve", "NumPy einsum"
JAX, JAX_EINSUM = "JAX in process, terms written out", "JAX in process, einsum"
NAMED: dict[str, Any] = {
    "in_axes": ({1: "batch"}, {1: "batch"}),
    "out_axes": ["batch", ...],
    "axis_resources": {"batch": "devices"},
}


@dataclass(frozen=True)
class BatchedDot:
    """The result: seconds of every call, and the server's own phases."""

    rounds: Rounds
    phases_s: Mapping[str, float]


def measure(client: ss.Client, jax: LocalJax, *, rounds: int, calls: int, batch: int) -> BatchedDot:
    """Interleaved rounds of all contenders; every answer is checked."""
    x, y = batched_vectors(batch)
    expected = fingerprint(np.einsum("ki,ki->i", x, y))

    def ours() -> list[float]:
        check(fingerprint(client.dot(x, y, **NAMED)), expected, OURS)
        return time_calls(lambda: client.dot(x, y, **NAMED), calls)

    def local(formula: str) -> list[float]:
        seconds, found = jax.run(formula, calls, batch=batch)
        check(found, expected, JAX)
        return seconds

    contenders: dict[str, Contender] = {
        OURS: ours,
        JAX: functools.partial(local, "written out"),
        JAX_EINSUM: functools.partial(local, "einsum"),
        NUMPY: lambda: time_calls(lambda: np.einsum("ki,ki->i", x, y), calls),
    }
    with client.record() as log:
        measured = interleave(contenders, rounds=rounds)
    warm = log[1 + calls + 1 :]  # not the first round, which compiled
    return BatchedDot(measured, median_phases(warm))
