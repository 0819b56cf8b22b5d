"""The mesh of JAX in process: eight virtual devices."""

from __future__ import annotations

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

DEVICES = 8


def configure() -> None:
    """Make the devices; before JAX is used."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    jax.device_count()


def split(*spec: str | None) -> NamedSharding:
    """An array's place on all devices."""
    mesh = jax.make_mesh((DEVICES,), ("devices",), axis_types=(AxisType.Auto,))
    return NamedSharding(mesh, PartitionSpec(*spec))
