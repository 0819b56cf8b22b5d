"""An environment of its own for each peer, made once and kept beside the project's own (`.venv-peers/`, not in git)."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parents[1]
PEERS = Path(__file__).parent / "peers"
HOME = ROOT / ".venv-peers"

#: Whatever a peer computes with is what the server computes with, unless the peer's own pins say otherwise.
SHARED = ("jax", "jaxlib", "numpy")
INSTALL_LIMIT_S = 900


class NotInstalled(Exception):
    """A peer's environment could not be made; the message is the reason that the table shows."""


def python_of(peer: str) -> Path:
    """The interpreter of a peer's environment, which is made when it is missing or its pins have changed.

    Raises:
        NotInstalled: pip or venv failed.
    """
    requirements = PEERS / peer / "requirements.txt"
    if not requirements.exists():
        return Path(sys.executable)
    folder = HOME / peer
    recipe = _recipe(requirements)
    stamp = folder / "recipe"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != recipe:
        _make(folder, requirements, recipe)
    return folder / "bin" / "python"


def _recipe(requirements: Path) -> str:
    """What an environment is made from; a change of it makes the environment again."""
    text = requirements.read_text(encoding="utf-8") + _constraints(requirements) + sys.version
    return hashlib.sha256(text.encode()).hexdigest()


def _constraints(requirements: Path) -> str:
    pinned = requirements.read_text(encoding="utf-8")
    return "".join(f"{name}=={_version(name)}\n" for name in SHARED if f"{name}==" not in pinned and _version(name))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _make(folder: Path, requirements: Path, recipe: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    constraints = folder / "constraints.txt"
    constraints.write_text(_constraints(requirements), encoding="utf-8")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # pip reads constraints from the environment too, and several files from there.
    given = [*os.environ.get("PIP_CONSTRAINT", "").split(), str(constraints)]
    _run([*pip, "--requirement", str(requirements)], PIP_CONSTRAINT=" ".join(given))
    (folder / "recipe").write_text(recipe, encoding="utf-8")


def _run(command: list[str], **variables: str) -> None:
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=INSTALL_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"not installed in {INSTALL_LIMIT_S} s") from None
    if done.returncode != 0:
        raise NotInstalled(_last_line(done.stderr or done.stdout))


def _last_line(text: str) -> str:
    errors = [line.strip() for line in text.splitlines() if line.startswith("ERROR")]
    lines = errors or [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "failed without a word"
