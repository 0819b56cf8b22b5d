"""What the sources of server and client must not contain, and a check that this test would find it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path for folder in ("server", "client", "proto_schemas") for path in (ROOT / folder).rglob("*.py")
)  # fmt: skip
#: They run what they read, or make a dtype of it.
MODULES = frozenset({"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "msgpack_numpy"})
CALLS = frozenset({"eval", "exec", "compile", "__import__"})
#: Hides a client that went away from the handlers behind it.
NAMES = frozenset({"BaseHTTPMiddleware", "allow_pickle=True"})


def forbidden(source: str) -> Iterator[str]:
    """Every use of what must not be used."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names if name.name.partition(".")[0] in MODULES)
            case ast.ImportFrom(module=module, names=names):
                yield from (str(module) for _ in "x" if (module or "").partition(".")[0] in MODULES)
                yield from (name.name for name in names if name.name in NAMES)
            case ast.Call(func=ast.Name(id=name)) if name in CALLS:
                yield name
            case ast.Call(func=ast.Attribute(attr="middleware")):
                yield "middleware"
            case ast.Attribute(attr=name) if name in NAMES:
                yield name
            case ast.keyword(arg="allow_pickle", value=value) if not _is_false(value):
                yield "allow_pickle"
            case _:
                pass


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is False


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_runs_what_it_reads_or_hides_a_disconnect(path: Path) -> None:
    assert list(forbidden(path.read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import os, marshal",
        "from pickle import loads",
        "import joblib.externals",
        "from cloudpickle import dumps as d",
        "eval('1')",
        "def f():\n    exec(x)",
        "from starlette.middleware.base import BaseHTTPMiddleware",
        "class A(base.BaseHTTPMiddleware): pass",
        "@app.middleware('http')\nasync def f(r, n): ...",
        "np.load(p, allow_pickle=True)",
        "np.load(p, allow_pickle=flag)",
    ],
)
def test_this_test_would_find_it(source: str) -> None:
    assert list(forbidden(source))


def test_the_sources_are_there() -> None:
    assert len(SOURCES) > 40
