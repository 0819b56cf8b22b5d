"""docker-compose.yml: what each profile starts, and with which rights."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardserve_server.settings import Settings

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
PROFILES = {"cpu": {"cpu"}, "gpu": {"gpu"}, "tpu": {"tpu-front", "tpu-engine"}}
SERVICES = sorted(set().union(*PROFILES.values()))
FRONTS = [name for name in SERVICES if name != "tpu-engine"]
IMAGE_USER, LINK_GROUP = "10001", "10002"


def filled(value: Any, variables: dict[str, str]) -> Any:
    """The value with `${NAME:-default}` filled in, as compose does it."""
    if isinstance(value, dict):
        return {key: filled(inner, variables) for key, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, variables) for inner in value]
    if isinstance(value, str):
        text = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda m: variables.get(m[1]) or m[2], value)
        assert "$" not in text, f"a form that compose knows and this test does not: {value}"
        return text
    return value


def services(profile: str | None = None, **variables: str) -> dict[str, dict[str, Any]]:
    """The services of a profile, or of all."""
    found = filled(yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"], variables)
    return {name: service for name, service in found.items() if profile is None or profile in service["profiles"]}


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_starts_its_containers_and_no_others(profile: str) -> None:
    assert services(profile).keys() == PROFILES[profile]


def test_without_a_profile_nothing_starts() -> None:
    assert all(service["profiles"] for service in services().values())


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_has_least_rights(name: str) -> None:
    service = services()[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert 0 < service["pids_limit"] <= 4096
    assert service["ulimits"]["core"] == 0
    assert not {"privileged", "cap_add", "pid", "ipc", "userns_mode", "volumes_from"} & service.keys()
    assert service.get("network_mode", "none") == "none"
    if name != "tpu-engine":
        assert not {"devices", "user", "tmpfs"} & service.keys()  # the image's user, and the volume as the only place


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_sees_no_file_of_the_host(name: str) -> None:
    named = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["volumes"]
    for volume in services()[name]["volumes"]:
        source, _, target = volume.partition(":")
        assert source in named
        assert target in ("/var/cache/shardserve", "/run/shardserve")


ADDRESS, PORT = "SHARDSERVE_PUBLISH_ADDRESS", "SHARDSERVE_PUBLISH_PORT"
PUBLISHED = [
    ({}, ("127.0.0.1", "8000")),
    ({PORT: "8001"}, ("127.0.0.1", "8001")),
    ({ADDRESS: "192.0.2.7"}, ("192.0.2.7", "8000")),
    ({ADDRESS: "192.0.2.7", PORT: "443"}, ("192.0.2.7", "443")),
    ({"SHARDSERVE_PUBLISH": "8001"}, ("127.0.0.1", "8000")),  # one variable for both published a port everywhere
]


@pytest.mark.parametrize(("variables", "expected"), PUBLISHED)
@pytest.mark.parametrize("name", FRONTS)
def test_the_port_is_published_on_loopback_unless_an_address_is_given(
    name: str, variables: dict[str, str], expected: tuple[str, str]
) -> None:
    assert services(**variables)[name]["ports"] == [f"{expected[0]}:{expected[1]}:8000"]


def header() -> str:
    """The comment at the top."""
    return COMPOSE.read_text(encoding="utf-8").partition("\nx-least-rights")[0]


def test_the_header_names_the_variables_that_there_are_and_no_others() -> None:
    body = COMPOSE.read_text(encoding="utf-8").removeprefix(header())
    told = set(re.findall(r"SHARDSERVE_[A-Z_]+", header()))
    assert {name for name in told if not re.search(rf"(\$\{{|^ +){name}\b", body, flags=re.M)} == set()
    assert set(re.findall(r"\$\{(SHARDSERVE_[A-Z_]+)", body)) <= told


def test_the_header_tells_how_the_tpu_profile_gets_a_new_image_and_what_a_refused_start_does() -> None:
    [(stopped, profile)] = re.findall(
        r"docker compose --profile tpu stop (\S+) && docker compose --profile (\S+) up --detach", header()
    )
    assert stopped in services(profile)
    assert stopped in FRONTS
    text = re.sub(r"\s*\n#\s*", " ", header())
    assert "Either order loses nothing that was accepted" in text
    assert re.search(r"A refused start \(status 2: .*is tried again for ever; the log says why", text)
    assert {service["restart"] for service in services().values()} == {"unless-stopped"}


@pytest.mark.parametrize("name", FRONTS)
def test_the_key_is_handed_over_only_when_it_is_set(name: str) -> None:
    """Null means: as in the environment of compose, or not at all. An empty one would stop the server."""
    environment = services()[name]["environment"]
    assert "SHARDSERVE_API_KEY" in environment
    assert environment["SHARDSERVE_API_KEY"] is None


def test_the_tpu_engine_has_the_chips_and_no_way_in_but_the_socket() -> None:
    engine = services("tpu")["tpu-engine"]
    assert engine["network_mode"] == "none"
    assert not {"ports", "expose", "networks"} & engine.keys()
    assert engine["devices"] == ["/dev/vfio"]
    assert "SHARDSERVE_API_KEY" not in engine["environment"]
    assert engine["command"] == ["engine", "--socket", "/run/shardserve/engine.sock"]
    assert "link:/run/shardserve" in engine["volumes"]


def test_the_tpu_front_has_the_port_and_no_device() -> None:
    front = services("tpu")["tpu-front"]
    assert front["environment"]["SHARDSERVE_ENGINE_SOCKET"] == "/run/shardserve/engine.sock"
    assert "link:/run/shardserve" in front["volumes"]
    assert not {"devices", "deploy"} & front.keys()
    assert front["depends_on"] == ["tpu-engine"]  # so it is stopped first, and what it accepted still runs


def test_front_and_engine_share_the_sockets_group_and_volume_alone() -> None:
    front, engine = services("tpu")["tpu-front"], services("tpu")["tpu-engine"]
    user, group = engine["user"].split(":")
    assert front["group_add"] == [group] == [LINK_GROUP]
    assert user != IMAGE_USER
    assert set(front["volumes"]) & set(engine["volumes"]) == {"link:/run/shardserve"}
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    assert f"-g {LINK_GROUP} -m 2770 /run/shardserve" in dockerfile
    assert f"--uid {user} --gid {group} " in dockerfile


def test_the_tpu_front_lets_go_of_the_images_settings_that_are_the_engines() -> None:
    front = services("tpu")["tpu-front"]
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    dropped = {name for flag, name in zip(front["entrypoint"], front["entrypoint"][1:], strict=False) if flag == "-u"}
    given = set(re.findall(r"\b(SHARDSERVE_[A-Z_]+)=", dockerfile)) | front["environment"].keys()
    held = {name.removeprefix("SHARDSERVE_").lower() for name in given - dropped}
    values = {"engine_socket": "/run/shardserve/engine.sock", "host": "0.0.0.0", "port": 8000}  # noqa: S104
    Settings(**{name: values.get(name, "/somewhere") for name in held - {"api_key"}})  # type: ignore[arg-type]


def test_the_gpu_container_reserves_devices() -> None:
    [device] = services("gpu", SHARDSERVE_GPUS="2")["gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "2", "capabilities": ["gpu"]}


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_is_given_the_time_to_finish_what_it_accepted(name: str) -> None:
    grace_s = Settings.model_fields["stop_grace_s"].default + Settings.model_fields["drain_delay_s"].default
    assert int(services()[name]["stop_grace_period"].removesuffix("s")) > grace_s


@pytest.mark.parametrize("name", SERVICES)
def test_a_containers_settings_are_settings_of_the_server(name: str) -> None:
    for setting in services()[name]["environment"]:
        if setting.startswith("SHARDSERVE_"):
            assert setting.removeprefix("SHARDSERVE_").lower() in Settings.model_fields


@pytest.mark.parametrize("name", SERVICES)
def test_a_containers_image_is_one_that_is_built(name: str) -> None:
    target = services(SHARDSERVE_IMAGE="mine/server")[name]["image"].removeprefix("mine/server:")
    assert f" AS {target}\n" in (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")


def compose_command() -> list[str] | None:
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]):
            done = subprocess.run([*command, "version", "--short"], capture_output=True, text=True, check=False)
            if done.returncode == 0 and not done.stdout.startswith("1."):
                return command
    return None


def rendered_by_compose(profile: str, **given: str) -> dict[str, Any]:
    command = [*(compose_command() or []), "--file", str(COMPOSE), "--profile", profile, "config", "--format", "json"]
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDSERVE_", "TPU_"))}
    done = subprocess.run(command, env=variables | given, capture_output=True, text=True, check=True)
    rendered: dict[str, Any] = json.loads(done.stdout)
    return rendered


#: CI has no docker compose, and no package of Python's brings it; the tests above hold the same claims of the file.
needs_compose = pytest.mark.skipif(compose_command() is None, reason="docker compose is not here")


@needs_compose
@pytest.mark.parametrize(("variables", "expected"), PUBLISHED)
def test_compose_itself_publishes_where_it_is_told_and_nowhere_else(
    variables: dict[str, str], expected: tuple[str, str]
) -> None:
    [port] = rendered_by_compose("cpu", **variables)["services"]["cpu"]["ports"]
    assert (port["host_ip"], port["published"], port["target"]) == (*expected, 8000)


@needs_compose
@pytest.mark.parametrize("profile", PROFILES)
def test_compose_itself_reads_the_file_as_these_tests_do(profile: str) -> None:
    rendered = rendered_by_compose(profile)
    assert rendered["services"].keys() == PROFILES[profile]
    for name, service in services(profile).items():
        found = rendered["services"][name]
        for key in ("image", "read_only", "cap_drop", "security_opt", "pids_limit", "stop_grace_period", "environment"):
            assert found[key] == service[key], (name, key)
        assert [port["host_ip"] for port in found.get("ports", [])] == ["127.0.0.1"] * ("ports" in service)
