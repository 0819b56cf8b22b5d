"""NumPy in this process: what a user without a server has."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base import Array, CannotDo, NoServer


class Contender(NoServer):
    """Nothing moves."""

    def put(self, array: Array) -> Any:
        raise CannotDo("nothing moves")

    def get(self, handle: Any, out: Array | None) -> Array:
        raise CannotDo("nothing moves")

    def drop(self, handle: Any) -> None:
        raise CannotDo("nothing moves")

    def dot(self, x: Array, y: Array) -> Array:
        return np.dot(x, y) if x.ndim == 1 else np.einsum("ki,ki->i", x, y)
