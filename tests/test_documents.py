"""The documents agree with the code and with each other."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from shardserve_proto.errors import BY_CODE
from shardserve_server.settings import settings_table

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
DOCUMENTS += [*sorted((ROOT / "docs").glob("*.md")), ROOT / "proto_schemas" / "SPEC.md"]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def pyproject() -> dict[str, Any]:
    return tomllib.loads(read("pyproject.toml"))


def test_the_changelog_s_first_entry_is_the_version() -> None:
    first = re.search(r"^## \[([^\]]+)\]", read("CHANGELOG.md"), re.MULTILINE)
    assert first
    assert first[1] == pyproject()["project"]["version"]


def test_changelog_entries_stand_under_the_usual_headings() -> None:
    headings = re.findall(r"^### (.*)$", read("CHANGELOG.md"), re.MULTILINE)
    assert headings
    assert set(headings) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def settings_rows() -> str:
    rows = settings_table()
    return "".join(f"| `{row.name}` | {row.unit} | {row.default} | {row.meaning} |\n" for row in rows)


def test_the_table_of_settings_is_the_one_of_the_code() -> None:
    text = read("docs/server.md")
    table = text[text.index("| setting |") : text.index("<!-- end of settings -->")]
    assert table.split("| --- | --- | --- | --- |\n")[1] == settings_rows()


def test_every_code_that_the_documents_name_exists() -> None:
    named = re.findall(r"^\| `(\w+)`(?:, `(\w+)`)? \(\d+\)", read("docs/server.md"), re.MULTILINE)
    codes = {code for pair in named for code in pair if code}
    assert codes
    assert codes <= BY_CODE.keys()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text(encoding="utf-8"))
    missing = [target for target in targets if not (document.parent / target).exists()]
    assert not missing


def test_the_glossary_defines_each_word_once() -> None:
    words = re.findall(r"^\| \*\*(.+?)\*\* \|", read("docs/glossary.md"), re.MULTILINE)
    assert len(words) == len(set(words)) == 26


@pytest.mark.skipif(os.name == "nt", reason="make is not at home there")
def test_bare_make_prints_the_manual() -> None:
    shown = subprocess.run(["make", "-C", str(ROOT)], check=True, capture_output=True, text=True).stdout  # noqa: S607
    targets = re.findall(r"^([a-z]+):.*## ", read("Makefile"), re.MULTILINE)
    assert {"demo", "test", "check", "bench"} <= set(targets)
    assert all(f"make {target} " in shown for target in targets)


def test_ci_runs_lint_types_layers_and_tests() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    steps = re.findall(r"^run (\w+)$", script.read_text(encoding="utf-8"), re.MULTILINE)
    assert steps == ["env", "versions", "lint", "types", "layers", "test"]


def test_the_license_is_the_one_that_is_declared() -> None:
    assert pyproject()["project"]["license"] == "Apache-2.0"
    assert "Apache License" in read("LICENSE")
