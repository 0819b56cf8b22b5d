"""The devices of this process, and meshes over them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from shardserve_proto.errors import InvalidRequest, NotFound, ShardserveError, nearest
from shardserve_proto.messages import DeviceInfo
from shardserve_proto.specs import MeshShape, P, WireMesh, resolve_mesh

from ..link.host import memory_bytes
from .placement import Where

Sharding = NamedSharding | SingleDeviceSharding

DEFAULT_AXIS = "devices"
#: Clients may ask for meshes of any shape and names; so many are kept.
MESHES_KEPT = 64


def configure_jax(devices: int | None) -> None:
    """Set JAX up for the engine: 64-bit types, no implicit promotion, and virtual CPU devices if asked for.

    Call it once, before JAX lists its devices.
    """
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    if devices is not None and not _is_started():
        jax.config.update("jax_num_cpu_devices", devices)
        jax.config.update("jax_platforms", "cpu")


def _is_started() -> bool:
    from jax._src import xla_bridge  # jax has no public way to ask

    return bool(xla_bridge.backends_are_initialized())


class Meshes:
    """Named meshes and meshes by shape over this process' devices, each built once.

    Arguments:
        named: name -> axes and sizes; one size may be -1.
        devices: to build them over.
    """

    def __init__(self, named: Mapping[str, MeshShape], *, devices: Sequence[jax.Device]) -> None:
        self.devices = devices
        default: MeshShape = ((DEFAULT_AXIS, len(self.devices)),)
        resolved = {name: self._resolved(name, axes) for name, axes in named.items()}
        self.named: dict[str, MeshShape] = {"default": default, **resolved}
        self.build = lru_cache(maxsize=MESHES_KEPT)(self._build)

    def _resolved(self, name: str, axes: MeshShape) -> MeshShape:
        try:
            return resolve_mesh(axes, devices=len(self.devices))
        except ShardserveError as error:
            raise InvalidRequest(f"setting meshes (SHARDSERVE_MESHES): {name!r}: {error.message}") from None

    def shape(self, wire: WireMesh | None) -> MeshShape:
        """The axes and sizes that a call asks for; absent, one axis "devices" over all of them.

        Raises:
            NotFound: no mesh of that name.
            ShardingError: a shape that these devices cannot have.
        """
        if wire is None:
            return self.named["default"]
        if isinstance(wire, str):
            if wire not in self.named:
                raise NotFound(f"unknown mesh {wire!r}{nearest(wire, self.named)} (known: {', '.join(self.named)})")
            return self.named[wire]
        return resolve_mesh(wire, devices=len(self.devices))

    def _build(self, shape: MeshShape) -> Mesh:
        """The mesh of a shape, over the first devices, with Auto axes: the compiler propagates shardings."""
        sizes = [size for _, size in shape]
        grid = np.array(self.devices[: math.prod(sizes)]).reshape(sizes)
        names = tuple(axis for axis, _ in shape)
        return Mesh(grid, names, axis_types=(AxisType.Auto,) * len(names))

    def of(self, shape: MeshShape | None) -> Mesh | None:
        """The mesh of a shape; None stands for the one device of calls that are not spread."""
        return None if shape is None else self.build(shape)

    def members(self, shape: MeshShape | None) -> tuple[jax.Device, ...]:
        """The devices of a mesh, in its order."""
        return (self.devices[0],) if shape is None else tuple(self.build(shape).devices.flat)

    def sharding(self, where: Where) -> Sharding:
        """JAX's form of a place whose spec is known."""
        if where.mesh is None:
            return SingleDeviceSharding(self.devices[0])
        return sharding(self.build(where.mesh), where.placed.spec or P())

    def infos(self) -> tuple[DeviceInfo, ...]:
        return tuple(
            DeviceInfo(id=device.id, kind=device.device_kind, platform=device.platform, process=device.process_index)
            for device in self.devices
        )

    def memory_bytes(self) -> int:
        """What arrays may take on all devices together: 80 % of the devices' memory, or of the host's for CPU."""
        stats = [device.memory_stats() or {} for device in self.devices]
        limits = [int(stat.get("bytes_limit", 0)) for stat in stats]
        total = sum(limits) or memory_bytes()
        return int(total * 0.8)


def sharding(mesh: Mesh, spec: P) -> NamedSharding:
    """JAX's form of a spec on a mesh."""
    return NamedSharding(mesh, PartitionSpec(*spec))
