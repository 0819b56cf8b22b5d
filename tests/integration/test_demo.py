"""The tour: every chapter passes on smaller inputs, a failed check fails it, and what is shown is readable."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from rich.console import Console

import shardserve as ss
from shardserve_server.demo.chapters import CHAPTERS, digits
from shardserve_server.demo.screen import Screen, ruler
from shardserve_server.demo.tour import Tour


@pytest.fixture
def screen() -> Screen:
    return Screen(Console(file=io.StringIO(), width=80, highlight=False))


def shown(screen: Screen) -> str:
    assert isinstance(screen.console.file, io.StringIO)
    return screen.console.file.getvalue()


def test_there_are_seven_chapters() -> None:
    assert len(CHAPTERS) == 7


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.__name__)
def test_a_chapter_passes_and_shows_where_things_lay(chapter: object, screen: Screen, local_client: ss.Client) -> None:
    assert callable(chapter)
    chapter(Tour(local_client, screen, scale=100))
    text = shown(screen)
    assert screen.failed == []
    assert screen.passed >= 1
    assert screen.exit_status == 0
    assert max(map(len, text.splitlines())) <= 80
    if "ShardingError" not in text:
        assert "on each device" in text
        assert "the devices that hold the parts of the result" in text
        assert all(word in text for word in ("receive", "upload", "compile", "run", "gather", "NumPy"))


def test_a_wrong_number_fails_the_tour(screen: Screen, local_client: ss.Client) -> None:
    tour = Tour(local_client, screen)
    tour.compare(lambda client: client.exp(np.ones(3)), lambda: np.ones(3), claim="exp is the identity", rtol=1e-6)
    assert screen.failed == ["exp is the identity"]
    assert screen.exit_status == 1
    screen.summary(1.0)
    assert "0 checks passed, 1 failed" in shown(screen)


def test_a_missing_error_fails_the_tour(screen: Screen, local_client: ss.Client) -> None:
    Tour(local_client, screen).expect_error(lambda client: client.exp(1.0), ss.ShapeError, claim="exp(1.0) fails")
    assert screen.exit_status == 1


def test_without_scikit_learn_the_last_chapter_says_what_to_install(
    screen: Screen, local_client: ss.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    digits(Tour(local_client, screen))
    assert "pip install scikit-learn" in shown(screen)
    assert len(screen.skipped) == 1


def test_a_long_result_is_drawn_as_a_strip_with_its_bounds(local_client: ss.Client) -> None:
    with local_client.record() as log:
        local_client.exp(np.ones(1001), out_shardings=ss.P(("y", "x")), mesh={"x": 2, "y": 4})
    strip, bounds = ruler(log[0].report).splitlines()
    assert strip == "|   0   |   4   |   1   |   5   |   2   |   6   |   3   |   7   |"
    assert bounds.split() == ["0", "126", "252", "378", "504", "630", "756", "882", "1001"]
