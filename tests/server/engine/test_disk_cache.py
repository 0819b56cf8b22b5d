"""Compiled programs on disk: found again by the next engine, never from a folder that others can write to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from shardserve_proto.errors import InvalidRequest
from shardserve_server.engine import disk_cache

from ..link.harness import ROOT

#: An engine of its own: JAX opens its cache once in the life of a process.
_ENGINE = """
import json, sys
import numpy as np
from shardserve_server.engine import disk_cache
from shardserve_server.engine.engine import Engine, EngineSettings
from tests.calls import encode, run
import jax._src.compilation_cache as compilation_cache

hits = []
get = compilation_cache.get_executable_and_time
def counted(*args, **kwargs):
    found = get(*args, **kwargs)
    hits.append(found[0] is not None)
    return found
compilation_cache.get_executable_and_time = counted

disk_cache.LEAST_COMPILE_S = 0.0
engine = Engine(EngineSettings(devices=8, cache_dir=sys.argv[1], meshes={"grid": (("x", 4), ("y", 2))}))
rng = np.random.default_rng(0)
x = rng.random((257, 129))
answers = [run(engine, "normalize", x, params={"norm": "l2"}, mesh="grid").value.tobytes().hex()[:4000]]
header, _ = encode("matmul", x, x.T.copy(), mesh="grid")
answers.append(run(engine, "matmul", x, x.T.copy(), mesh="grid").value.tobytes().hex()[:4000])
executable = engine.executable(header)
print(json.dumps({"answers": answers, "bytes": executable.device_bytes, "hits": hits}))
engine.close()
"""


def run_engine(folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", _ENGINE, str(folder)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "programs"


@pytest.mark.timeout(180)
def test_the_next_engine_finds_what_the_last_one_compiled(folder: Path) -> None:
    """The answers are the same bits, and the memory that a call plans with is that of a fresh compile."""
    first, second = run_engine(folder), run_engine(folder)
    assert not any(first["hits"])
    assert all(second["hits"])
    assert len(second["hits"]) > 1
    assert second["answers"] == first["answers"]
    assert second["bytes"] == first["bytes"]


@pytest.mark.timeout(180)
def test_a_torn_entry_is_written_anew(folder: Path) -> None:
    first = run_engine(folder)
    (own,) = folder.iterdir()
    values = sorted(own.glob("*-cache"))
    for value in values:
        value.write_bytes(value.read_bytes()[:100])
        value.with_name(value.name.removesuffix("-cache") + "-atime").unlink()
    second = run_engine(folder)
    assert not any(second["hits"])
    assert second["answers"] == first["answers"]
    assert all(run_engine(folder)["hits"])


def test_only_the_users_own_folder_will_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is checked before JAX is told anything."""
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    with pytest.raises(InvalidRequest, match=r"cache_dir \(SHARDSERVE_CACHE_DIR\): others can write"):
        disk_cache.use_disk_cache(folder, most_bytes=2**20)
    folder.chmod(0o700)
    monkeypatch.setattr("os.geteuid", lambda: 54_321)
    with pytest.raises(InvalidRequest, match="belongs to another user"):
        disk_cache.use_disk_cache(folder, most_bytes=2**20)


@pytest.mark.parametrize("path", ["/proc/nowhere", "/dev/null/programs"])
def test_a_folder_that_cannot_be_written_to_is_named(path: str) -> None:
    with pytest.raises(InvalidRequest, match=r"cache_dir.*cannot be written to \((No such file|Not a directory)"):
        disk_cache.use_disk_cache(Path(path), most_bytes=2**20)


def test_what_others_left_goes_when_nobody_used_it_for_a_month(folder: Path) -> None:
    own, recent, old, photos = "a" * 16, "b" * 16, "c" * 16, "d" * 16
    for name, days, file in (
        (own, 90, "v-cache"), (recent, 20, "v-cache"), (old, 40, "v-cache"), (photos, 40, "me.jpg"),
        ("letters", 40, "v"),
    ):  # fmt: skip
        (folder / name).mkdir(parents=True)
        (folder / name / file).write_bytes(b"x")
        then = time.time() - days * 24 * 3600
        os.utime(folder / name, (then, then))
    (folder / ("e" * 16)).symlink_to(folder / "letters")
    disk_cache.remove_old(folder, keep=folder / own)
    assert {left.name for left in folder.iterdir()} == {own, recent, photos, "letters", "e" * 16}, (
        "what is a user's stays"
    )


def test_what_somebody_else_put_there_is_not_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    (folder / "whole-cache").write_bytes(b"x")
    (folder / "whole-atime").write_bytes(b"x")
    disk_cache.remove_unfit(folder)
    assert (folder / "whole-cache").exists()
    monkeypatch.setattr(os, "geteuid", lambda: (folder / "whole-cache").stat().st_uid + 1)
    disk_cache.remove_unfit(folder)
    assert not (folder / "whole-cache").exists()


@pytest.mark.parametrize("step", ["lstat", "unlink", "rmdir", "iterdir"])
def test_two_engines_may_clean_up_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Whatever one looks at, the other may have removed a moment before."""
    old = folder / ("b" * 16)
    old.mkdir(parents=True)
    for name in ("torn", "whole"):
        (old / f"{name}-cache").write_bytes(b"x")
    (old / "whole-atime").write_bytes(b"x")
    os.utime(old, (0, 0))
    real = getattr(Path, step)

    def rivalled(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path.parent == old or (path == old and step in ("rmdir", "iterdir")):
            for file in list(os.scandir(old)):
                os.unlink(file.path)
            os.rmdir(old)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(Path, step, rivalled)
    if step in ("lstat", "unlink"):
        disk_cache.remove_unfit(old)
    else:
        disk_cache.remove_old(folder, keep=folder / "own")
    assert not old.exists()


def test_another_kind_of_machine_has_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    here = disk_cache.fingerprint()
    monkeypatch.setattr(disk_cache, "_cpu_flags", lambda: "flags: another cpu")
    assert disk_cache.fingerprint() != here
