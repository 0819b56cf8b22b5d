"""The command line: bad starts say which setting, and the client's commands pass through the SDK."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from shardserve_proto.errors import NotFound
from shardserve_server.cli import app

EVERYWHERE = "0.0.0.0"  # noqa: S104


def start(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A start that is expected to fail."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("SHARDSERVE_")}
    argv = [sys.executable, "-m", "shardserve_server", "serve", "--devices", "1", *options]
    return subprocess.run(argv, env=own | environment, capture_output=True, text=True, timeout=30, check=False)


def test_a_port_in_use_stops_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        done = start("--port", str(other.getsockname()[1]))
    assert done.returncode == 2
    assert "setting port (SHARDSERVE_PORT)" in done.stderr
    assert (done.stdout, "Traceback" in done.stderr) == ("", False)


@pytest.mark.parametrize(
    ("options", "environment", "name"),
    [
        (["--port", "70000"], {}, "port"),
        (["--host", "no.such.host.invalid"], {}, "host"),
        (["--host", "203.0.113.7", "--port", "0"], {"SHARDSERVE_API_KEY": "k1k2k3k4k5k6k7k8k9k0k1k2k3"}, "host"),
        (["--mesh", "grid:x=4"], {}, "meshes"),
        (["--body-bytes", "much"], {}, "body_bytes"),
        (["--key-file", "/no/such/file"], {}, "key_file"),
        ([], {"SHARDSERVE_API_KEY": "short"}, "api_key"),
        ([], {"SHARDSERVE_PROT": "1"}, "prot"),
        ([], {"SHARDSERVE_QUEUE_DEPTH": "-3"}, "queue_depth"),
    ],
)
def test_a_bad_setting_stops_the_start_with_its_name(
    options: list[str], environment: dict[str, str], name: str
) -> None:
    done = start(*options, **environment)
    assert done.returncode == 2
    assert f"setting {name} (SHARDSERVE_{name.upper()})" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == "", "nothing was served"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Stands in for the SDK; what it was asked."""
    asked: list[Any] = []

    class Client:
        def __init__(self, url: str | None = None) -> None:
            asked.append(url)

        def __enter__(self) -> Client:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def info(self) -> dict[str, Any]:
            return {"versions": {"shardserve": "9"}, "notes": ["a", "b"]}

        def devices(self) -> list[dict[str, Any]]:
            return [{"id": 0, "kind": "cpu"}]

        def call(self, kernel: str, *arrays: Any, **params: Any) -> Any:
            if kernel == "missing":
                raise NotFound("there is no kernel 'missing'")
            asked.append((kernel, [array.tolist() for array in arrays], params))
            return SimpleNamespace(value=arrays[0] * 2, report={"compiled": True})

    monkeypatch.setitem(sys.modules, "shardserve", SimpleNamespace(Client=Client))
    return asked


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def array(tmp_path: Path) -> Path:
    path = tmp_path / "a.npy"
    np.save(path, np.array([1.0, 2.0]))
    return path


def test_call_reads_and_writes_npy(client: list[Any], array: Path, tmp_path: Path) -> None:
    out = tmp_path / "result"
    done = invoke("call", "normalize", str(array), "-o", str(out), "--param", "norm=sum", "--param", "axis=[0, 1]")
    assert done.exit_code == 0, done.output
    assert client == [None, ("normalize", [[1.0, 2.0]], {"norm": "sum", "axis": [0, 1]})]
    np.testing.assert_array_equal(np.load(out), [2.0, 4.0])
    assert str(out) in done.stdout


def test_call_prints_the_result_or_json(client: list[Any], array: Path) -> None:
    assert invoke("call", "dot", str(array), "--url", "http://h:1").stdout == "[2. 4.]\n"
    assert client[0] == "http://h:1"
    printed = json.loads(invoke("call", "dot", str(array), "--json").stdout)
    assert printed == {"dtype": "float64", "shape": [2], "report": {"compiled": True}}


def test_a_named_error_is_one_line_and_status_1(client: list[Any], array: Path) -> None:
    done = invoke("call", "missing", str(array))
    assert done.exit_code == 1
    assert "shardserve: not_found: there is no kernel 'missing'" in done.output
    assert "Traceback" not in done.output


def test_an_array_of_objects_is_not_unpickled(client: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "objects.npy"
    np.save(path, np.array([{}], object), allow_pickle=True)
    done = invoke("call", "dot", str(path))
    assert done.exit_code == 2
    assert "no array file" in done.output
    assert not [entry for entry in client if isinstance(entry, tuple)]


@pytest.mark.parametrize("text", ["norm", "=1", "a b=1"])
def test_a_parameter_is_a_name_and_a_value(client: list[Any], array: Path, text: str) -> None:
    assert invoke("call", "dot", str(array), "--param", text).exit_code == 2


def test_info_is_a_table_or_json(client: list[Any]) -> None:
    assert "shardserve 9" in invoke("info").stdout
    assert json.loads(invoke("info", "--json").stdout)["devices"] == [{"id": 0, "kind": "cpu"}]


def test_the_settings_are_printed_from_the_one_table() -> None:
    rows = json.loads(invoke("settings", "--json").stdout)
    assert {"name": "port", "variable": "SHARDSERVE_PORT", "unit": "", "default": "8000"}.items() <= rows[1].items()
    table = CliRunner(env={"COLUMNS": "250"}).invoke(app, ["settings"]).stdout
    assert all(row["variable"] in table and row["meaning"] in table for row in rows)


def test_help_names_every_command() -> None:
    text = invoke("--help").stdout
    for command in ("serve", "info", "call", "demo", "settings"):
        assert command in text


def test_the_package_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shardserve_server", "--help"], capture_output=True, text=True, check=True
    )
    assert "serve" in done.stdout


@pytest.mark.parametrize(
    ("absent", "command"), [("typer", "info"), ("uvicorn", "serve"), ("pydantic_settings", "serve")]
)
def test_without_its_extra_the_command_names_it(absent: str, command: str) -> None:
    hidden = f"import sys; sys.modules[{absent!r}] = None; sys.argv = ['shardserve', {command!r}]"
    program = f"{hidden}; from shardserve_server.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert f"'{absent}', which is not installed" in done.stderr
    assert "shardserve[server]" in done.stderr
    assert "Traceback" not in done.stderr
