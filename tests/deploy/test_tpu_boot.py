"""What a TPU VM does at its boots."""

from __future__ import annotations

import json
from pathlib import Path

from .hosts import HOST, HOST_FILES, OLD, SECOND, UNIT, state
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
    assert stage.run("tpu-vm/startup").status == 0
    assert state(stage)["IMAGE"] == "registry.example/shardserve:tpu-2"
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
    assert [argv for program, argv in paused(stage)] == [[str(pause)] for pause in pauses]
    assert stage.lines()[-1] == f"systemctl start {UNIT}"


def paused(stage: Stage) -> list[tuple[str, list[str]]]:
    calls = [json.loads(line) for line in (stage.folder / "calls").read_text().splitlines()]
    return [(program, argv) for program, argv, _ in calls if program == "sleep"]


def test_a_boot_that_cannot_start_ends_and_says_how_it_goes_on(stage: Stage) -> None:
    metadata(stage, f"ACCELERATOR=tpu IMAGE={SECOND}")
    stage.answer("docker image inspect", status=1)
    stage.answer("docker pull", status=1, stderr="no such host\n")
    done = stage.run("tpu-vm/startup")
    assert done.status == 1
    assert len(paused(stage)) == 19
    assert done.stderr.count("is not on this host and cannot be fetched") == 20
    place = stage.root / "usr/local/lib/shardserve/shardserve-host"
    assert f"start 20 of 20 failed too; once it is mended: sudo {place} start" in done.stderr


def test_a_vm_without_docker_installs_it_from_its_own_distribution(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "stage", ("apt-get", "curl", "systemctl", "chown"))
    stage.answer("curl", status=22)
    done = stage.run("tpu-vm/startup")
    assert [line.split()[3:] for line in stage.lines()[:3]] == [
        ["update"],
        ["install", "--yes", "--no-install-recommends", "docker.io"],
        ["install", "--yes", "--no-install-recommends", "docker-cli"],
    ]
    assert done.status == 1
    assert "it was not made by deploy/tpu-vm/create" in done.stderr
    assert not list((stage.root / "usr/local/lib/shardserve").iterdir())


def test_a_token_of_the_vm_is_piped_to_the_registry_and_not_kept(stage: Stage) -> None:
    metadata(stage, "ACCELERATOR=tpu IMAGE=registry.example:5000/team/shardserve:tpu REGISTRY_ACCOUNT=vm")
    stage.answer(
        "curl", json.dumps({"access_token": "ya29.token", "expires_in": 3599}), part="service-accounts/default/token"
    )
    stage.answer("docker image inspect", status=1, times=1)
    stage.answer("docker image inspect", f"{OLD}\n")
    done = stage.run("tpu-vm/startup")
    assert done.status == 0
    [(_, argv, given)] = [record for record in stage.records() if record[1][:1] == ["login"]]
    assert argv == ["login", "--username", "oauth2accesstoken", "--password-stdin", "registry.example:5000"]
    assert given.strip() == "ya29.token"
    assert not any("ya29" in text for text in (*stage.lines(), done.stdout, done.stderr))
    assert not list(stage.folder.glob("tmp.*"))
