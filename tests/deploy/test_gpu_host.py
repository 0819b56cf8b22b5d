"""The scripts for a host with GPUs, and what such a host shares with a TPU VM, against stubs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .stage import DEPLOY, Stage, is_root

OLD, NEW = "sha256:" + "a" * 64, "sha256:" + "b" * 64
UNIT = "shardserve.service"
SECOND = "registry.example/shardserve:2"
HOST_FILES = DEPLOY / "host"
HOST = "host/shardserve-host"
DRIVER = "nvidia-smi --format=csv,noheader --query-gpu=driver_version"
MODES = "nvidia-smi --format=csv,noheader --query-gpu=index,compute_mode"
APPS = "nvidia-smi --format=csv,noheader --query-compute-apps"
GPUS = "nvidia-smi --format=csv,noheader --query-gpu=gpu_uuid,index,compute_mode"


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """A host that has everything, with docker; its service does not run."""
    programs = "docker systemctl nvidia-smi nvidia-ctk nvidia-container-runtime-hook chown chgrp curl apt-get sleep"
    return Stage(tmp_path / "stage", programs.split())


def healthy(stage: Stage) -> None:
    stage.answer(DRIVER, "550.54.15\n550.54.15\n")
    stage.answer(GPUS, "GPU-1, 0, Default\n")
    stage.answer(MODES, "0, Default\n")
    stage.answer("systemctl is-active --quiet", status=3)


def configured(stage: Stage, *pairs: str, accelerator: str = "gpu", image: str = "shardserve:1") -> None:
    assert (
        stage.run(HOST, "configure", f"ACCELERATOR={accelerator}", f"IMAGE={image}", f"IMAGE_ID={OLD}", *pairs).status
        == 0
    )


def keyed(stage: Stage) -> str:
    key = "aGVyZS1pcy1hLWtleS1vZi0yNC1i"
    (stage.root / "etc/shardserve/keys").write_text(f"# made by hand\n\nteam {key}\n")
    (stage.root / "etc/shardserve/settings").write_text("")
    return key


def state(stage: Stage) -> dict[str, str]:
    lines = (stage.root / "etc/shardserve/service").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


# --- check


def test_a_host_that_has_everything_is_ready(stage: Stage) -> None:
    healthy(stage)
    done = stage.run("gpu/check")
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "found:   NVIDIA driver 550.54.15, for CUDA 12 (525.60.13 or newer)",
        "found:   docker",
        "found:   NVIDIA container toolkit",
    ]


def test_a_missing_driver_is_named(tmp_path: Path) -> None:
    done = Stage(tmp_path / "stage", ("docker", "nvidia-ctk", "nvidia-container-runtime-hook")).run("gpu/check")
    assert done.status == 1
    assert "missing: the NVIDIA driver (there is no nvidia-smi)" in done.stdout


def test_a_driver_that_does_not_answer_is_quoted(stage: Stage) -> None:
    stage.answer("nvidia-smi", "NVIDIA-SMI has failed\nMake sure that\n", status=9)
    done = stage.run("gpu/check")
    assert done.status == 1
    assert "missing: a driver that works; nvidia-smi says: NVIDIA-SMI has failed (after" in done.stdout


@pytest.mark.parametrize(
    ("version", "cuda", "least"),
    [("470.256.02", "12", "525.60.13"), ("525.60.9", "12", "525.60.13"), ("575.57.08", "13", "580")],
)
def test_a_driver_too_old_for_the_wheels_is_refused(stage: Stage, version: str, cuda: str, least: str) -> None:
    stage.answer(DRIVER, f"{version}\n")
    done = stage.run("gpu/check", "--cuda", cuda)
    assert done.status == 1
    assert f"this one is {version}, and JAX's wheels for CUDA {cuda} need {least} or newer" in done.stdout


@pytest.mark.parametrize(("version", "cuda"), [("525.60.13", "12"), ("580.65.06", "13"), ("1000.1", "13")])
def test_a_driver_that_is_new_enough_is_taken(stage: Stage, version: str, cuda: str) -> None:
    stage.answer(DRIVER, f"{version}\n")
    assert stage.run("gpu/check", "--cuda", cuda).status == 0


def test_a_missing_container_runtime_is_named(tmp_path: Path) -> None:
    done = Stage(tmp_path / "stage", ("nvidia-smi",)).run("gpu/check")
    assert "missing: docker or podman: install it from your distribution" in done.stdout
    assert (
        "missing: podman: install"
        in Stage(tmp_path / "two", ("docker",)).run("gpu/check", "--runtime", "podman").stdout
    )


def test_a_docker_without_its_service_is_named(stage: Stage) -> None:
    healthy(stage)
    stage.answer("docker info", status=1)
    done = stage.run("gpu/check")
    assert done.status == 1
    assert "missing: docker that answers: it is installed, but 'docker info' fails" in done.stdout


def test_a_missing_container_toolkit_is_named_for_either_runtime(tmp_path: Path) -> None:
    bare = Stage(tmp_path / "bare", ("docker", "nvidia-smi"))
    assert "missing: the NVIDIA container toolkit (there is no nvidia-ctk)" in bare.run("gpu/check").stdout
    half = Stage(tmp_path / "half", ("docker", "podman", "nvidia-smi", "nvidia-ctk"))
    half.answer("docker info", '{"runc":{}}')
    assert "sudo nvidia-ctk runtime configure --runtime=docker" in half.run("gpu/check").stdout
    assert "sudo nvidia-ctk cdi generate" in half.run("gpu/check", "--runtime", "podman").stdout
    half.answer("nvidia-ctk cdi list", "nvidia.com/gpu=0\nnvidia.com/gpu=all\n")
    assert "found:   NVIDIA container toolkit" in half.run("gpu/check", "--runtime", "podman").stdout


def test_who_holds_a_gpu_alone_is_named_and_who_shares_it_is_noted(stage: Stage) -> None:
    stage.answer(DRIVER, "550.54.15\n")
    stage.answer("systemctl is-active --quiet", status=3)
    stage.answer(MODES, "0, Exclusive_Process\n1, Default\n2, Prohibited\n")
    stage.answer(APPS, "GPU-0, 4711, /opt/train, fast\nGPU-1, 4712, python\n")
    stage.answer(GPUS, "GPU-0, 0, Exclusive_Process\nGPU-1, 1, Default\nGPU-2, 2, Prohibited\n")
    done = stage.run("gpu/check")
    assert done.status == 1
    assert (
        "missing: GPU 0: it is in exclusive use by process 4711 (/opt/train, fast); stop that (sudo kill 4711)"
        in done.stdout
    )
    assert "note:    GPU 1 is also used by process 4712 (python)" in done.stdout
    assert "missing: GPU 2 for computing: its compute mode is Prohibited" in done.stdout


def test_a_serving_host_does_not_accuse_itself(stage: Stage) -> None:
    stage.answer(DRIVER, "550.54.15\n")
    stage.answer(APPS, "GPU-0, 4711, shardserve\n")
    done = stage.run("gpu/check")
    assert (done.status, "4711" in done.stdout) == (0, False)


@pytest.mark.parametrize("options", ["--cuda 11", "--runtime lxc", "--gpu 0", "x", "--cuda"])
def test_check_refuses_what_it_does_not_know(stage: Stage, options: str) -> None:
    assert (stage.run("gpu/check", *options.split()).status, stage.calls()) == (2, [])


# --- start, stop


def test_start_installs_the_service_makes_a_key_and_waits(stage: Stage) -> None:
    healthy(stage)
    stage.answer("docker image inspect", f"{OLD}\n")
    done = stage.run("gpu/start", "--image", "registry.example/shardserve:gpu", "--port", "9000", "--stop-grace", "120")
    assert (done.status, done.stderr) == (0, "")
    etc = stage.root / "etc"
    for name, place, mode in (
        ("shardserve-host", "usr/local/lib/shardserve", 0o755),
        (UNIT, "etc/systemd/system", 0o644),
    ):
        assert (stage.root / place / name).read_bytes() == (HOST_FILES / name).read_bytes()
        assert (stage.root / place / name).stat().st_mode & 0o777 == mode
    assert (etc / "systemd/system/shardserve.service.d/10-host.conf").read_text() == "[Service]\nTimeoutStopSec=150\n"
    assert (etc / "shardserve").stat().st_mode & 0o777 == 0o700
    assert state(stage) == {
        "ACCELERATOR": "gpu",
        "IMAGE": "registry.example/shardserve:gpu",
        "IMAGE_ID": OLD,
        "PREVIOUS_ID": "",
        "RUNTIME": "docker",
        "PORT": "9000",
        "STOP_GRACE_S": "120",
        "EXIT_AFTER_IDLE_S": "",
        "WHEN_IDLE": "nothing",
        "REGISTRY_ACCOUNT": "",
    }
    keys = etc / "shardserve/keys"
    assert keys.stat().st_mode & 0o777 == 0o400
    label, key = keys.read_text().split()
    assert (label, len(key)) == ("default", 32)
    assert ["chown", "10001:10001", f"{keys}.new"] in stage.calls()
    assert [line for line in stage.lines() if line.startswith("systemctl")] == [
        f"systemctl is-active --quiet {UNIT}",
        f"systemctl is-active --quiet {UNIT}",
        "systemctl daemon-reload",
        f"systemctl enable --quiet {UNIT}",
        f"systemctl start {UNIT}",
    ]
    assert stage.calls()[-1] == "docker exec shardserve shardserve ready --wait 5".split()
    assert not any(key in text for text in (done.stdout, done.stderr, *stage.lines()))
    assert "export SHARDSERVE_URL=http://127.0.0.1:9000" in done.stdout


def test_a_second_start_keeps_the_key_and_the_settings(stage: Stage) -> None:
    configured(stage)
    key = keyed(stage)
    (stage.root / "etc/shardserve/settings").write_text("SHARDSERVE_MESHES=grid:x=4,y=2\n")
    stage.answer("docker image inspect", f"{OLD}\n")
    assert stage.run(HOST, "start").status == 0
    assert key in (stage.root / "etc/shardserve/keys").read_text()
    assert (stage.root / "etc/shardserve/settings").read_text() == "SHARDSERVE_MESHES=grid:x=4,y=2\n"
    assert stage.run(HOST, "key").stdout == f"{key}\n"


def test_start_leaves_a_running_service_and_a_host_that_is_not_ready(stage: Stage) -> None:
    done = stage.run("gpu/start")
    assert (done.status, len(stage.calls())) == (2, 1)
    assert "the service runs already. A new image: deploy/gpu/update" in done.stderr
    stage.answer("systemctl is-active --quiet", status=3)
    stage.answer(DRIVER, "470.1\n")
    done = stage.run("gpu/start")
    assert (done.status, "the host is not ready; see above" in done.stderr) == (2, True)
    assert not (stage.root / "usr").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--port 70000", "--port '70000' is no port from 1 to 65535"),
        ("--port 0", "--port '0' is no port"),
        ("--wait soon", "--wait 'soon' is no number of seconds"),
        ("--stop-grace -1", "--stop-grace '-1' is no number of seconds"),
        ("--exit-after-idle 1h", "--exit-after-idle '1h' is no number of seconds"),
        ("--image --privileged", "--image '--privileged' is no name of an image"),
    ],
)
def test_start_refuses_a_value_before_it_installs_anything(stage: Stage, options: str, sentence: str) -> None:
    healthy(stage)
    stage.answer("docker image inspect", f"{OLD}\n")
    done = stage.run("gpu/start", *options.split())
    assert (done.status, stage.calls()) == (2, [])
    assert sentence in done.stderr
    assert not (stage.root / "usr").exists()
    assert not list((stage.root / "etc").iterdir())


def test_an_image_that_is_nowhere_is_named_before_anything_starts(stage: Stage) -> None:
    configured(stage, "IMAGE_ID=", image=SECOND)
    stage.answer("docker image inspect", status=1)
    stage.answer("docker pull", status=1, stderr="no such host\n")
    done = stage.run(HOST, "start")
    assert done.status == 2
    assert f"the image '{SECOND}' is not on this host and cannot be fetched; load it (docker load)" in done.stderr
    assert not any(line.startswith("systemctl") for line in stage.lines())


@pytest.mark.parametrize(
    ("status", "sentence"),
    [("0", "nothing that was accepted is lost"), ("3", "were given up"), ("137", "how it ended: journalctl")],
)
def test_stop_says_how_it_ended(stage: Stage, status: str, sentence: str) -> None:
    assert "nothing to stop" in stage.run("gpu/stop").stderr
    (stage.root / "etc/systemd/system").mkdir(parents=True)
    (stage.root / "etc/systemd/system" / UNIT).touch()
    stage.answer("systemctl show", f"{status}\n")
    done = stage.run("gpu/stop")
    assert (done.status, sentence in done.stdout) == (0, True)
    assert stage.lines()[:2] == [f"systemctl disable --quiet {UNIT}", f"systemctl stop {UNIT}"]
    assert stage.run("gpu/stop", "--now-only").status == 0
    assert stage.lines()[0] == f"systemctl stop {UNIT}"


# --- what the unit runs


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
    stage = Stage(tmp_path / "stage", (runtime,))
    configured(stage, f"RUNTIME={runtime}", "PORT=9000", "STOP_GRACE_S=45", "EXIT_AFTER_IDLE_S=600")
    key = keyed(stage)
    stage.answer(f"{runtime} run", status=3)
    done = stage.run(HOST, "run")
    assert done.status == 3
    published = "--shm-size 1g --publish 127.0.0.1:9000:8000 --env SHARDSERVE_EXIT_AFTER_IDLE_S=600".split()
    assert stage.calls() == [
        [runtime, "rm", "--force", "shardserve"],
        [runtime, *restrictions(stage, "45", keys), *gpus, *published, OLD],
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


# --- update


def serving(stage: Stage, old: str = "shardserve:1") -> None:
    configured(stage, image=old)
    keyed(stage)
    stage.answer("docker image inspect", f"{NEW}\n")


SWAP = [f"systemctl reset-failed {UNIT}", f"systemctl start {UNIT}", "docker exec shardserve shardserve ready --wait 5"]
ASIDE = [f"docker pull --quiet {SECOND}", f"docker image inspect --format {{{{.Id}}}} {SECOND}"]
DRAINED = [f"systemctl stop {UNIT}", f"systemctl show --property ExecMainStatus --value {UNIT}"]


def test_update_fetches_drains_replaces_and_waits_in_this_order(stage: Stage) -> None:
    serving(stage)
    done = stage.run(HOST, "update", SECOND, "60")
    assert (done.status, done.stderr) == (0, "")
    assert stage.lines() == [*ASIDE, *DRAINED, *SWAP]
    assert (state(stage)["IMAGE"], state(stage)["IMAGE_ID"]) == (SECOND, NEW)


@pytest.mark.parametrize("tag", [SECOND, "shardserve:1"])
def test_an_image_that_does_not_get_ready_is_taken_back(stage: Stage, tag: str) -> None:
    serving(stage)
    stage.answer("docker exec", "still loading\n", status=1, times=1)
    stage.answer("systemctl is-active", "failed\n", status=3, times=1)
    done = stage.run(HOST, "update", tag, "60")
    assert done.status == 1
    assert "the service is failed: journalctl -u shardserve" in done.stderr
    assert f"going back to shardserve:1 ({OLD})" in done.stderr
    assert "the old image serves again" in done.stderr
    assert stage.lines()[-4:] == [f"systemctl stop {UNIT}", *SWAP]
    assert (state(stage)["IMAGE"], state(stage)["IMAGE_ID"]) == ("shardserve:1", OLD)
    # The tag may be the new image's by now: the next boot keeps to the old one.
    assert stage.run(HOST, "start").status == 0
    assert state(stage)["IMAGE_ID"] == OLD


def test_a_new_image_has_its_time_and_no_more(stage: Stage) -> None:
    serving(stage)
    stage.answer("docker exec", "engine_starting: it loads\n", status=1, command="exec sleep 1")
    stage.answer("systemctl is-active", "active\n")
    done = stage.run(HOST, "update", SECOND, "1")
    assert done.status == 1
    assert "not ready: engine_starting: it loads" in done.stderr
    assert "the old image is not ready either" in done.stderr
    assert state(stage)["IMAGE_ID"] == OLD


def test_an_update_that_cannot_fetch_leaves_the_old_server_alone(stage: Stage) -> None:
    configured(stage)
    stage.answer("docker pull", status=1, stderr="no such host\n")
    stage.answer("docker image inspect", status=1)
    done = stage.run(HOST, "update", SECOND)
    assert done.status == 2
    assert "the old server goes on" in done.stderr
    assert not any(line.startswith("systemctl") for line in stage.lines())
    assert state(stage)["IMAGE"] == "shardserve:1"


def test_an_image_that_was_loaded_by_hand_needs_no_registry(stage: Stage) -> None:
    serving(stage)
    stage.answer("docker pull", status=1, stderr="no such host\n")
    done = stage.run(HOST, "update", SECOND)
    assert (done.status, "taking the one on this host" in done.stderr) == (0, True)


@pytest.mark.parametrize("image", ["shardserve:gpu", "localhost/shardserve:gpu"])
def test_an_image_that_was_built_here_is_asked_for_nowhere(stage: Stage, image: str) -> None:
    serving(stage)
    done = stage.run(HOST, "update", image)
    assert (done.status, done.stderr) == (0, "")
    assert not any(line.startswith("docker pull") for line in stage.lines())


def test_the_same_image_disturbs_nobody(stage: Stage) -> None:
    configured(stage)
    stage.answer("docker image inspect", f"{OLD}\n")
    done = stage.run(HOST, "update", "shardserve:1")
    assert (done.status, done.stderr) == (0, "")
    assert stage.lines()[1:] == [f"systemctl is-active --quiet {UNIT}", SWAP[-1]]
    assert "is what runs already" in done.stdout


def test_the_same_image_brings_a_dead_server_up(stage: Stage) -> None:
    configured(stage)
    stage.answer("docker image inspect", f"{OLD}\n")
    stage.answer("systemctl is-active --quiet", status=3)
    done = stage.run(HOST, "update", "shardserve:1")
    assert (done.status, "the service does not run; starting it" in done.stderr) == (0, True)
    assert stage.lines()[1:] == [f"systemctl is-active --quiet {UNIT}", *SWAP]


@pytest.mark.parametrize(
    ("answer", "sentence"), [("systemctl start", "could not be started"), ("docker exec", "is failed")]
)
def test_the_same_image_is_no_success_while_its_server_is_dead(stage: Stage, answer: str, sentence: str) -> None:
    configured(stage)
    stage.answer("docker image inspect", f"{OLD}\n")
    stage.answer(answer, status=1)
    stage.answer("systemctl is-active", "failed\n", status=3)
    done = stage.run(HOST, "update", "shardserve:1")
    assert (done.status, sentence in done.stderr, "runs already" in done.stdout) == (1, True, False)


OLDER = "sha256:" + "c" * 64


def test_the_image_before_stays_and_the_one_before_that_goes(stage: Stage) -> None:
    serving(stage)
    assert stage.run(HOST, "update", SECOND).status == 0
    assert (state(stage)["PREVIOUS_ID"], any("image rm" in line for line in stage.lines())) == (OLD, False)
    stage.answers.clear()
    stage.answer("docker image inspect", f"{OLDER}\n")
    assert stage.run(HOST, "update", SECOND).status == 0
    assert stage.lines()[-1] == f"docker image rm {OLD}"
    assert (state(stage)["IMAGE_ID"], state(stage)["PREVIOUS_ID"]) == (OLDER, NEW)


def test_the_way_back_by_an_update_removes_neither_image(stage: Stage) -> None:
    serving(stage)
    assert stage.run(HOST, "configure", f"PREVIOUS_ID={NEW}").status == 0
    assert stage.run(HOST, "update", SECOND).status == 0
    assert not any("image rm" in line for line in stage.lines())
    assert (state(stage)["IMAGE_ID"], state(stage)["PREVIOUS_ID"]) == (NEW, OLD)


def test_an_image_that_cannot_be_removed_is_no_failed_update(stage: Stage) -> None:
    serving(stage)
    assert stage.run(HOST, "configure", f"PREVIOUS_ID={OLDER}").status == 0
    stage.answer("docker image rm", status=1, stderr="in use\n")
    done = stage.run(HOST, "update", SECOND)
    assert (done.status, f"the image {OLDER} of an earlier update could not be removed" in done.stderr) == (0, True)


def test_a_failed_update_removes_nothing_and_says_what_stays(stage: Stage) -> None:
    serving(stage)
    assert stage.run(HOST, "configure", f"PREVIOUS_ID={OLDER}").status == 0
    stage.answer("docker exec", status=1, times=1)
    stage.answer("systemctl is-active", "failed\n", status=3, times=1)
    done = stage.run(HOST, "update", SECOND)
    assert (done.status, f"what was fetched stays: docker image rm {NEW}" in done.stderr) == (1, True)
    assert not any("image rm" in line for line in stage.lines())
    assert state(stage)["PREVIOUS_ID"] == OLDER


def test_work_that_was_given_up_is_said(stage: Stage) -> None:
    serving(stage)
    stage.answer("systemctl show", "3\n")
    assert "took longer than STOP_GRACE_S=30 and were given up" in stage.run(HOST, "update", SECOND).stderr


def wait_for(stage: Stage, start: str, times: int = 1) -> None:
    deadline = time.monotonic() + 20
    while sum(line.startswith(start) for line in stage.lines()) < times:
        assert time.monotonic() < deadline
        time.sleep(0.01)


DRAIN, WAIT = "systemctl stop", "docker exec"


@pytest.mark.parametrize("moment", [DRAIN, WAIT])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_update_that_is_interrupted_goes_back(stage: Stage, number: signal.Signals, moment: str) -> None:
    serving(stage)
    stage.answer(DRAIN, times=1, command=f"exec {shutil.which('sleep')} 1")
    stage.answer(WAIT, status=1)
    stage.answer("systemctl is-active", "active\n")
    stage.prepare()
    argv = [str(DEPLOY / HOST), "update", SECOND, "40"]
    with subprocess.Popen(argv, env=stage.environment(), stderr=subprocess.PIPE, text=True, process_group=0) as running:
        wait_for(stage, moment)
        running.send_signal(number)
        _, stderr = running.communicate(timeout=20)
    assert running.returncode == 130
    assert f"going back to shardserve:1 ({OLD})" in stderr
    assert stage.lines()[-3:] == [f"systemctl stop {UNIT}", *SWAP[:2]]
    assert state(stage)["IMAGE_ID"] == OLD


def test_going_back_is_not_interrupted_itself(stage: Stage) -> None:
    serving(stage)
    stage.answer("systemctl stop", times=1)
    stage.answer("systemctl stop", command=f"exec {shutil.which('sleep')} 1")
    stage.answer("docker exec", status=1)
    stage.answer("systemctl is-active", "active\n")
    stage.prepare()
    argv = [str(DEPLOY / HOST), "update", SECOND, "40"]
    with subprocess.Popen(argv, env=stage.environment(), stderr=subprocess.PIPE, text=True, process_group=0) as running:
        wait_for(stage, "docker exec")
        running.send_signal(signal.SIGTERM)
        wait_for(stage, "systemctl stop", times=2)
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=20)
    assert running.returncode == 130
    assert stage.lines()[-1] == f"systemctl start {UNIT}"


def test_an_old_server_that_cannot_be_stopped_stays_in_service(stage: Stage) -> None:
    serving(stage)
    stage.answer("systemctl stop", status=1, stderr="Failed to stop\n", times=1)
    done = stage.run(HOST, "update", SECOND)
    assert done.status == 1
    assert "the old server could not be stopped" in done.stderr
    assert "the old image serves again" in done.stderr
    assert stage.lines()[-4:] == [f"systemctl stop {UNIT}", *SWAP]
    assert (state(stage)["IMAGE"], state(stage)["IMAGE_ID"]) == ("shardserve:1", OLD)


def test_an_update_outlives_the_connection_that_asked_for_it(stage: Stage) -> None:
    serving(stage)
    stage.answer("docker exec", status=1, times=1)
    stage.answer("systemctl is-active", "active\n")
    stage.prepare()
    argv = [str(DEPLOY / HOST), "update", SECOND, "40"]
    with subprocess.Popen(argv, env=stage.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        wait_for(stage, "docker pull")
        running.stdout.close()
        running.stderr.close()
        running.send_signal(signal.SIGHUP)
        running.wait(timeout=20)
    assert state(stage)["IMAGE_ID"] == NEW
    assert stage.lines()[-1].startswith("docker exec")


def test_the_gpu_hosts_update_is_the_same(stage: Stage) -> None:
    assert "no service is installed here" in stage.run("gpu/update", "--image", SECOND).stderr
    assert "--image is missing" in stage.run("gpu/update").stderr
    place = stage.root / "usr/local/lib/shardserve/shardserve-host"
    place.parent.mkdir(parents=True)
    shutil.copy(HOST_FILES / "shardserve-host", place)
    serving(stage)
    assert stage.run("gpu/update", "--image", SECOND).status == 0
    assert stage.lines() == [*ASIDE, *DRAINED, *SWAP]


# --- a TPU VM's boots


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


# --- the unit


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


@pytest.mark.skipif(is_root(), reason="root can read them all")
def test_others_are_told_to_become_root(stage: Stage) -> None:
    os.chmod(stage.root / "etc", 0o555)  # noqa: S103
    stage.answer("systemctl is-active --quiet", status=3)
    assert "run it as root (sudo)" in stage.run("gpu/start").stderr
