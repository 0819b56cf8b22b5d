"""`shardserve-host update`: a new image by a drain, and the way back."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess

import pytest

from .hosts import HOST, HOST_FILES, NEW, OLD, SECOND, UNIT, configured, keyed, state
from .stage import DEPLOY, Stage


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


DRAIN, WAIT = "systemctl stop", "docker exec"


@pytest.mark.parametrize("moment", [DRAIN, WAIT])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_update_that_is_interrupted_goes_back(stage: Stage, number: signal.Signals, moment: str) -> None:
    serving(stage)
    stage.answer(DRAIN, times=1, command=f"exec {shutil.which('sleep')} 1")
    stage.answer(WAIT, status=1)
    stage.answer("systemctl is-active", "active\n")
    with stage.begin(HOST, "update", SECOND, "40") as running:
        stage.wait_for(moment)
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
    with stage.begin(HOST, "update", SECOND, "40") as running:
        stage.wait_for("docker exec")
        running.send_signal(signal.SIGTERM)
        stage.wait_for("systemctl stop", times=2)
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=20)
    assert running.returncode == 130
    assert stage.lines()[-1] == f"systemctl start {UNIT}"


def test_a_host_that_dies_within_an_update_knows_the_image_before(stage: Stage) -> None:
    serving(stage)
    stage.answer("docker exec", status=1)
    stage.answer("systemctl is-active", "active\n")
    with stage.begin(HOST, "update", SECOND, "40") as running:
        stage.wait_for("docker exec")
        os.killpg(running.pid, signal.SIGKILL)
    assert (state(stage)["IMAGE_ID"], state(stage)["PREVIOUS_ID"]) == (NEW, OLD)


@pytest.mark.parametrize("command", [("update", SECOND), ("start",), ("configure", "PORT=9000")])
def test_a_second_command_is_refused_while_an_update_is_at_work(stage: Stage, command: tuple[str, ...]) -> None:
    serving(stage)
    stage.answer("docker exec", status=1, times=1, command=f"exec {shutil.which('sleep')} 2")
    stage.answer("systemctl is-active", "active\n")
    with stage.begin(HOST, "update", SECOND, "40") as running:
        stage.wait_for("docker exec")
        argv = [str(DEPLOY / HOST), *command]
        second = subprocess.run(argv, env=stage.environment(), capture_output=True, text=True, timeout=20, check=False)
        assert second.returncode == 2
        assert "another 'configure', 'start' or 'update' is at work" in second.stderr
        running.communicate(timeout=20)
    assert (running.returncode, state(stage)["IMAGE_ID"], state(stage)["PORT"]) == (0, NEW, "8000")


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
    with stage.begin(HOST, "update", SECOND, "40") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        stage.wait_for("docker pull")
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
