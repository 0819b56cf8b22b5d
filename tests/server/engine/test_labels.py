"""einsum's labels are named axes: axis_resources place the dimensions that carry them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardserve_proto.errors import AxisError, ShardingError
from shardserve_server.engine.engine import Engine
from tests.calls import Result, mapping, run

GRID = (("x", 4), ("y", 2))


def einsum(engine: Engine, subscripts: str, *operands: Any, resources: dict[str, Any], **fields: Any) -> Result:
    axes = mapping([[...]] * len(operands), [[...]], resources)
    return run(engine, "einsum", *operands, params={"subscripts": subscripts}, mapping=axes, **fields)


def test_a_label_places_its_dimension_in_every_array(engine: Engine) -> None:
    v, w = np.random.default_rng(0).random((2, 3, 1001))
    found = einsum(engine, "ki,ki->i", v, w, resources={"i": "devices"})
    np.testing.assert_allclose(found.value, (v * w).sum(0), rtol=1e-13)
    assert [placed.spec for placed in found.report.arguments] == [(None, "devices")] * 2
    assert found.report.outputs[0].spec == ("devices",)


def test_a_contracted_label_is_reduced_over_its_mesh_axis(engine: Engine) -> None:
    a, b = np.random.default_rng(0).random((5, 9)), np.random.default_rng(1).random((9, 6))
    found = einsum(engine, "ik,kj->ij", a, b, resources={"k": "x", "j": "y"}, mesh=GRID)
    np.testing.assert_allclose(found.value, a @ b, rtol=1e-13)
    assert [placed.spec for placed in found.report.arguments] == [(None, "x"), ("x", "y")]


def test_labels_and_named_axes_live_side_by_side(engine: Engine) -> None:
    a = np.random.default_rng(0).random((4, 5, 6))
    axes = mapping([{1: "n"}], [["n", ...]], {"n": "y", "j": "x"})
    found = run(engine, "einsum", a, params={"subscripts": "ij->j"}, mapping=axes, mesh=GRID)
    np.testing.assert_allclose(found.value, a.sum(0), rtol=1e-13)
    assert found.report.arguments[0].spec == (None, "y", "x")


def test_an_unknown_label_is_named_with_the_known_ones(engine: Engine) -> None:
    with pytest.raises(AxisError, match="label 'z'; known labels: i, j"):
        einsum(engine, "ij->i", np.zeros((2, 2)), resources={"z": "devices"})


def test_a_label_and_a_spec_may_not_disagree(engine: Engine) -> None:
    with pytest.raises(ShardingError, match="give it in one of the two places"):
        einsum(engine, "ij->i", np.zeros((2, 2)), resources={"i": "x"}, mesh=GRID, in_shardings=(("y",),))


def test_two_labels_of_one_array_may_not_share_a_mesh_axis(engine: Engine) -> None:
    with pytest.raises(ShardingError, match="'x' stands twice"):
        einsum(engine, "ij->ij", np.zeros((2, 2)), resources={"i": "x", "j": "x"}, mesh=GRID)


@pytest.mark.parametrize("subscripts", ["ii->i", "ii", "iij->ij"])
def test_a_label_that_stands_twice_splits_one_of_its_dimensions(engine: Engine, subscripts: str) -> None:
    a = np.random.default_rng(0).random((7, 7, 3))[..., : 3 if "j" in subscripts else 1]
    a = a if "j" in subscripts else a[..., 0]
    found = einsum(engine, subscripts, a, resources={"i": "x"}, mesh=GRID)
    np.testing.assert_allclose(found.value, np.einsum(subscripts, a), rtol=1e-13)
    assert found.report.arguments[0].spec == ("x",)
