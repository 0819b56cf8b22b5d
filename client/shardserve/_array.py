"""Handles of resident arrays: what a user holds of an array that is on the devices."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from shardserve_proto.dtypes import dtype_named
from shardserve_proto.messages import ArrayInfo, PlacementReport, Report
from shardserve_proto.specs import P, describe_mesh, spec_from_wire

from ._indexing import BadIndex, Part, part_of
from ._remote import Remote, _refuse
from ._repr import picture, size

if TYPE_CHECKING:
    from ._releases import Releases
    from ._resident import ResidentMethods


@dataclass(frozen=True)
class Lease:
    """How long an array stays.

    Attributes:
        ttl_s: seconds from its last use; None when it is pinned, or declared by the server's operator.
        expires_in_s: what is left of them.
        pinned: it has no lease, and a host copy that outlives the engine.
    """

    ttl_s: float | None
    expires_in_s: float | None
    pinned: bool = False

    @classmethod
    def of(cls, info: ArrayInfo) -> Lease:
        return cls(info.ttl_s, info.expires_in_s, info.pinned)


class RemoteArray(Remote):
    """An array on the devices of a server. It never changes; calls that are given one answer with others.

    `shape`, `dtype`, `spec`, `mesh`, `name`, `id` and `epoch` (the life of the server that knows the id) are known
    here; `lease` asks the server. The last Python object of an unnamed, unpinned array that this client made releases
    it; named, attached and pinned ones stay.

    With an `AsyncClient`, whatever reaches the server is to be awaited: `await array.numpy()`, `await array.lease`.

    Example:
        with client.put(np.ones((8, 4))) as h:
            h.numpy()
    """

    __slots__ = ("__weakref__", "_client", "_deleted", "_devices", "_is_declared", "_pid", "_placement", "_releases",
                 "dtype", "epoch", "id", "mesh", "name", "shape")  # fmt: skip

    def __init__(
        self,
        client: ResidentMethods[Any],
        key: bytes,
        placement: PlacementReport,
        *,
        mesh: Sequence[tuple[str, int]],
        devices: Sequence[int],
        name: str | None = None,
        releases: Releases | None = None,
        is_declared: bool = False,
        epoch: str = "",
    ) -> None:
        self._client = client
        self._releases = releases
        self._pid = os.getpid()
        self._placement = placement
        self._devices = devices
        self._deleted = False
        self._is_declared = is_declared
        self.id = key.hex()
        self.shape: tuple[int, ...] = placement.shape
        self.dtype = dtype_named(placement.dtype)
        self.mesh: dict[str, int] = dict(mesh)
        self.name = name
        self.epoch = epoch

    @classmethod
    def attached(cls, client: ResidentMethods[Any], info: ArrayInfo, epoch: str = "") -> RemoteArray:
        """A handle of an array that somebody else made, or made earlier; it is not released with its objects."""
        sizes = dict(info.mesh)
        spec = spec_from_wire(info.spec)
        axes = [spec.axes_of(d) if isinstance(spec, P) else () for d in range(len(info.shape))]
        parts = [_product(sizes[axis] for axis in several) for several in axes]
        padded = tuple(part * shard for part, shard in zip(parts, info.shard_shape, strict=True))
        placement = PlacementReport(
            dtype=info.dtype, shape=info.shape, spec=info.spec, padded_shape=padded, shard_shape=info.shard_shape
        )
        devices = info.devices or range(_product(sizes.values()))  # of a server that does not tell: the first ones
        return cls(
            client, bytes.fromhex(info.id), placement,
            mesh=info.mesh, devices=devices, name=info.name, is_declared=info.is_declared, epoch=epoch,
        )  # fmt: skip

    @property
    def spec(self) -> P:
        """How the dimensions are split over the mesh."""
        spec = spec_from_wire(self._placement.spec)
        return spec if isinstance(spec, P) else P()

    @property
    def lease(self) -> Any:
        """How long it stays: a `Lease`, asked from the server; this does not renew it."""
        return self._client._lease(self)

    @property
    def is_deleted(self) -> bool:
        """Whether it was deleted by this handle, or by `client.delete`."""
        return self._deleted

    def __getitem__(self, key: Any) -> RemoteSlice:
        """A part, by integers, slices, `...` and None; only this part is downloaded when its values are asked for."""
        return RemoteSlice(self, ()).part(key)

    def reshard(self, spec: Any, mesh: str | Mapping[str, int] | Sequence[tuple[str, int]] | None = None) -> Any:
        """The same values laid out otherwise, as another array; they move between the devices alone.

        Arguments:
            spec: `P`, None (replicated) or AUTO.
            mesh: where to; default: the mesh that it lies on.
        """
        return self._client._reshard(self, spec, mesh)

    def visualize(self) -> str:
        """Which device holds which part, as text: print it. Nothing is asked from the server."""
        report = Report(
            device_kind="", mesh=tuple(self.mesh.items()), devices=tuple(self._devices), precision="highest",
            arguments=(), outputs=(), compiled=False, phases_s={},
        )  # fmt: skip
        return picture(self._placement, report)

    def renew(self, ttl: float | None = None) -> Any:
        """Begin its lease anew; a pinned array has one again.

        Arguments:
            ttl: seconds from each use; default: what it had.
        """
        return self._client._renew(self, ttl)

    def pin(self) -> Any:
        """End its lease: it stays until it is deleted, and outlives the engine by a host copy."""
        return self._client._pin(self)

    def delete(self) -> Any:
        """Delete it on the server; calls that run with it end well. Doing so twice is harmless."""
        return self._client.delete(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.delete()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.delete()

    def __repr__(self) -> str:
        where = f"{self.spec} on {describe_mesh(tuple(self.mesh.items()))}" if self.mesh else "on one device"
        named = f"{self.name!r}, " if self.name else ""
        gone = ", deleted" if self._deleted else ""
        return f"RemoteArray({named}{self.dtype}{list(self.shape)}, {where}, {size(self.nbytes)}{gone})"

    def detach(self) -> Self:
        """From now on it is not released with its last object, so it stays as long as its lease; `id` finds it."""
        self._releases = None
        return self

    def _forget(self) -> None:
        self._deleted, self._releases = True, None

    def __del__(self) -> None:
        releases = getattr(self, "_releases", None)
        if releases is not None:
            releases.drop(self.id, self.nbytes, self._pid)


class RemoteSlice(Remote):
    """A part of a resident array, not cut out yet: `np.asarray(h[:10])` downloads ten rows.

    As an argument of a call it is cut out on the devices first, as `keep()` does.
    """

    __slots__ = ("base", "dtype", "parts", "shape")

    def __init__(self, base: RemoteArray, parts: tuple[Part, ...]) -> None:
        self.base = base
        self.parts = parts
        self.shape: tuple[int, ...] = parts[-1].shape if parts else base.shape
        self.dtype: np.dtype[Any] = base.dtype

    @property
    def _client(self) -> ResidentMethods[Any]:  # type: ignore[override]
        return self.base._client

    @property
    def spec(self) -> P:
        """How its dimensions are split, as those of the array are that they come from."""
        entries = [self.base.spec.axes_of(dimension) for dimension in range(self.base.ndim)]
        for part in self.parts:
            entries = [() if source is None else entries[source] for source in part.sources]
        return P(*((axes if len(axes) > 1 else axes[0]) if axes else None for axes in entries))

    def part(self, key: Any) -> RemoteSlice:
        try:
            return RemoteSlice(self.base, (*self.parts, part_of(self.shape, key)))
        except BadIndex as error:
            raise _refuse(f"this index ({error})") from None

    __getitem__ = part

    def keep(self) -> Any:
        """Cut it out on the devices: a `RemoteArray` of its own."""
        return self._client._cut(self)

    def __repr__(self) -> str:
        return f"RemoteSlice({self.dtype}{list(self.shape)} of {self.base!r})"


def _product(sizes: Any) -> int:
    product = 1
    for entry in sizes:
        product *= entry
    return product
