"""Which device holds which part of an array."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from .messages import PlacementReport
from .specs import MeshShape, P, spec_from_wire


def holders(placement: PlacementReport, mesh: MeshShape, devices: Sequence[int]) -> dict[tuple[int, ...], list[int]]:
    """The devices that hold each part; its key is the part's position in the grid of parts.

    Arguments:
        devices: ids, in the mesh's order.
    """
    spec = spec_from_wire(placement.spec)
    entries = spec if isinstance(spec, P) else P()
    sizes = dict(mesh)
    found: dict[tuple[int, ...], list[int]] = {}
    for device, coordinate in zip(devices, itertools.product(*map(range, sizes.values())), strict=True):
        place = dict(zip(sizes, coordinate, strict=True))
        part = tuple(_index(entries.axes_of(d), place, sizes) for d in range(len(placement.shape)))
        found.setdefault(part, []).append(device)
    return found


def _index(axes: Sequence[str], place: Mapping[str, int], sizes: Mapping[str, int]) -> int:
    index = 0
    for axis in axes:  # major to minor
        index = index * sizes[axis] + place[axis]
    return index
