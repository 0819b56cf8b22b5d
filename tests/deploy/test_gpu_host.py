"""`deploy/gpu/start` and `stop`, against stubs."""

from __future__ import annotations

import pytest

from .hosts import DRIVER, HOST, HOST_FILES, OLD, SECOND, UNIT, configured, healthy, keyed, state
from .stage import Stage


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
        "ACCOUNT_REGISTRY": "",
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
        f"systemctl reset-failed {UNIT}",
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


def test_a_new_grace_is_systemd_s_too(stage: Stage) -> None:
    configured(stage, "STOP_GRACE_S=600")
    drop_in = stage.root / "etc/systemd/system/shardserve.service.d/10-host.conf"
    assert drop_in.read_text() == "[Service]\nTimeoutStopSec=630\n"
    assert drop_in.stat().st_mode & 0o777 == 0o644
    assert stage.lines() == ["systemctl daemon-reload"]


def test_a_broken_state_is_mended_by_configuring_it_anew(stage: Stage) -> None:
    (stage.root / "etc/shardserve").mkdir()
    (stage.root / "etc/shardserve/service").touch()
    assert "says no ACCELERATOR" in stage.run(HOST, "start").stderr
    configured(stage)
    assert state(stage)["IMAGE"] == "shardserve:1"


def test_a_host_that_is_never_idle_is_not_told_to_power_off_when_it_is(stage: Stage) -> None:
    assert "needs --exit-after-idle" in stage.run("gpu/start", "--power-off-when-idle").stderr
    done = stage.run(HOST, "configure", "ACCELERATOR=gpu", "IMAGE=shardserve:1", "WHEN_IDLE=poweroff")
    assert (done.status, "needs EXIT_AFTER_IDLE_S" in done.stderr) == (2, True)


def test_who_cannot_write_to_etc_is_told_to_become_root(stage: Stage) -> None:
    (stage.root / "etc").rmdir()  # root may write to any that is there
    stage.answer("systemctl is-active --quiet", status=3)
    assert "run it as root (sudo)" in stage.run("gpu/start").stderr
