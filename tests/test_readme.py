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

import shardserve as ss

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


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_of_the_documents_exists(document: str) -> None:
    commands = {"serve", "info", "call", "demo", "settings", "arrays", "put", "get", "rm", "top"}
    used = re.findall(r"^shardserve (\w+)", "".join(blocks(document, "sh")), re.MULTILINE)
    assert set(used) <= commands
