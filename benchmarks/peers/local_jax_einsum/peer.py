"""JAX in this process, with the dots as one would write them first."""

from __future__ import annotations

from ..local_jax import peer


class Contender(peer.Contender):
    """As local JAX, by `jnp.einsum`."""

    formula = "einsum"
