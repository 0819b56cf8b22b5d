"""Meshes: the default one, named ones, grids over fewer devices, -1; and what is refused."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from shardserve_proto.errors import NotFound, ShardingError
from shardserve_server.engine.engine import Engine
from shardserve_server.engine.mesh import Meshes
from tests.calls import run


@pytest.fixture(scope="module")
def meshes() -> Meshes:
    return Meshes({"grid": (("x", 4), ("y", -1))}, devices=jax.devices())


def test_the_default_mesh_is_one_axis_over_all_devices(meshes: Meshes) -> None:
    assert meshes.shape(None) == (("devices", 8),)
    assert meshes.shape("default") == (("devices", 8),)


def test_one_size_may_be_left_open(meshes: Meshes) -> None:
    assert meshes.shape("grid") == (("x", 4), ("y", 2))
    assert meshes.shape((("a", -1), ("b", 3))) == (("a", 2), ("b", 3))


def test_a_mesh_may_have_fewer_devices_than_the_host(meshes: Meshes) -> None:
    mesh = meshes.build((("d", 5),))
    assert [device.id for device in mesh.devices.flat] == [0, 1, 2, 3, 4]
    assert mesh.axis_types == (AxisType.Auto,)
    assert meshes.build((("d", 5),)) is mesh


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        ((("x", 9),), "needs 9 devices, but the server has 8"),
        ((("x", 0),), "size below 1"),
        ((("x", -1), ("y", -1)), "two sizes open"),
        ((("x", 2), ("x", 4)), "names an axis twice"),
        ((("x", 2**40), ("y", 2**40)), "needs"),
    ],
)
def test_a_mesh_that_these_devices_cannot_have_is_refused(meshes: Meshes, wire: Any, message: str) -> None:
    with pytest.raises(ShardingError, match=message):
        meshes.shape(wire)


def test_an_unknown_mesh_gets_the_nearest_name(engine: Engine) -> None:
    with pytest.raises(NotFound, match="unknown mesh 'gird'; did you mean 'grid'"):
        run(engine, "identity", np.zeros(3), mesh="gird")


def test_the_engine_computes_in_64_bits_without_implicit_promotion() -> None:
    assert jax.numpy.zeros(1, "int64").dtype == np.int64
    with pytest.raises(ValueError, match="promotion"):
        jax.numpy.zeros(1, "int64") + jax.numpy.zeros(1, "float32")
