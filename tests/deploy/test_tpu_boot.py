"""What a TPU VM does at its boots."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from .hosts import HOST, HOST_FILES, NEW, OLD, SECOND, UNIT, state
from .stage import Stage


def metadata(stage: Stage, facts: str) -> None:
    stage.answer("curl", facts, part="attributes/shardserve-configure")
    stage.answer("curl", (HOST_FILES / "shardserve-host").read_text(), part="attributes/shardserve-host")
    stage.answer("curl", (HOST_FILES / UNIT).read_text(), part="attributes/shardserve-unit")


def test_the_first_boot_installs_and_later_ones_keep_what_an_update_chose(stage: Stage) -> None:
    metadata(
        stage,
        "ACCELERATOR=tpu IMAGE=registry.example/shardserve:tpu STOP_GRACE_S=30 EXIT_AFTER_IDLE_S=60 WHEN_IDLE=poweroff",
    )
    stage.answer("docker image inspect", status=1, times=1)
    stage.answer("docker image inspect", f"{OLD}\n")
    done = stage.run("tpu-vm/startup")
    assert (done.status, done.stderr) == (0, "")
    assert "docker pull --quiet registry.example/shardserve:tpu" in stage.lines()
    assert stage.lines()[-1] == f"systemctl start {UNIT}"
    assert (stage.root / "etc/systemd/system" / UNIT).read_bytes() == (HOST_FILES / UNIT).read_bytes()
    assert (state(stage)["WHEN_IDLE"], state(stage)["EXIT_AFTER_IDLE_S"]) == ("poweroff", "60")
    key = stage.run(HOST, "key").stdout

    assert stage.run(HOST, "configure", "IMAGE=registry.example/shardserve:tpu-2").status == 0
    stage.answers.clear()
    metadata(stage, "")
    stage.answer("docker image inspect", f"{NEW}\n")
    assert stage.run("tpu-vm/startup").status == 0
    assert (state(stage)["IMAGE"], state(stage)["IMAGE_ID"]) == ("registry.example/shardserve:tpu-2", NEW)
    assert stage.run(HOST, "key").stdout == key
    assert not any("apt-get" in line for line in stage.lines())


def test_a_boot_waits_for_a_registry_that_comes_later_than_the_vm(stage: Stage) -> None:
    metadata(stage, f"ACCELERATOR=tpu IMAGE={SECOND}")
    stage.answer("docker image inspect", status=1, times=7)
    stage.answer("docker image inspect", f"{OLD}\n")
    stage.answer("docker pull", status=1, stderr="no such host\n", times=6)
    done = stage.run("tpu-vm/startup")
    assert done.status == 0
    said = [line.partition("startup: start ")[2] for line in done.stdout.splitlines() if " failed; " in line]
    pauses = (5, 10, 20, 40, 60, 60)
    assert said == [f"{n} of 20 failed; the next one follows in {pause} s" for n, pause in enumerate(pauses, 1)]
    assert stage.pauses() == list(map(str, pauses))
    assert stage.lines()[-1] == f"systemctl start {UNIT}"


def test_a_boot_that_cannot_start_ends_and_says_how_it_goes_on(stage: Stage) -> None:
    metadata(stage, f"ACCELERATOR=tpu IMAGE={SECOND}")
    stage.answer("docker image inspect", status=1)
    stage.answer("docker pull", status=1, stderr="no such host\n")
    done = stage.run("tpu-vm/startup")
    assert done.status == 1
    assert len(stage.pauses()) == 19
    assert done.stderr.count("is not on this host and cannot be fetched") == 20
    place = stage.root / "usr/local/lib/shardserve/shardserve-host"
    assert f"start 20 of 20 failed too; once it is mended: sudo {place} start" in done.stderr


def test_a_vm_without_docker_installs_it_from_its_own_distribution(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "stage", ("apt-get", "curl", "systemctl", "chown", "sleep"))
    stage.answer("curl", status=22)
    stage.answer("apt-get", part="update", status=100, times=2)
    done = stage.run("tpu-vm/startup")
    assert stage.pauses()[:2] == ["5", "10"]
    assert [line.split()[3:] for line in stage.lines()[:5]] == [
        ["update"],
        ["update"],
        ["update"],
        ["install", "--yes", "--no-install-recommends", "docker.io"],
        ["install", "--yes", "--no-install-recommends", "docker-cli"],
    ]
    assert done.status == 1
    assert "it was not made by deploy/tpu-vm/create" in done.stderr
    assert not list((stage.root / "usr/local/lib/shardserve").iterdir())


def with_account(stage: Stage, image: str) -> None:
    """A VM whose account pulls from registry.example:5000; docker keeps the token in the folder that it is told."""
    metadata(stage, f"ACCELERATOR=tpu IMAGE={image} ACCOUNT_REGISTRY=registry.example:5000")
    token = json.dumps({"access_token": "ya29.token", "expires_in": 3599})
    stage.answer("curl", token, part="service-accounts/default/token")
    stage.answer("docker login", command='echo kept >"${DOCKER_CONFIG:?}/config.json"')
    stage.answer("docker image inspect", status=1, times=1)
    stage.answer("docker image inspect", f"{OLD}\n")


def logins(stage: Stage) -> list[tuple[list[str], str]]:
    return [(argv, given.strip()) for _, argv, given in stage.records() if argv[:1] == ["login"]]


def test_a_token_of_the_vm_is_piped_to_the_registry_and_not_kept(stage: Stage) -> None:
    with_account(stage, "registry.example:5000/team/shardserve:tpu")
    done = stage.run("tpu-vm/startup")
    assert (done.status, done.stderr) == (0, "")
    argv = ["login", "--username", "oauth2accesstoken", "--password-stdin", "registry.example:5000"]
    assert logins(stage) == [(argv, "ya29.token")]
    assert not any("ya29" in text for text in (*stage.lines(), done.stdout, done.stderr))
    assert not list(stage.folder.glob("tmp.*"))


@pytest.mark.parametrize("image", ["other.example/team/shardserve:tpu", "team/shardserve:tpu"])
def test_no_other_registry_gets_the_token(stage: Stage, image: str) -> None:
    with_account(stage, image)
    assert stage.run("tpu-vm/startup").status == 0
    assert logins(stage) == []
    assert f"docker pull --quiet {image}" in stage.lines()


def test_a_login_that_is_refused_leaves_a_public_image_to_be_pulled(stage: Stage) -> None:
    stage.answer("docker login", status=1, stderr="denied\n")
    with_account(stage, "registry.example:5000/team/shardserve:tpu")
    done = stage.run("tpu-vm/startup")
    assert (done.status, "cannot log in to registry.example:5000; trying without" in done.stderr) == (0, True)


@pytest.mark.parametrize("whole_group", [True, False])
def test_the_token_does_not_outlive_an_update_that_is_ended_within_its_pull(stage: Stage, whole_group: bool) -> None:
    with_account(stage, "registry.example:5000/team/shardserve:tpu")
    assert stage.run("tpu-vm/startup").status == 0
    stage.answer("docker pull", command=f"exec {shutil.which('sleep')} 1")
    with stage.begin(HOST, "update", "registry.example:5000/team/shardserve:tpu-2") as running:
        stage.wait_for("docker pull")
        assert list(stage.folder.glob("tmp.*/config.json"))
        (os.killpg if whole_group else os.kill)(running.pid, signal.SIGTERM)
        running.communicate(timeout=20)
    assert not list(stage.folder.glob("tmp.*"))
