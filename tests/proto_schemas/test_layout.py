"""Which device holds which part."""

from __future__ import annotations

from shardserve_proto.layout import holders
from shardserve_proto.messages import PlacementReport

MESH = (("x", 2), ("y", 2))


def held(*spec: str | tuple[str, ...] | None) -> dict[tuple[int, ...], list[int]]:
    placement = PlacementReport(dtype="int8", shape=(8, 8), spec=spec, padded_shape=(8, 8), shard_shape=(8, 8))
    return holders(placement, MESH, (10, 11, 12, 13))


def test_each_part_is_held_by_the_devices_at_its_place_in_the_mesh() -> None:
    assert held("x", "y") == {(0, 0): [10], (0, 1): [11], (1, 0): [12], (1, 1): [13]}
    assert held("y", None) == {(0, 0): [10, 12], (1, 0): [11, 13]}
    assert held(("y", "x"), None) == {(0, 0): [10], (2, 0): [11], (1, 0): [12], (3, 0): [13]}
    assert held() == {(0, 0): [10, 11, 12, 13]}
