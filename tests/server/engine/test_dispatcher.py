"""Lanes launch in order, hold their bound, and do not wait for each other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from shardserve_server.engine.dispatcher import Lane


class Program:
    """A launched program that is done when it is told so, and writes down what happened."""

    is_small = True

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log
        self.launched, self.release, self.finished = threading.Event(), threading.Event(), threading.Event()

    def launch(self) -> Program:
        self.log.append(f"launch {self.name}")
        self.launched.set()
        return self

    def wait(self) -> None:
        assert self.release.wait(10)

    def finish(self) -> None:
        self.log.append(f"finish {self.name}")
        self.finished.set()


@pytest.fixture
def finishers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(4)


def test_with_one_in_flight_a_program_waits_for_the_one_before(finishers: ThreadPoolExecutor) -> None:
    log: list[str] = []
    lane = Lane("test", in_flight=1, finishers=finishers)
    first, second = Program("1", log), Program("2", log)
    lane.put(first.launch)
    lane.put(second.launch)
    assert first.launched.wait(10)
    assert not second.launched.wait(0.1)
    first.release.set()
    assert second.launched.wait(10)
    second.release.set()
    lane.close()
    assert log == ["launch 1", "finish 1", "launch 2", "finish 2"]
    finishers.shutdown()


def test_more_in_flight_launch_ahead_up_to_the_bound(finishers: ThreadPoolExecutor) -> None:
    log: list[str] = []
    lane = Lane("test", in_flight=2, finishers=finishers)
    programs = [Program(str(number), log) for number in range(3)]
    for program in programs:
        lane.put(program.launch)
    assert programs[1].launched.wait(10)
    assert not programs[2].launched.wait(0.1)
    programs[1].release.set()  # any of the two makes room
    assert programs[2].launched.wait(10)
    for program in programs:
        program.release.set()
    lane.close()
    finishers.shutdown()
    assert [line for line in log if line.startswith("launch")] == ["launch 0", "launch 1", "launch 2"]


def test_a_second_lane_overtakes_a_busy_one(finishers: ThreadPoolExecutor) -> None:
    log: list[str] = []
    many, one = (Lane(name, in_flight=1, finishers=finishers) for name in ("many", "one"))
    slow, quick = Program("slow", log), Program("quick", log)
    many.put(slow.launch)
    assert slow.launched.wait(10)
    quick.release.set()
    one.put(quick.launch)
    assert quick.finished.wait(10)
    slow.release.set()
    many.close()
    one.close()
    finishers.shutdown()
    assert log == ["launch slow", "launch quick", "finish quick", "finish slow"]


def test_a_job_that_ends_at_once_leaves_its_place(finishers: ThreadPoolExecutor) -> None:
    log: list[str] = []
    lane = Lane("test", in_flight=1, finishers=finishers)
    for _ in range(5):
        lane.put(lambda: None)
    program = Program("1", log)
    program.release.set()
    lane.put(program.launch)
    lane.close()
    finishers.shutdown()
    assert log == ["launch 1", "finish 1"]
