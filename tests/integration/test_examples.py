"""The examples run as they are written, on smaller inputs; each checks itself against NumPy."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import shardserve as ss

FOLDER = Path(__file__).parents[2] / "examples"

#: Arguments of each example's `main`, behind the client; sizes that do not divide eight devices.
SMALL: dict[str, list[tuple[int, ...]]] = {
    "normalize": [(100, 100), (101, 99), (3, 1)],
    "batched_dot": [(80_001,), (7,)],
    "vmap_dot": [(80_001,), (1,)],
    "mistakes": [()],
    "all_reduce_dot": [(41, 1_003)],
    "tensor_parallel": [(100,)],
    "resident_arrays": [(1003,), (1,)],
    "digits": [()],
}
CASES = [(name, arguments) for name, several in SMALL.items() for arguments in several]


def test_every_example_is_run() -> None:
    assert set(SMALL) == {path.stem for path in FOLDER.glob("*.py")}


@pytest.mark.parametrize(("name", "arguments"), CASES, ids=[f"{name}{arguments}" for name, arguments in CASES])
def test_an_example_gives_numpy_s_numbers(
    name: str, arguments: tuple[int, ...], local_client: ss.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    program: dict[str, Any] = runpy.run_path(str(FOLDER / f"{name}.py"))
    program["main"](local_client, *arguments)
    assert capsys.readouterr().out.strip()


def test_an_example_runs_as_a_program_of_its_own() -> None:
    command = [sys.executable, str(FOLDER / "normalize.py"), "9", "5"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=50)
    assert shown.stdout == "(9, 5) normalized; the total is now 1.000000\n"
    assert shown.stderr == ""


def test_every_example_is_listed_in_the_readme_beside_it() -> None:
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"[{name}.py]({name}.py)" in listed for name in SMALL)
