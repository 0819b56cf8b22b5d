"""The commands for resident arrays, against a real server."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import shardserve as ss
from shardserve_server import cli_arrays
from shardserve_server.cli import app

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
    assert done.exit_code == 2
    assert "cast it first" in " ".join(done.stderr.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


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
