"""The client's commands against a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np


def shardserve(*arguments: str, url: str) -> str:
    """What the command prints."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("SHARDSERVE_")}
    argv = [sys.executable, "-m", "shardserve_server", *arguments]
    done = subprocess.run(
        argv, env=own | {"SHARDSERVE_URL": url}, capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_info_shows_the_server(server_url: str) -> None:
    text = shardserve("info", url=server_url)
    assert all(part in text for part in ("shardserve", "7: cpu", "matmul", "body_bytes"))
    facts = json.loads(shardserve("info", "--json", url=server_url))
    assert [device["id"] for device in facts["devices"]] == list(range(8))
    assert facts["device_count"] == 8


def test_call_computes_on_files(server_url: str, tmp_path: Path) -> None:
    a, b = np.random.default_rng(0).random((2, 5, 5))
    for name, array in {"a": a, "b": b}.items():
        np.save(tmp_path / f"{name}.npy", array)
    files, out = [str(tmp_path / "a.npy"), str(tmp_path / "b.npy")], tmp_path / "y.npy"
    shardserve("call", "dot", *files, "-o", str(out), url=server_url)
    np.testing.assert_allclose(np.load(out), a @ b)
    printed = json.loads(shardserve("call", "sum", files[0], "--param", "axis=0", "--json", url=server_url))
    assert (printed["dtype"], printed["shape"]) == ("float64", [5])
    assert printed["report"]["device_kind"] == "cpu"
