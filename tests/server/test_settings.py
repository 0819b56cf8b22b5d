"""The settings: one table, two sources, and bad ones that stop the start by name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from shardserve_server.settings import (
    PREFIX,
    BadSetting,
    Settings,
    is_loopback,
    load_settings,
    parse_mesh,
    settings_table,
)

EVERYWHERE = "0.0.0.0"  # noqa: S104


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(PREFIX):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_the_defaults_are_a_server_on_loopback(tmp_path: Path) -> None:
    settings = load_settings()
    assert (settings.host, settings.port, settings.is_loopback) == ("127.0.0.1", 8000, True)
    assert settings.state_dir == tmp_path / "shardserve"
    assert settings.buffer_bytes > 0


def test_the_environment_sets_and_the_command_line_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDSERVE_PORT", "9000")
    monkeypatch.setenv("SHARDSERVE_BODY_BYTES", "3 GiB")
    monkeypatch.setenv("SHARDSERVE_MESHES", "grid:x=4,y=2; line:z=-1")
    settings = load_settings()
    assert (settings.port, settings.body_bytes) == (9000, 3 * 2**30)
    assert settings.meshes == {"grid": (("x", 4), ("y", 2)), "line": (("z", -1),)}
    assert load_settings({"port": 9001}).port == 9001


def test_the_clients_own_variables_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDSERVE_URL", "http://tpu-host:8000")
    assert load_settings().port == 8000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", -1), ("port", 65536), ("port", "http"), ("port", 1.5), ("host", ""),
        ("devices", 0), ("devices", -8), ("devices", "many"),
        ("body_bytes", 0), ("body_bytes", -1), ("body_bytes", "3 apples"), ("json_bytes", 0),
        ("buffer_bytes", 0), ("spare_buffer_bytes", -1), ("buffer_kind", "disk"), ("memory_bytes", 0),
        ("compile_cache_entries", 0), ("queue_depth", 0), ("queue_depth", "x"),
        ("timeout_s", 0), ("timeout_s", -1), ("timeout_s", "nan"), ("timeout_s", "inf"), ("timeout_s", "soon"),
        ("platform", "cuda"), ("platform", ""), ("cache_bytes", 0), ("cache_bytes", "all"),
        ("drain_delay_s", -1), ("drain_delay_s", "inf"), ("exit_after_idle_s", 0), ("exit_after_idle_s", "nan"),
        ("engine_start_timeout_s", 0), ("stop_grace_s", 0), ("keep_alive_s", 0), ("event_loop", "trio"),
        ("meshes", "x=4"), ("meshes", "grid:"), ("meshes", "grid:x"), ("meshes", "grid:x=four"), ("meshes", "grid:x=0"),
        ("meshes", ":x=4"), ("meshes", "grid:=4"), ("meshes", "grid:x=-2"),
    ],
)  # fmt: skip
def test_a_bad_value_is_named_by_its_setting(monkeypatch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    with pytest.raises(BadSetting) as caught:
        load_settings({name: value})
    assert caught.value.name == name
    monkeypatch.setenv(PREFIX + name.upper(), str(value))
    with pytest.raises(BadSetting) as caught:
        load_settings()
    assert caught.value.name == name
    assert f"SHARDSERVE_{name.upper()}" in str(caught.value)


@pytest.mark.parametrize(
    ("meshes", "reason"), [("a:x=9", "needs 9 devices"), ("a:x=2,x=2", "twice"), ("a:x=-1,y=-1", "one may be -1")]
)
def test_a_mesh_that_does_not_fit_the_devices_is_named(meshes: str, reason: str) -> None:
    with pytest.raises(BadSetting, match=reason) as caught:
        load_settings({"meshes": meshes, "devices": 8})
    assert caught.value.name == "meshes"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("devices", 8), ("platform", "tpu"), ("meshes", "grid:x=4"), ("memory_bytes", "1GiB"),
        ("cache_dir", "programs"), ("cache_bytes", "1GiB"), ("compile_cache_entries", 9), ("queue_depth", 9),
        ("arrays_root", "vectors"),
    ],
)  # fmt: skip
def test_a_front_refuses_the_settings_of_an_engine_that_runs_by_itself(name: str, value: Any) -> None:
    with pytest.raises(BadSetting, match="it belongs to the engine, which runs by itself; set it there") as caught:
        load_settings({"engine_socket": "engine.sock", name: value})
    assert caught.value.name == name


@pytest.mark.parametrize(
    ("name", "given", "reason"),
    [
        ("drain_delay_s", {"drain_delay_s": 20, "stop_grace_s": 10}, "above stop_grace_s"),
        ("engine_socket", {"engine_socket": "/" + "x" * 107}, "at most 107 bytes"),
    ],
)
def test_what_cannot_be_is_named(name: str, given: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadSetting, match=reason) as caught:
        load_settings(given)
    assert caught.value.name == name


def test_an_accelerator_has_no_virtual_devices() -> None:
    with pytest.raises(BadSetting, match="the platform is gpu") as caught:
        load_settings({"platform": "gpu", "devices": 8})
    assert caught.value.name == "devices"


@pytest.mark.parametrize(("platform", "known_to_jax"), [("cpu", "cpu"), ("gpu", "cuda"), ("tpu", "tpu")])
def test_jax_looks_for_the_platform_that_was_asked_for(platform: str, known_to_jax: str) -> None:
    command = load_settings({"platform": platform}).engine_command()
    assert command.environment["JAX_PLATFORMS"] == known_to_jax


def test_an_unknown_setting_is_named_with_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDSERVE_PROT", "1")
    with pytest.raises(BadSetting, match="did you mean 'SHARDSERVE_PORT'") as caught:
        load_settings()
    assert caught.value.name == "prot"


def test_a_key_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDSERVE_API_KEY", "a-secret-that-nobody-sees")
    settings = load_settings()
    for text in (repr(settings), str(settings), settings.engine_command().settings, settings.model_dump_json()):
        assert "secret-that" not in text


def test_the_engine_gets_its_part_as_json() -> None:
    settings = load_settings({"devices": 8, "meshes": "grid:x=4,y=2", "queue_depth": 7})
    assert json.loads(settings.engine_command().settings) == {
        "devices": 8,
        "platform": None,
        "cache_dir": None,
        "cache_bytes": 4 * 2**30,
        "meshes": {"grid": [["x", 4], ["y", 2]]},
        "memory_bytes": None,
        "compile_cache_entries": 256,
        "queue_depth": 7,
        "arrays_file": None,
        "arrays_root": None,
    }


def test_the_table_of_arrays_needs_a_root_and_goes_to_the_engine_as_whole_paths() -> None:
    with pytest.raises(BadSetting) as caught:
        load_settings({"arrays_file": "arrays.toml"})
    assert caught.value.name == "arrays_root"
    settings = load_settings({"arrays_file": "arrays.toml", "arrays_root": "vectors"})
    found = json.loads(settings.engine_command().settings)
    assert (Path(found["arrays_file"]), Path(found["arrays_root"])) == (
        Path("arrays.toml").absolute(),
        Path("vectors").absolute(),
    )


def test_the_table_lists_every_setting_with_a_meaning() -> None:
    rows = settings_table()
    assert [row.name for row in rows] == list(Settings.model_fields)
    assert all(row.meaning and row.variable == PREFIX + row.name.upper() for row in rows)
    assert all(row.unit == "bytes" for row in rows if row.name.endswith("_bytes"))
    assert all(row.unit == "s" for row in rows if row.name.endswith("_s"))
    assert not any("Undefined" in row.default for row in rows)
    assert str(Path.home()) not in " ".join(row.default for row in rows), "the table is the same on every machine"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("[::1]", True), ("localhost", True),
        (EVERYWHERE, False), ("::", False), ("10.0.0.1", False), ("tpu-host", False), ("localhost.example", False),
        ("", False),
    ],
)  # fmt: skip
def test_loopback_is_what_no_other_host_reaches(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_a_mesh_is_read_in_order() -> None:
    assert parse_mesh(" grid: y=2, x=4 ") == ("grid", (("y", 2), ("x", 4)))
