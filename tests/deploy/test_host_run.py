"""What the unit of a GPU host or a TPU VM runs, and the unit itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .hosts import HOST, HOST_FILES, OLD, UNIT, configured, keyed, state
from .stage import Stage


def restrictions(stage: Stage, grace: str = "30", keys: str = "ro") -> list[str]:
    etc = stage.root / "etc/shardserve"
    return [
        *"run --rm --name shardserve --pull never --log-driver none --read-only --cap-drop ALL".split(),
        *"--security-opt no-new-privileges --user 10001:10001".split(),
        *"--pids-limit 4096 --ulimit nofile=65536:65536 --ulimit core=0:0".split(),
        *"--volume shardserve-cache:/var/cache/shardserve".split(),
        *f"--volume {etc}/keys:/run/shardserve-keys:{keys} --env-file {etc}/settings".split(),
        *f"--env SHARDSERVE_KEY_FILE=/run/shardserve-keys --env SHARDSERVE_STOP_GRACE_S={grace}".split(),
    ]


@pytest.mark.parametrize(
    ("runtime", "keys", "gpus"),
    [
        ("docker", "ro", ["--gpus", "all"]),
        ("podman", "ro,Z", ["--device", "nvidia.com/gpu=all", "--read-only-tmpfs=false"]),  # Z: SELinux's label
    ],
)
def test_a_gpu_host_runs_the_image_with_every_restriction(
    tmp_path: Path, runtime: str, keys: str, gpus: list[str]
) -> None:
    stage = Stage(tmp_path / "stage", (runtime, "systemctl"))
    configured(stage, f"RUNTIME={runtime}", "PORT=9000", "STOP_GRACE_S=45", "EXIT_AFTER_IDLE_S=600")
    key = keyed(stage)
    stage.answer(f"{runtime} run", status=3)
    done = stage.run(HOST, "run")
    assert done.status == 3
    published = "--shm-size 1g --publish 127.0.0.1:9000:8000".split()
    # Those of the settings' file would be another port than the published one.
    fixed = "--env SHARDSERVE_HOST=0.0.0.0 --env SHARDSERVE_PORT=8000 --env SHARDSERVE_EXIT_AFTER_IDLE_S=600".split()
    assert stage.calls() == [
        [runtime, "rm", "--force", "shardserve"],
        [runtime, *restrictions(stage, "45", keys), *gpus, *published, *fixed, OLD],
    ]
    assert not any(key in line for line in stage.lines())


def chips(stage: Stage, *names: str) -> list[str]:
    """Plain files in the place of the devices; the first belongs to root alone."""
    places = [stage.root / "dev" / name for name in names]
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
        place.chmod(0o666)
    places[0].chmod(0o600)
    return [str(place) for place in places]


@pytest.mark.parametrize("names", [("vfio/0", "vfio/1", "vfio/vfio"), ("accel0", "accel1")])
def test_a_tpu_vm_gives_the_container_its_chips_and_nothing_else(stage: Stage, names: tuple[str, ...]) -> None:
    configured(stage, accelerator="tpu")
    keyed(stage)
    devices = chips(stage, *names)
    assert stage.run(HOST, "run").status == 0
    given = [word for device in devices for word in ("--device", device)]
    network = "--network host --env SHARDSERVE_HOST=127.0.0.1 --env SHARDSERVE_PORT=8000".split()
    memory = ["--ulimit", "memlock=-1:-1", "--shm-size", "16g", "--tmpfs", "/tmp:rw,nosuid,nodev,noexec,size=64m"]  # noqa: S108
    assert stage.calls() == [
        ["docker", "rm", "--force", "shardserve"],
        ["chgrp", "10001", devices[0]],
        ["docker", *restrictions(stage), *given, *memory, *network, OLD],
    ]
    assert Path(devices[0]).stat().st_mode & 0o777 == 0o660


def test_a_chip_that_another_process_holds_is_named_with_it(stage: Stage) -> None:
    configured(stage, accelerator="tpu")
    keyed(stage)
    device = chips(stage, "vfio/0")[0]
    with subprocess.Popen(
        [sys.executable, "-c", f"f = open({device!r}); print(flush=True); input()"], stdin=-1, stdout=-1
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        done = stage.run(HOST, "run")
        other.kill()
    assert done.status == 2
    assert f"the chip {device} is held by process {other.pid} (python" in done.stderr
    assert f"stop it (sudo kill {other.pid}), then systemctl restart shardserve" in done.stderr
    assert not any(" run " in line for line in stage.lines())


def test_a_host_without_chips_and_one_without_a_key_do_not_start(stage: Stage) -> None:
    configured(stage, accelerator="tpu")
    done = stage.run(HOST, "run")
    assert (done.status, "the server never starts without" in done.stderr) == (2, True)
    keyed(stage)
    done = stage.run(HOST, "run")
    assert (done.status, "no TPU chip is here" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("status", "when", "off"), [("4", "poweroff", True), ("4", "nothing", False), ("1", "poweroff", False)]
)
def test_only_an_idle_exit_powers_the_host_off_and_only_when_told(
    stage: Stage, status: str, when: str, off: bool
) -> None:
    configured(stage, f"WHEN_IDLE={when}", "EXIT_AFTER_IDLE_S=600")
    assert stage.run(HOST, "after-stop", EXIT_STATUS=status).status == 0
    assert ("systemctl --no-block poweroff" in stage.lines()) == off


@pytest.mark.parametrize(
    "pair",
    [
        "IMAGE=--privileged",
        "IMAGE=a b",
        "IMAGE=a\nPORT=1",
        "PORT=x",
        "PORT=0",
        "PORT=65536",
        "PORT=70000",
        "PREVIOUS_ID=x",
        "RUNTIME=sh",
        "STOP_GRACE_S=-1",
        "WHEN_IDLE=halt",
        "PATH=/x",
        "x",
    ],
)
def test_configure_refuses_what_could_be_something_else(stage: Stage, pair: str) -> None:
    configured(stage)
    before = state(stage)
    assert stage.run(HOST, "configure", pair).status == 2
    assert state(stage) == before


def sections(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))


def test_systemd_has_nothing_to_say_about_the_unit(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("there is no systemd-analyze here")
    unit = tmp_path / UNIT
    unit.write_text((HOST_FILES / UNIT).read_text().replace("/usr/local/lib/shardserve", str(HOST_FILES)))
    done = subprocess.run([verify, "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, [line for line in done.stderr.splitlines() if "shardserve" in line]) == (
        0,
        "",
        [],
    )


def test_the_unit_restarts_faults_but_neither_refusals_nor_idle_ends() -> None:
    unit = sections((HOST_FILES / UNIT).read_text())
    assert (unit["Restart"], unit["RestartPreventExitStatus"]) == ("on-failure", "2 4")
    assert int(unit["TimeoutStopSec"]) > 30


def test_podman_is_freed_of_what_would_hold_the_container_too(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "stage", ("podman", "systemctl", "chown"))
    configured(stage, "RUNTIME=podman")
    stage.answer("podman image inspect", f"{OLD}\n")
    assert stage.run(HOST, "start").status == 0
    unit = (HOST_FILES / UNIT).read_text()
    hardening = sections(unit.partition("restrictions of its own")[2].partition("[Install]")[0])
    lifted = sections((stage.root / "etc/systemd/system/shardserve.service.d/10-host.conf").read_text())
    assert set(lifted) == {*hardening, "TimeoutStopSec"}
