"""The benchmarks' arithmetic and page, and one run of them in small; no time is asserted, no peer is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import agents, environments, inputs
from benchmarks.agents import Agents, Failed
from benchmarks.cpu import cpu_s, resident_bytes, tree_of
from benchmarks.measurements import FLIGHT, OURS, PEERS, RAW, Measurement, Part, Target
from benchmarks.plan import plan
from benchmarks.plot import plot
from benchmarks.report import page
from benchmarks.rounds import Band, Rounds, Run, interleave, summary, time_calls
from benchmarks.run import carry_out
from benchmarks.sizes import FULL, QUICK
from benchmarks.verdicts import verdicts

ROOT = Path(__file__).parents[1]


def test_every_contender_runs_in_every_round_and_the_order_rotates() -> None:
    order: list[str] = []

    def contender(name: str) -> Mapping[str, list[float]]:
        order.append(name)
        return {"call": [1.0]}

    run = interleave({name: lambda name=name: contender(name) for name in "abc"}, rounds=3, warm_up=1)  # type: ignore[misc]
    assert "".join(order) == "abcbcacababc"
    assert run.quantities == {"call": {name: [[1.0]] * 3 for name in "abc"}}


def test_a_contender_that_fails_is_out_with_its_reason_and_the_others_go_on() -> None:
    calls: Iterator[list[float] | Exception] = iter([[1.0], [2.0], ValueError("a wrong answer")])

    def failing() -> Mapping[str, list[float]]:
        value = next(calls)
        if isinstance(value, Exception):
            raise value
        return {"call": value}

    run = interleave({"good": lambda: {"call": [1.0]}, "bad": failing}, rounds=3, warm_up=1)
    assert run.failed == {"bad": "a wrong answer"}
    assert run.quantities == {"call": {"good": [[1.0]] * 3}}


def test_ratios_are_taken_round_by_round() -> None:
    rounds = Rounds({"ours": [[2.0], [6.0], [3.0]], "echo": [[0.5], [2.0], [1.0]], "jax": [[0.5], [1.0], [0.5]]})
    assert rounds.ratio("ours", "echo", "jax").median == 2.0
    assert rounds.added("ours", "echo", "jax").median == 1.5
    assert rounds.band("ours").median == 3.0
    assert rounds.best_of("echo", "jax") == [0.5, 1.0, 0.5]


def test_a_band_holds_the_middle_eight_rounds_of_ten() -> None:
    assert Band.of([1.0]) == Band(1.0, 1.0, 1.0)
    band = Band.of([float(value) for value in range(11)])
    assert (band.low, band.median, band.high) == (1.0, 5.0, 9.0)


def test_a_round_stands_for_its_median_or_its_slowest_hundredth() -> None:
    calls = [float(value) for value in range(101)]
    assert summary(calls, "median") == 50.0
    assert summary(calls, "p99") == 99.0


def test_calls_stop_when_their_time_is_over() -> None:
    assert len(time_calls(lambda: None, 3)) == 3
    assert len(time_calls(lambda: None, 1000, limit_s=0.0)) == 1


def test_a_wrong_answer_voids_the_round() -> None:
    right = np.arange(4, dtype=np.float32)
    inputs.check(right, right.copy(), exactly=True)
    inputs.check(right * (1 + 1e-6), right)
    for wrong in (right + 1, right[:3], right.astype(np.float64)):
        with pytest.raises(ValueError, match="a wrong answer"):
            inputs.check(wrong, right)
    with pytest.raises(ValueError, match="a wrong answer"):
        inputs.check(right * np.float32(1 + 1e-6), right, exactly=True)


def measurement(*targets: Target) -> Measurement:
    parts = tuple(Part(label, PEERS[label], "transfer", {"nbytes": 1 << 20}) for label in (OURS, RAW, FLIGHT))
    return Measurement("transfer", "1 MiB", parts, {"up": "up", "down": "down"}, targets=targets)


def a_run() -> Run:
    values = {OURS: [[2.0], [2.2], [1.8]], RAW: [[1.5], [1.5], [1.5]]}
    return Run({"up": values, "down": values}, {FLIGHT: "not started: its server ended"})


@pytest.mark.parametrize(
    ("target", "word"),
    [
        (Target("P1", "up", (RAW,), speed=0.5), "met"),
        (Target("P1", "up", (RAW,), speed=0.72), "met by the median"),
        (Target("P1", "up", (RAW,), speed=0.9), "missed"),
        (Target("P1", "up", (RAW,), time=1.5), "met"),
        (Target("P1", "up", (RAW,), added=0.1), "missed"),
        (Target("P1", "up", most=2.0), "met by the median"),
        (Target("P1", "up", (RAW, RAW), speed=0.7, best=True), "met by the median"),
        (Target("P1", "up", (FLIGHT,), speed=1.0), "not measured"),
    ],
)
def test_a_target_is_met_only_by_the_whole_band(target: Target, word: str) -> None:
    (verdict,) = verdicts(measurement(target), a_run())
    assert verdict.word == word
    assert f"{target.speed or target.time or target.most or target.added:g}"[:3] in verdict.claim or target.added


def facts(**changes: Any) -> dict[str, Any]:
    machine = {"command": "python -m benchmarks", "cpu": "a CPU", "cores": 2, "memory_gib": 24, "load_before": 0.1}
    machine |= {"system": "Linux", "python": "3.11", "versions": {"jax": "0.10"}}
    return {"machine": machine, "missing": {}, "idle_cpu": {}, "phases_s": {}, **changes}


def test_a_peer_that_is_missing_stands_on_the_page_with_its_reason() -> None:
    missing = {PEERS[FLIGHT]: "not installed: no matching distribution"}
    text = page(facts(missing=missing), [measurement(Target("P1", "up", (FLIGHT,), speed=1.0))], {"transfer": a_run()})
    assert "* Arrow Flight: not installed: no matching distribution" in text
    assert "Arrow Flight: not started: its server ended | not measured |" in text
    assert "Targets: 1 not measured." in text


def test_the_page_tells_that_everybody_took_part() -> None:
    run = a_run()
    run.failed.clear()
    assert "Everybody took part in everything." in page(facts(), [measurement()], {"transfer": run})


def test_the_plot_has_a_bar_for_each_contender_and_way() -> None:
    picture = ET.fromstring(plot(a_run(), 1 << 20))  # noqa: S314 - our own text
    bars = picture.findall("{http://www.w3.org/2000/svg}rect")
    assert len(bars) == 1 + 2 + 2 * 2  # the background, the legend, two contenders both ways


def test_a_failed_installation_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(peer: str) -> Path:
        raise environments.NotInstalled(f"no {peer} here")

    monkeypatch.setattr(agents, "python_of", refuse)
    with Agents(tmp_path) as started:
        started.start(["flight"])
        assert started.missing == {"flight": "not installed: no flight here"}
        with pytest.raises(Failed, match="no flight here"):
            started.agent("flight")
        runs = carry_out([measurement()], started, rounds=1)
    assert runs["transfer"].failed[FLIGHT] == "not installed: no flight here"


def test_a_peer_whose_packages_are_not_there_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "python_of", lambda _peer: Path(sys.executable))
    with Agents(tmp_path) as started:
        started.start(["pytriton_http"])
    assert started.missing["pytriton_http"].startswith("not started: ")


def test_an_environment_is_made_again_when_its_pins_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(environments, "HOME", tmp_path / "home")
    monkeypatch.setattr(environments, "PEERS", tmp_path)
    monkeypatch.setattr(environments, "_run", lambda command, **_: made.append(command[-1]))
    (tmp_path / "some").mkdir()
    pins = tmp_path / "some" / "requirements.txt"
    for text, expected in (("a==1\n", 2), ("a==1\n", 2), ("a==2\n", 4)):
        pins.write_text(text)
        assert environments.python_of("some") == tmp_path / "home" / "some" / "bin" / "python"
        assert len(made) == expected


def test_cpu_and_memory_of_this_process_are_counted() -> None:
    before = cpu_s([os.getpid()])
    sum(range(100_000))
    assert cpu_s([os.getpid()]) > before
    assert resident_bytes([os.getpid()]) > 1 << 20
    assert os.getpid() in tree_of(os.getppid())


def test_the_plans_name_known_peers_and_hold_every_target() -> None:
    for size in (QUICK, FULL):
        measurements = plan(size)
        assert len({each.key for each in measurements}) == len(measurements)
        assert {part.peer for each in measurements for part in each.parts} == set(PEERS.values())
        for each in measurements:
            labels = {part.label for part in each.parts}
            assert all({target.ours, *target.others} <= labels for target in each.targets)
    wanted = {"P1", "P2", "P3", "P4", "P5", "P6", "P10", "P11", "P12", "P17", "P18"}
    assert wanted <= {target.id for each in plan(QUICK) for target in each.targets}


@pytest.mark.parametrize("peer", sorted(set(PEERS.values())))
def test_every_peer_has_its_scripts(peer: str) -> None:
    folder = ROOT / "benchmarks" / "peers" / peer
    assert (folder / "peer.py").exists()
    pins = folder / "requirements.txt"
    if pins.exists():
        assert "==" in pins.read_text()


def test_a_small_run_writes_the_page_and_the_raw_numbers(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--size", "tiny", "--rounds", "2", "--only", "transfer", "small"]
    command += ["--peers", "raw_socket", "raw_socket_touched", "numpy_only", "bare_echo", "--output", str(tmp_path)]
    shown = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=55).stdout
    raw = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert len(raw["runs"]["transfer"]["quantities"]["up"][RAW]) == 2
    assert len(raw["runs"]["small dot"]["quantities"]["call"][OURS]) == 2
    assert raw["machine"]["command"].endswith(str(tmp_path))
    text = (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    assert text.strip() == shown.strip()
    assert "| receive | queue | upload | run | gather | other | whole |" in text
    assert "* Arrow Flight: left out by --peers" in text
    ET.parse(tmp_path / "transfer.svg")  # noqa: S314 - our own text
