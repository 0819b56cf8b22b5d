"""The benchmarks' arithmetic, and one run of them in small; no time is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.inputs import check
from benchmarks.rounds import Band, Rounds, interleave

ROOT = Path(__file__).parents[1]


def test_every_contender_runs_in_every_round_and_the_order_rotates() -> None:
    order: list[str] = []

    def contender(name: str, seconds: float) -> list[float]:
        order.append(name)
        return [seconds]

    contenders = {name: lambda name=name: contender(name, 1.0) for name in "abc"}
    rounds = interleave(contenders, rounds=3, warm_up=1)
    assert "".join(order) == "abcbcacababc"
    assert rounds.seconds == {name: [[1.0]] * 3 for name in "abc"}


def test_ratios_are_taken_round_by_round() -> None:
    rounds = Rounds({"ours": [[2.0], [6.0], [3.0]], "echo": [[0.5], [2.0], [1.0]], "jax": [[0.5], [1.0], [0.5]]})
    assert rounds.ratio("ours", "echo", "jax").median == 2.0
    assert rounds.band("ours").median == 3.0


def test_a_band_holds_the_middle_eight_rounds_of_ten() -> None:
    assert Band.of([1.0]) == Band(1.0, 1.0, 1.0)
    band = Band.of([float(value) for value in range(11)])
    assert (band.low, band.median, band.high) == (1.0, 5.0, 9.0)


def test_a_wrong_answer_voids_the_run() -> None:
    check([1.0, 2.0], [1.0, 2.0], "ours")
    with pytest.raises(ValueError, match="ours computed"):
        check([1.0, 2.1], [1.0, 2.0], "ours")


def test_a_small_run_writes_the_page_and_the_raw_numbers(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--rounds", "2", "--small-calls", "5", "--batched-calls", "1"]
    command += ["--batch", "800", "--output", str(tmp_path)]
    shown = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=55).stdout
    raw = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert len(raw["small_dot"]["microseconds"]["bare echo"]) == 2
    assert len(raw["small_dot"]["microseconds"]["shardserve"][0]) == 5
    assert raw["machine"]["command"].endswith(str(tmp_path))
    page = (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    assert page.strip() == shown.strip()
    assert "| receive | queue | upload | run | gather | other | whole |" in page


def test_the_committed_page_is_of_a_full_run() -> None:
    raw = json.loads((ROOT / "benchmarks" / "results.json").read_text(encoding="utf-8"))
    assert raw["batched_dot"]["batch"] == 10_000_000
    assert len(raw["small_dot"]["microseconds"]["shardserve"]) >= 9
    page = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    assert raw["machine"]["command"] in page
