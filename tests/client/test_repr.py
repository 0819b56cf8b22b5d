"""Text pictures of placements, and the text of logs."""

from __future__ import annotations

import numpy as np
import pytest

from shardserve._calls import Call, Log
from shardserve._repr import picture, seconds, size
from shardserve_proto.messages import PlacementReport, Report

from .replies import report


def placed(shape: tuple[int, ...], spec: object, padded: tuple[int, ...], shard: tuple[int, ...]) -> PlacementReport:
    return PlacementReport(dtype="float32", shape=shape, spec=spec, padded_shape=padded, shard_shape=shard)  # type: ignore[arg-type]


def on(mesh: dict[str, int], devices: int) -> Report:
    fields = report().model_dump() | {"mesh": tuple(mesh.items()), "devices": tuple(range(devices))}
    return Report.model_validate(fields)


GRID = on({"x": 4, "y": 2}, 8)


def test_a_matrix_on_a_grid_shows_each_device_s_part() -> None:
    text = picture(placed((100, 100), ("x", "y"), (100, 100), (25, 50)), GRID)
    assert text.splitlines() == [
        "float32[100, 100] as P('x', 'y'): 25×50 on each device",
        "         0:50   50:100",
        "       +------+--------+",
        "  0:25 |  0   |   1    |",
        "       +------+--------+",
        " 25:50 |  2   |   3    |",
        "       +------+--------+",
        " 50:75 |  4   |   5    |",
        "       +------+--------+",
        "75:100 |  6   |   7    |",
        "       +------+--------+",
    ]


def test_a_vector_over_one_axis_shows_who_shares_a_part() -> None:
    text = picture(placed((10,), ("x",), (12,), (3,)), GRID)
    assert text.splitlines() == [
        "float32[10] as P('x'): 3 on each device",
        "   0:3   3:6   6:9   9:10",
        " +-----+-----+-----+------+",
        " | 0,1 | 2,3 | 4,5 | 6,7  |",
        " +-----+-----+-----+------+",
    ]


def test_devices_that_hold_padding_only_say_so() -> None:
    text = picture(placed((3,), (("x", "y"),), (8,), (1,)), GRID)
    assert text.count("padding") == 5


def test_axes_major_to_minor_give_their_order() -> None:
    swapped = picture(placed((8,), (("y", "x"),), (8,), (1,)), GRID)
    assert "|  0  |  2  |  4  |  6  |  1  |  3  |  5  |  7  |" in swapped


def test_a_replicated_number_is_on_every_device() -> None:
    text = picture(placed((), None, (), ()), GRID)
    assert text.splitlines()[0] == "float32[] as P(): 1 number on each device"
    assert "0-7" in text


def test_one_device_without_a_mesh_holds_all() -> None:
    assert "| 0 |" in picture(placed((2, 3), None, (2, 3), (2, 3)), on({}, 1)).replace("  ", " ")


def test_leading_dimensions_follow_each_other() -> None:
    text = picture(placed((4, 6, 6), ("x", None, "y"), (4, 6, 6), (1, 6, 3)), GRID)
    assert [line for line in text.splitlines() if line.startswith("[")] == [
        "[0:1, ...]",
        "[1:2, ...]",
        "[2:3, ...]",
        "[3:4, ...]",
    ]


def test_the_middle_of_many_parts_is_left_out() -> None:
    text = picture(placed((640, 64), (None, "x"), (640, 64), (640, 1)), on({"x": 64}, 64))
    assert "…" in text
    assert max(map(len, text.splitlines())) < 120


def test_an_empty_array_has_a_picture() -> None:
    assert "0×5" in picture(placed((0, 5), ("x", None), (0, 5), (0, 5)), GRID)


def test_a_log_prints_calls_and_keeps_no_values() -> None:
    x = np.ones((2, 3))
    log = Log()
    assert str(log) == "no calls"
    log.add(Call("matmul", x, report([x]), 1200, 5_000_000, 0.0123))
    assert log[0].value is None
    assert str(log).splitlines() == [
        "1. matmul: 12.3 ms, 1.2 kB sent, 5.0 MB received",
        "  cpu, 1 device, precision highest, was compiled already",
        "  run 1.0 ms",
        "  result 0: float64[2, 3] as P(), 2×3 on each device",
    ]
    assert "2×3" in log[0].picture()


@pytest.mark.parametrize(("duration", "text"), [(5e-6, "5 µs"), (0.0123, "12.3 ms"), (2.5, "2.50 s")])
def test_seconds_have_a_fitting_unit(duration: float, text: str) -> None:
    assert seconds(duration) == text


@pytest.mark.parametrize(
    ("nbytes", "text"), [(5, "5 B"), (1500, "1.5 kB"), (2_000_000, "2.0 MB"), (3 * 10**9, "3.0 GB")]
)
def test_bytes_have_a_fitting_unit(nbytes: int, text: str) -> None:
    assert size(nbytes) == text
