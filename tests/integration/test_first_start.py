"""The start of a server that other hosts reach: its key is made, shown once, needed, and never printed again."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from .serving import launch

EVERYWHERE = "0.0.0.0"  # noqa: S104


def test_the_first_start_makes_a_key_and_shows_it_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    with launch("--host", EVERYWHERE, devices=1, wait=False, environment=environment) as server:
        stored = tmp_path / "shardserve" / "api-key"
        _, key = stored.read_text().split()
        assert server.first_line["needs_key"] is True
        assert server.first_line["key_file"] == str(stored)
        assert key not in str(server.first_line)
        assert server.request("GET", "/v1/info").status == 401
        assert server.request("GET", "/livez").status == 200
        headers = {"Authorization": f"Bearer {key}"}
        assert server.request("GET", "/v1/kernels/x", headers=headers).status in (404, 503)
        assert server.stop(signal.SIGTERM) == 0
    assert capfd.readouterr().err.count(f"export SHARDSERVE_API_KEY={key}\n") == 1
    with launch("--host", EVERYWHERE, devices=1, wait=False, environment=environment) as server:
        assert server.request("GET", "/v1/info", headers=headers).status != 401
    assert key not in capfd.readouterr().err


def test_the_first_line_is_json_for_programs(tmp_path: Path) -> None:
    with launch(devices=1, wait=False, environment={"XDG_STATE_HOME": str(tmp_path)}) as server:
        line = server.first_line
        assert line["url"].startswith("http://127.0.0.1:")
        assert (line["pid"], line["needs_key"], line["key_file"]) == (server.process.pid, False, None)
    assert list(tmp_path.iterdir()) == [], "a server on loopback stores nothing"
