"""The commands for resident arrays, against a real server."""

from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import shardserve as ss
from shardserve_server import cli_arrays
from shardserve_server.cli import app
from shardserve_server.cli_files import arriving

X = np.arange(60, dtype=np.float32).reshape(12, 5)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.npy"
    np.save(path, X)
    return path


def run(client: ss.Client, *words: str | Path) -> Result:
    return CliRunner().invoke(app, [*map(str, words), "--url", client.url])


def test_an_array_goes_up_is_listed_comes_down_and_is_removed(client: ss.Client, file: Path, tmp_path: Path) -> None:
    done = run(client, "put", file, "--name", "shell", "--spec", "x+y,-", "--mesh", "x=4,y=2", "--ttl", "60")
    assert done.exit_code == 0, done.output
    handle = client.attach(done.stdout.strip())
    assert (handle.spec, handle.mesh, handle.name) == (ss.P(("x", "y")), {"x": 4, "y": 2}, "shell")
    listed = run(client, "arrays").stdout
    assert "shell" in listed
    assert "float32[12, 5]" in listed
    (row,) = [row for row in json.loads(run(client, "arrays", "--json").stdout) if row["name"] == "shell"]
    assert row["id"] == handle.id

    out = tmp_path / "out.npy"
    assert run(client, "get", "shell", "-o", out).exit_code == 0
    np.testing.assert_array_equal(np.load(out), X)
    assert sorted(tmp_path.iterdir()) == [file, out], "no half of a file is left"
    assert run(client, "rm", "shell").exit_code == 0
    gone = run(client, "rm", "shell")
    assert (gone.exit_code, gone.stderr) == (1, "shardserve: not_found: no array has the name 'shell'\n")


def test_an_unnamed_array_stays_when_the_command_has_ended(client: ss.Client, file: Path) -> None:
    told = json.loads(run(client, "put", file, "--pin", "--json").stdout)
    assert (told["dtype"], told["shape"]) == ("float32", [12, 5])
    handle = client.attach(told["id"])
    assert handle.lease.pinned
    handle.delete()


def test_a_name_that_is_taken_is_one_line_and_status_1(client: ss.Client, file: Path) -> None:
    assert run(client, "put", file, "--name", "taken").exit_code == 0
    again = run(client, "put", file, "--name", "taken")
    assert again.exit_code == 1
    assert again.stderr.startswith("shardserve: name_taken: ")
    assert again.stderr.count("\n") == 1
    assert run(client, "put", file, "--name", "taken", "--replace").exit_code == 0
    client.delete("taken")


def test_a_get_that_fails_leaves_no_file(client: ss.Client, tmp_path: Path) -> None:
    assert run(client, "get", "nothing-there", "-o", tmp_path / "x.npy").exit_code == 1
    h = client.put(X.astype(np.float16))
    assert run(client, "get", h.id, "-o", tmp_path / "half.npy").exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["half.npy"]


def test_a_dtype_that_npy_lacks_is_refused_with_the_cast(client: ss.Client, tmp_path: Path) -> None:
    h = client.astype(X, "bfloat16", keep=True)
    done = run(client, "get", h.id, "-o", tmp_path / "x.npy")
    assert done.exit_code == 1
    assert "cannot say bfloat16; cast it to float32" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["no/y.npy", "."])
def test_a_place_that_cannot_be_written_is_told_before_the_download(
    client: ss.Client, tmp_path: Path, where: str
) -> None:
    with client.put(X) as h:
        done = run(client, "get", h.id, "-o", tmp_path / where)
    assert (done.exit_code, "Traceback" in done.output, list(tmp_path.iterdir())) == (2, False, [])
    assert isinstance(done.exception, SystemExit)


def test_a_pipe_or_a_device_is_not_replaced_by_a_file(client: ss.Client, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with client.put(X) as h:
        done = run(client, "get", h.id, "-o", pipe)
    assert (done.exit_code, pipe.is_fifo(), list(tmp_path.iterdir())) == (2, True, [pipe])


def test_a_link_stays_a_link(client: ss.Client, tmp_path: Path) -> None:
    link, file = tmp_path / "x.npy", tmp_path / "elsewhere.npy"
    link.symlink_to(file)
    with client.put(X) as h:
        assert run(client, "get", h.id, "-o", link).exit_code == 0
    assert link.is_symlink()
    np.testing.assert_array_equal(np.load(file), X)


def test_a_full_disk_is_one_line_before_the_download(
    client: ss.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with client.put(X) as h:
        done = run(client, "get", h.id, "-o", tmp_path / "x.npy")
    assert (done.exit_code, list(tmp_path.iterdir())) == (1, [])
    assert done.stderr.endswith("x.npy is not written: No space left on device\n")


def test_a_download_that_is_ended_by_a_signal_leaves_no_file(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, arriving(tmp_path / "x.npy", X.dtype, X.shape):
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_download_touches_no_other_file(client: ss.Client, tmp_path: Path) -> None:
    other, out = tmp_path / "x.npy.part", tmp_path / "x.npy"
    other.write_text("mine")
    with client.put(X) as h:
        assert run(client, "get", h.id, "-o", out).exit_code == 0
    assert other.read_text() == "mine"
    assert sorted(tmp_path.iterdir()) == [out, other]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_scalars_and_empty_arrays_are_files_too(client: ss.Client, tmp_path: Path, shape: tuple[int, ...]) -> None:
    with client.put(np.ones(shape)) as h:
        assert run(client, "get", h.id, "-o", tmp_path / "x.npy").exit_code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), np.ones(shape))


def test_top_shows_the_ledger_once_or_as_json(client: ss.Client) -> None:
    h = client.put(np.ones((64, 64)), name="held")
    shown = run(client, "top", "--once").stdout
    assert "resident arrays" in shown
    assert "held" in shown
    told = json.loads(run(client, "top", "--once", "--json").stdout)
    assert told["own_resident_bytes"] >= h.nbytes
    client.delete(h)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("auto", ss.AUTO),
        ("replicated", ss.P()),
        ("x", ss.P("x")),
        ("-,x", ss.P(None, "x")),
        ("x+y, -", ss.P(("x", "y"), None)),
    ],
)
def test_specs_as_they_are_typed(text: str, spec: object) -> None:
    assert cli_arrays.read_spec(text) == spec


def test_meshes_as_they_are_typed(client: ss.Client, file: Path) -> None:
    assert cli_arrays.read_mesh("grid") == "grid"
    assert cli_arrays.read_mesh("x=4, y=-1") == {"x": 4, "y": -1}
    assert cli_arrays.read_mesh(None) is None
    assert run(client, "put", file, "--mesh", "x=many").exit_code == 2


def test_a_text_file_is_no_array(client: ss.Client, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_text("hello")
    done = run(client, "put", path)
    assert done.exit_code == 2
    assert "no array file" in " ".join(done.stderr.replace("│", " ").split())
