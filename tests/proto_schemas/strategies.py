"""Random headers, shapes and dtypes for the protocol's tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardserve_proto.dtypes import DTYPES, DType

NUMPY_DTYPES = [dtype for dtype in DTYPES.values() if dtype.isbuiltin == 1]
ML_DTYPES = [dtype for dtype in DTYPES.values() if dtype.isbuiltin != 1]

#: Values as msgpack carries them once decoded: arrays are tuples, keys are texts.
wire_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
)
wire_values: st.SearchStrategy[Any] = st.recursive(
    wire_scalars,
    lambda inner: (
        st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)
headers: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8), wire_values, max_size=5
)
numpy_dtypes: st.SearchStrategy[DType] = st.sampled_from(NUMPY_DTYPES)


def shapes(max_dims: int = 3, max_side: int = 4) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes with sides from 0, so that empty arrays are among them."""
    return st.lists(st.integers(0, max_side), max_size=max_dims).map(tuple)


def array_of(shape: tuple[int, ...], dtype: DType) -> np.ndarray[Any, DType]:
    """An array of ones, which no kernel's domain excludes."""
    return np.ones(shape, dtype)
