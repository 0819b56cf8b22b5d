"""What `import shardserve` offers, and what it leaves alone."""

from __future__ import annotations

import builtins
import doctest
import importlib
import inspect
import pydoc
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

import shardserve as ss
from shardserve._kernel_methods import KernelMethods
from shardserve._options import CALL_KEYWORDS
from shardserve_proto import errors
from shardserve_proto.signatures import BUILTIN

FORBIDDEN = ("jax", "jaxlib", "fastapi", "uvicorn", "shardserve_server")


def imports(statement: str) -> set[str]:
    """The packages of FORBIDDEN that a fresh interpreter has after the statement."""
    code = f"{statement}\nimport sys\nprint(*[m for m in {FORBIDDEN} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50)
    return set(done.stdout.split())


def test_the_client_imports_no_jax_and_no_server() -> None:
    use = "import shardserve as ss\nwith ss.Client('http://127.0.0.1:9') as c: pass"
    assert imports(use) == set()


def test_the_test_above_can_fail() -> None:
    assert imports("import shardserve, fastapi") == {"fastapi"}


def test_nothing_is_read_from_the_environment_at_import_and_httpx_waits_for_a_client() -> None:
    code = (
        "import os\n"
        "read = []\n"
        "class Watched(type(os.environ)):\n"
        "    def __getitem__(self, key):\n"
        "        read.append(key)\n"
        "        return super().__getitem__(key)\n"
        "os.environ.__class__ = Watched\n"
        "import shardserve, sys\n"
        "print(sorted(key for key in read if key.startswith('SHARDSERVE')), 'httpx' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout.strip() == "[] False"


def test_all_is_sorted_and_names_everything_public() -> None:
    assert list(ss.__all__) == sorted(ss.__all__)
    public = {name for name in vars(ss) if not name.startswith("_") and name != "annotations"}
    assert public == set(ss.__all__)


def test_every_error_class_is_exported() -> None:
    classes = {
        name for name, cls in vars(errors).items() if isinstance(cls, type) and issubclass(cls, ss.ShardserveError)
    }
    assert classes <= set(ss.__all__)


@pytest.mark.parametrize("kernel", sorted(BUILTIN.keys() - {"slice"}))  # which is written x[...]
def test_every_kernel_is_a_function_and_a_method_with_its_signature(kernel: str) -> None:
    signature = BUILTIN[kernel]
    wanted = {parameter.name for parameter in signature.parameters} | set(signature.operands)
    function = inspect.signature(getattr(ss, kernel)).parameters
    assert set(function) == wanted
    method = inspect.signature(getattr(KernelMethods, kernel)).parameters
    assert set(method) == wanted | {"self", *CALL_KEYWORDS}
    doc = inspect.getdoc(getattr(ss.Client, kernel)) or ""
    assert "Communication" in doc or "communication" in doc
    assert "axis_resources" in doc


def test_the_help_of_a_kernel_shows_its_own_and_every_call_s_keywords() -> None:
    text = pydoc.TextDoc().document(ss.Client.matmul)
    text = re.sub(".\b", "", text)  # bold letters are struck twice
    for part in ("matmul(", "dtype", "in_shardings", "axis_resources", "timeout", "Raises:", "ShapeError"):
        assert part in text
    assert "**options" not in text


def test_public_functions_and_classes_have_docstrings() -> None:
    for name in ss.__all__:
        assert inspect.getdoc(getattr(ss, name)), name


def test_builtins_are_shadowed_as_attributes_only() -> None:
    namespace: dict[str, Any] = {}
    exec("from shardserve import *", namespace)  # noqa: S102 - what a star import would bring
    shadowed = {name for name in ss.__all__ if hasattr(builtins, name)}
    assert shadowed == {"abs", "max", "min", "slice", "sum"}


# --- the two shells --------------------------------------------------------------------------------------------------


def public_methods(cls: type) -> dict[str, Any]:
    return {
        name: member
        for name, member in inspect.getmembers(cls)
        if callable(member) and (not name.startswith("_") or name == "__init__")
    }


def test_the_async_client_has_the_methods_of_the_client_with_equal_signatures() -> None:
    plain, awaited = public_methods(ss.Client), public_methods(ss.AsyncClient)
    assert plain.keys() == awaited.keys()
    for name, member in plain.items():
        assert inspect.signature(member) == inspect.signature(awaited[name]), name


def test_what_the_client_sends_the_async_client_awaits() -> None:
    for name in ("run", "call", "devices", "info", "kernels", "close", "_drive"):
        assert inspect.iscoroutinefunction(getattr(ss.AsyncClient, name)), name
        assert not inspect.iscoroutinefunction(getattr(ss.Client, name)), name


@pytest.mark.parametrize("module", ["_transforms", "_specs"])
def test_examples_in_docstrings_run(module: str) -> None:
    found = importlib.import_module(f"shardserve.{module}")
    assert doctest.testmod(found, optionflags=doctest.ELLIPSIS).failed == 0


def test_every_module_of_the_client_is_private_and_of_a_size_to_read() -> None:
    modules = list(Path(ss.__file__).parent.glob("*.py"))
    assert all(module.name.startswith("_") for module in modules)
    assert all(len(module.read_text().splitlines()) <= 400 for module in modules)


def test_one_file_imports_httpx() -> None:
    pattern = re.compile(r"^\s*(import|from) httpx", re.MULTILINE)
    files = {path.name for path in Path(ss.__file__).parent.glob("*.py") if pattern.search(path.read_text())}
    assert files == {"_transport.py"}


@pytest.mark.parametrize("package", ["shardserve", "shardserve_proto", "shardserve_server"])
def test_types_reach_the_user(package: str) -> None:
    assert resources.files(package).joinpath("py.typed").is_file()
