"""The command line: bad starts say which setting, and the client's commands pass through the SDK."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import shardserve as ss
from shardserve import _config
from shardserve_proto.dtypes import BFLOAT16
from shardserve_proto.errors import NotFound
from shardserve_proto.messages import KernelInfo, Report, ServerInfo
from shardserve_server.cli import app
from shardserve_server.cli_serve import _announce
from shardserve_server.settings import CLIENT_VARIABLES

EVERYWHERE = "0.0.0.0"  # noqa: S104
REPORT = Report(
    device_kind="cpu", mesh=(), devices=(0,), precision="highest", arguments=(), outputs=(), compiled=True, phases_s={}
)


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
        def __init__(self, url: str | None = None, *, allow_insecure: bool = False) -> None:
            asked.append((url, allow_insecure))

        def __enter__(self) -> Client:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def info(self) -> ServerInfo:
            return ServerInfo(
                versions={"shardserve": "9"},
                limits={},
                meshes={"grid": (("x", 4),)},
                device_kind="cpu",
                device_count=1,
                notes=("a", "b"),
            )

        def devices(self) -> list[ss.Device]:
            return [ss.Device(0, "cpu", "cpu")]

        def kernels(self) -> list[KernelInfo]:
            return [
                KernelInfo(name="dot", signature="", operands=(), is_variadic=False, parameters=(), summary="", doc="")
            ]

        def call(self, kernel: str, *arrays: Any, **params: Any) -> Any:
            if kernel == "missing":
                raise NotFound("there is no kernel 'missing'")
            asked.append((kernel, [array.tolist() for array in arrays], params))
            value = arrays[0].astype(BFLOAT16) if kernel == "astype" else arrays[0] * 2
            return SimpleNamespace(value=value, report=REPORT)

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
    assert client == [(None, False), ("normalize", [[1.0, 2.0]], {"norm": "sum", "axis": [0, 1]})]
    np.testing.assert_array_equal(np.load(out), [2.0, 4.0])
    assert str(out) in done.stdout


def test_call_prints_the_result_or_json(client: list[Any], array: Path) -> None:
    assert invoke("call", "dot", str(array), "--url", "http://h:1").stdout == "[2. 4.]\n"
    assert client[0] == ("http://h:1", False)
    printed = json.loads(invoke("call", "dot", str(array), "--json").stdout)
    assert printed == {"dtype": "float64", "shape": [2], "report": REPORT.model_dump(mode="json")}


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
    text = invoke("info", "--url", "http://h:1", "--allow-insecure").stdout
    assert all(part in text for part in ("shardserve 9", "0: cpu", "dot"))
    assert client == [("http://h:1", True)]
    printed = json.loads(invoke("info", "--json").stdout)
    assert printed["devices"] == [{"id": 0, "kind": "cpu", "platform": "cpu", "process": 0}]
    assert printed["kernels"] == ["dot"]


#: Every command that speaks to a server.
COMMANDS = {
    "info": [],
    "call": ["dot", "a.npy", "a.npy"],
    "arrays": [],
    "put": ["a.npy"],
    "get": ["a", "-o", "b.npy"],
    "rm": ["a"],
    "top": ["--once"],
}


@pytest.mark.parametrize(
    ("url", "key"),
    [("nonsense", None), ("http://127.0.0.1:9", None), ("http://127.0.0.1:9", "k\n"), ("http://10.0.0.1:9", "key")],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_named_error_of_the_sdk_is_one_line(
    command: str, url: str, key: str | None, array: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDSERVE_API_KEY", key or "")
    monkeypatch.chdir(array.parent)
    done = invoke(command, *COMMANDS[command], "--url", url)
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(("shardserve: bad_request: ", "shardserve: connect_failed: "))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_sends_a_key_over_a_trusted_network(
    command: str, array: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def refuse(url: str, *, allow_insecure: bool) -> None:
        asked.append(allow_insecure)
        raise NotFound(f"there is no {url}")

    monkeypatch.setattr(ss, "Client", refuse)
    monkeypatch.chdir(array.parent)
    done = invoke(command, *COMMANDS[command], "--url", "http://10.0.0.1:9", "--allow-insecure")
    assert (done.stderr, asked) == ("shardserve: not_found: there is no http://10.0.0.1:9\n", [True])


def test_a_result_that_cannot_be_written_is_one_line(client: list[Any], array: Path, tmp_path: Path) -> None:
    done = invoke("call", "dot", str(array), "-o", str(tmp_path / "no" / "y.npy"))
    assert (done.exit_code, "there is no folder" in done.stderr, client) == (2, True, [])
    full = invoke("call", "dot", str(array), "-o", "/dev/full")
    assert (full.exit_code, full.stderr) == (1, "shardserve: /dev/full is not written: No space left on device\n")


def test_no_npy_file_loses_its_dtype(client: list[Any], array: Path, tmp_path: Path) -> None:
    out = tmp_path / "y.npy"
    done = invoke("call", "astype", str(array), "--param", "dtype=bfloat16", "-o", str(out))
    assert done.exit_code == 1
    assert "cannot say bfloat16; cast it to float32" in done.stderr
    assert not out.exists()
    np.save(out, np.ones(2, BFLOAT16))
    refused = invoke("call", "dot", str(out))
    assert refused.exit_code == 2
    assert "|V2" in refused.stderr


@pytest.mark.parametrize("command", [("call", "dot"), ("put",)])
@pytest.mark.parametrize(
    ("content", "reason"),
    [("several", "holds several arrays"), ("empty", "is no array file"), ("bfloat16", "as which NumPy saves bfloat16")],
)
def test_a_file_that_is_no_array_of_numbers_says_why(
    client: list[Any], tmp_path: Path, command: tuple[str, ...], content: str, reason: str
) -> None:
    path = tmp_path / "a.npy"
    with path.open("wb") as file:
        if content == "several":
            np.savez(file, a=np.ones(2))
        elif content == "bfloat16":
            np.save(file, np.ones(2, BFLOAT16))
    done = invoke(*command, str(path))
    assert done.exit_code == 2
    assert reason in " ".join(done.stderr.replace("│", " ").split())
    assert client == []


def test_the_version_is_told() -> None:
    assert invoke("--version").stdout == f"shardserve {version('shardserve')}\n"


def test_the_variables_of_the_client_are_those_that_it_reads() -> None:
    assert {_config.URL_VARIABLE, _config.KEY_VARIABLE} == CLIENT_VARIABLES


@pytest.mark.parametrize(
    ("host", "text"),
    [("127.0.0.1", "listens on http://127.0.0.1:80 "), (EVERYWHERE, f"listens on {EVERYWHERE}, port 80 ")],
)
def test_a_server_says_where_it_listens(host: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    _announce(host, {"version": "1", "url": "http://127.0.0.1:80", "pid": 1, "needs_key": True})
    told = capsys.readouterr().out
    assert text in told
    assert ("allow_insecure=True" in told) == (host == EVERYWHERE)


def test_the_settings_are_printed_from_the_one_table() -> None:
    rows = json.loads(invoke("settings", "--json").stdout)
    assert {"name": "port", "variable": "SHARDSERVE_PORT", "unit": "", "default": "8000"}.items() <= rows[1].items()
    table = CliRunner(env={"COLUMNS": "250"}).invoke(app, ["settings"]).stdout
    assert all(row["variable"] in table and row["meaning"] in table for row in rows)
    narrow = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["settings"]).stdout
    assert all(row["variable"] in narrow for row in rows)


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
