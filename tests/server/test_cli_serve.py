"""What `serve`, `engine` and `ready` say, and what they end with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from typer.testing import CliRunner

from shardserve_proto.messages import DeviceInfo, EngineInfo
from shardserve_server.cli import app
from shardserve_server.cli_serve import _announce, _announce_ready, _announce_ready_json, _own_address

INFO = EngineInfo(
    versions={"jax": "9.9"},
    devices=tuple(DeviceInfo(id=n, kind="TPU v5e", platform="tpu") for n in range(8)),
    meshes={"default": (("devices", 8),), "grid": (("x", 4), ("y", 2))},
    kernels=(),
    memory_bytes=64 * 2**30,
    compile_cache_entries=256,
    queue_depth=1,
    notes=(),
)


class Probe(BaseHTTPRequestHandler):
    """Answers /readyz as a server that loads does, and then as one that is ready."""

    loads = 0

    def do_GET(self) -> None:
        Probe.loads -= 1
        status = 503 if Probe.loads >= 0 else 200
        error = {"error": {"code": "engine_starting", "message": "the engine is loading; ask again"}}
        body = json.dumps(error if status == 503 else {"status": "ready"}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Probe) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_ready_tells_a_probe_and_a_person(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDSERVE_PORT", str(port))
    Probe.loads = 1
    done = CliRunner().invoke(app, ["ready"])
    assert (done.exit_code, done.stderr) == (1, "not ready: the engine is loading; ask again\n")
    done = CliRunner().invoke(app, ["ready"])
    assert (done.exit_code, done.stdout) == (0, "ready\n")


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("", "http://127.0.0.1:8000"), ("::", "http://[::1]:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),  # noqa: S104
        ("[::1]", "http://[::1]:8000"), ("10.0.0.5", "http://10.0.0.5:8000"),
    ],
)  # fmt: skip
def test_ready_asks_where_the_server_listens(host: str, address: str) -> None:
    assert _own_address({"SHARDSERVE_HOST": host}) == address


def test_ready_waits_if_asked_to(port: int) -> None:
    Probe.loads = 2
    done = CliRunner().invoke(app, ["ready", "--wait", "20", "--url", f"http://127.0.0.1:{port}"])
    assert (done.exit_code, done.stdout) == (0, "ready\n")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://no.such.host.invalid"])
def test_ready_says_that_nobody_answers(url: str) -> None:
    done = CliRunner().invoke(app, ["ready", "--url", url])
    assert done.exit_code == 1
    assert f"not ready: nobody answers at {url}" in done.stderr


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://", "http://host:port"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    done = CliRunner().invoke(app, ["ready", "--url", url])
    assert done.exit_code == 2
    assert not isinstance(done.exception, ValueError)


def test_the_start_tells_devices_meshes_and_limits(capsys: pytest.CaptureFixture[str]) -> None:
    _announce_ready(False, INFO, 3.21)
    assert capsys.readouterr().out.splitlines() == [
        "ready after 3.2 s: 8 devices (TPU v5e), JAX 9.9",
        "meshes: default (devices=8); grid (x=4, y=2)",
        "limits: 64.0 GiB of device memory, 1 waiting call, 256 compiled programs; /v1/info tells all",
    ]
    _announce_ready_json(INFO, 3.21)
    assert json.loads(capsys.readouterr().out)["devices"] == 8


@pytest.mark.parametrize(("is_chosen", "is_told"), [(False, True), (True, False)])
def test_a_cpu_that_nobody_asked_for_is_told(
    is_chosen: bool, is_told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    cpu = INFO.model_copy(update={"devices": (DeviceInfo(id=0, kind="cpu", platform="cpu"),)})
    _announce_ready(is_chosen, cpu, 1.0)
    assert ("no accelerator was found" in capsys.readouterr().out) == is_told


def test_the_file_of_a_stored_key_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"version": "1", "url": "http://127.0.0.1:80", "pid": 1, "needs_key": True, "key_file": "/state/api-key"}
    _announce("0.0.0.0", facts)  # noqa: S104
    said = capsys.readouterr().out
    assert "clients need a key of /state/api-key" in said
    assert "put TLS in front" in said
