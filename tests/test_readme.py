"""The Python and curl of the README and of docs/ run as they are written, against a real server."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import shardserve as ss
from shardserve_server.cli import app

ROOT = Path(__file__).parents[1]
DOCUMENTS = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]


@pytest.fixture(scope="module")
def local_client() -> Iterator[ss.Client]:
    with ss.LocalServer(devices=8) as client:
        yield client


def blocks(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if blocks(name, "python")])
def test_python_blocks_run_one_after_the_other(document: str, local_client: ss.Client) -> None:
    names: dict[str, Any] = {"np": np, "ss": ss, "P": ss.P, "client": local_client}
    for block in blocks(document, "python"):
        exec(compile(block, document, "exec"), names)  # noqa: S102 - our own documents
        names["client"] = local_client  # a block may have closed a server of its own


def test_the_readme_begins_with_a_session_of_ten_lines() -> None:
    first = blocks("README.md", "python")[0]
    assert "LocalServer" in first
    assert len([line for line in first.splitlines() if line.strip()]) <= 10


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
@pytest.mark.parametrize("document", ["README.md", "proto_schemas/SPEC.md"])
def test_curl_is_answered_as_promised(document: str, local_client: ss.Client) -> None:
    (line,) = [line for block in blocks(document, "sh") for line in block.splitlines() if line.startswith("curl")]
    command = shlex.split(line.replace("http://127.0.0.1:8000", local_client.url))
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=30).stdout)
    (result,) = answer["results"]
    assert result == {"dtype": "int64", "shape": [], "data": 32 if document == "README.md" else 11}
    assert answer["report"]["precision"] == "highest"


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_arrays_go_up_and_come_down_by_curl_as_npy_files(local_client: ss.Client, tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((12, 5))
    np.save(tmp_path / "a.npy", x)
    lines = [line for block in blocks("docs/arrays.md", "sh") for line in block.splitlines() if line.startswith("curl")]
    assert len(lines) >= 5
    for line in lines:
        command = shlex.split(line.replace("http://127.0.0.1:8000", local_client.url), comments=True)
        done = subprocess.run([*command, "--fail"], capture_output=True, timeout=30, check=False, cwd=tmp_path)
        assert done.returncode == 0, (line, done.stdout)
    np.testing.assert_allclose(np.load(tmp_path / "b.npy"), x / x.sum())
    np.testing.assert_array_equal(np.load(tmp_path / "rows.npy"), np.load(tmp_path / "b.npy")[:10:2])


def unknown_words(line: str) -> set[str]:
    """The words of a `shardserve` line, comments included, that are no command or no option of it."""
    name, *words = re.findall(r"(?<!\S)(?:--)?[a-z][a-z-]*(?=[\s,;]|$)", line.removeprefix("shardserve"))
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    if name not in commands:
        return {name}
    known = {option for parameter in commands[name].params for option in parameter.opts}
    return {word for word in words if word.startswith("--")} - known


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_and_option_of_the_documents_exists(document: str) -> None:
    lines = [line for block in blocks(document, "sh") for line in block.splitlines()]
    assert {line: unknown_words(line) for line in lines if line.startswith("shardserve ") and unknown_words(line)} == {}


def test_words_that_no_command_has_are_seen() -> None:
    assert unknown_words("shardserve fly --high") == {"fly"}
    assert unknown_words("shardserve top --once --often  # also: --json, --shiny") == {"--often", "--shiny"}
