"""What holds for every script of the folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .cloud import laptop_stage
from .stage import DEPLOY, Stage, scripts


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return laptop_stage(tmp_path)


@pytest.mark.parametrize(
    "script", [path for path in scripts() if path.name not in {"common.sh", "startup"}], ids=lambda path: path.name
)
def test_each_script_tells_how_it_is_used_and_calls_nothing(stage: Stage, script: Path) -> None:
    done = stage.run(script, "--help")
    assert (done.status, done.stderr, stage.calls()) == (0, "", [])
    assert done.stdout.startswith("usage: ")
    assert "$CLOUDSDK" not in done.stdout.replace("default: $CLOUDSDK", "")


def test_the_options_that_the_documentation_gives_are_those_of_the_scripts(stage: Stage) -> None:
    text = (DEPLOY.parent / "docs/deploy.md").read_text()
    lines = re.findall(r"^(?:sudo )?deploy/((?:gpu|tpu-vm)/\S+)([^#\n]*)", text, flags=re.MULTILINE)
    assert {name for name, _ in lines} > {"gpu/start", "gpu/update", "tpu-vm/create", "tpu-vm/update", "tpu-vm/tunnel"}
    for name, rest in lines:
        told = stage.run(name, "--help").stdout
        assert [option for option in re.findall(r"--[a-z-]+", rest) if option not in told] == []


@pytest.mark.parametrize("script", scripts(), ids=lambda path: path.name)
def test_shellcheck_has_nothing_to_say(script: Path) -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([shellcheck, "--external-sources", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("script", scripts(), ids=lambda path: path.name)
def test_no_script_names_a_registry_a_project_or_a_secret(script: Path) -> None:
    text = script.read_text()
    assert not re.search(r"(docker|gcr|ghcr|quay)\.io/|pkg\.dev|pypi\.org|dkr\.ecr", text)
    assert "set -x" not in text
