"""The scripts for a TPU VM that is there, against a gcloud that records its calls."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .cloud import HOST, IMAGE, KEY, PLACE, WHICH, exists, laptop_stage
from .stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return laptop_stage(tmp_path)


def test_start_starts_a_stopped_vm_and_leaves_a_running_one(stage: Stage) -> None:
    assert "deploy/tpu-vm/create makes one" in stage.run("tpu-vm/start", *WHICH).stderr
    exists(stage)
    done = stage.run("tpu-vm/start", *WHICH)
    assert (done.status, len(stage.calls()), "runs already (RUNNING)" in done.stderr) == (0, 1, True)


def test_a_start_that_the_cloud_refuses_says_what_is_left_to_do(stage: Stage) -> None:
    exists(stage, "TERMINATED")
    stage.answer("gcloud compute instances start", status=1, stderr="ERROR: spot\n")
    done = stage.run("tpu-vm/start", *WHICH)
    assert done.status == 2
    assert "delete it and create it again" in done.stderr


def test_stop_lets_accepted_calls_finish_first(stage: Stage) -> None:
    exists(stage)
    assert stage.run("tpu-vm/stop", *WHICH, "--iap").status == 0
    assert stage.calls()[1:] == [
        ["gcloud", "compute", "ssh", *PLACE, "--tunnel-through-iap", "--command=sudo systemctl stop shardserve"],
        ["gcloud", "compute", "instances", "stop", *PLACE],
    ]


def test_a_vm_whose_server_was_not_asked_is_stopped_only_when_told(stage: Stage) -> None:
    exists(stage)
    stage.answer("gcloud compute ssh", status=255, stderr="no route\n")
    done = stage.run("tpu-vm/stop", *WHICH)
    assert (done.status, len(stage.calls())) == (2, 2)
    assert "the VM still runs; --no-drain stops it all the same" in done.stderr
    assert stage.run("tpu-vm/stop", *WHICH, "--no-drain").status == 0
    assert stage.calls()[1] == ["gcloud", "compute", "instances", "stop", *PLACE]


def test_a_stop_that_the_cloud_refuses_says_that_it_goes_on_costing(stage: Stage) -> None:
    exists(stage)
    stage.answer("gcloud compute instances stop", status=1)
    done = stage.run("tpu-vm/stop", *WHICH)
    assert done.status == 2
    assert "goes on costing" in done.stderr
    assert "deploy/tpu-vm/delete ends the cost" in done.stderr


@pytest.mark.parametrize("state", ["TERMINATED", "STOPPED", "SUSPENDED", "PREEMPTED"])
def test_a_stopped_vm_stays_as_it_is(stage: Stage, state: str) -> None:
    exists(stage, state)
    assert (stage.run("tpu-vm/stop", *WHICH).status, len(stage.calls())) == (0, 1)


@pytest.mark.parametrize("answer", ["", "\n", "n\n", "my-tpu\n"])
def test_delete_asks_and_takes_only_yes(stage: Stage, answer: str) -> None:
    exists(stage)
    done = stage.run("tpu-vm/delete", *WHICH, stdin=answer)
    assert (done.status, len(stage.calls())) == (2, 1)
    assert "Delete my-tpu (RUNNING) in us-east5-a of my-project-1, with its boot disk and its key? [y/N]" in done.stderr
    assert "not deleted" in done.stderr


@pytest.mark.parametrize(("options", "answer"), [((), "y\n"), ((), "yes\n"), (("--yes",), "")])
def test_delete_deletes_when_told(stage: Stage, options: tuple[str, ...], answer: str) -> None:
    exists(stage)
    assert stage.run("tpu-vm/delete", *WHICH, *options, stdin=answer).status == 0
    assert stage.calls()[1:] == [["gcloud", "compute", "instances", "delete", *PLACE, "--quiet"]]


def test_delete_has_nothing_to_do_when_there_is_no_vm(stage: Stage) -> None:
    done = stage.run("tpu-vm/delete", *WHICH, "--yes")
    assert (done.status, len(stage.calls()), "nothing to delete" in done.stderr) == (0, 1, True)


@pytest.mark.parametrize(
    ("verb", "before", "options"), [("start", "STOPPED", ()), ("stop", "READY", ()), ("delete", "READY", ("--yes",))]
)
def test_the_older_api_has_its_own_verbs(stage: Stage, verb: str, before: str, options: tuple[str, ...]) -> None:
    stage.answer("gcloud compute tpus tpu-vm list", f"my-tpu\t{before}\n")
    assert stage.run(f"tpu-vm/{verb}", *WHICH, "--tpu-api", *options).status == 0
    quiet = ["--quiet"] if verb == "delete" else []
    assert stage.calls()[-1] == ["gcloud", "compute", "tpus", "tpu-vm", verb, *PLACE, *quiet]


def test_update_hands_image_and_time_to_the_vm_and_its_status_back(stage: Stage) -> None:
    stage.answer("gcloud compute ssh", status=1, stderr="going back\n")
    done = stage.run("tpu-vm/update", *WHICH, "--image", IMAGE, "--wait", "60")
    assert (done.status, done.stderr) == (1, "going back\n")
    assert stage.calls() == [["gcloud", "compute", "ssh", *PLACE, f"--command=sudo {HOST} update {IMAGE} 60"]]


def test_the_tunnel_waits_then_prints_what_a_client_needs(stage: Stage) -> None:
    exists(stage)
    stage.answer("gcloud", part="ready", status=255, stderr="no route\n", times=2)
    stage.answer("gcloud", part="ready", stdout="is ready\n")
    stage.answer("gcloud", f"{KEY}\n", part=f"{HOST} key")
    done = stage.run("tpu-vm/tunnel", *WHICH, "--local-port", "9000")
    assert done.status == 0
    assert done.stdout == f"export SHARDSERVE_URL=http://127.0.0.1:9000\nexport SHARDSERVE_API_KEY={KEY}\n"
    ssh = ["gcloud", "compute", "ssh", *PLACE]
    asking = [*ssh, f"--command=sudo {HOST} ready 30"]
    forward = ["--", "-N", "-o", "ExitOnForwardFailure=yes", "-L", "127.0.0.1:9000:127.0.0.1:8000"]
    assert stage.calls()[1:] == [asking, asking, asking, [*ssh, f"--command=sudo {HOST} key"], [*ssh, *forward]]
    assert KEY not in done.stderr
    assert not any(KEY in line for line in stage.lines())


@pytest.mark.parametrize(
    ("state", "sentence"), [("", "there is no VM 'my-tpu'"), ("TERMINATED", "start it: deploy/tpu-vm/start --project")]
)
def test_the_tunnel_does_not_wait_for_a_vm_that_does_not_run(stage: Stage, state: str, sentence: str) -> None:
    if state:
        exists(stage, state)
    done = stage.run("tpu-vm/tunnel", *WHICH)
    assert (done.status, len(stage.calls()), sentence in done.stderr) == (2, 1, True)


def test_the_exports_come_alone_when_asked_for(stage: Stage) -> None:
    exists(stage)
    stage.answer("gcloud", f"{KEY}\n", part=f"{HOST} key")
    assert stage.run("tpu-vm/tunnel", *WHICH, "--exports").status == 0
    assert not any("-L" in call for call in stage.calls())


@pytest.mark.parametrize("answer", ["", "a b\n", "Warning: a line\nabc\n"])
def test_what_is_no_key_is_not_exported(stage: Stage, answer: str) -> None:
    exists(stage)
    stage.answer("gcloud", answer, part=f"{HOST} key")
    done = stage.run("tpu-vm/tunnel", *WHICH)
    assert (done.status, done.stdout) == (2, "")
    assert "what came back is no key" in done.stderr


def test_a_key_with_a_shells_words_is_quoted(stage: Stage) -> None:
    exists(stage)
    stage.answer("gcloud", "$(touch${IFS}x);'\"\n", part=f"{HOST} key")
    done = stage.run("tpu-vm/tunnel", *WHICH, "--exports")
    shown = subprocess.run(
        ["bash", "-c", done.stdout + 'printf %s "$SHARDSERVE_API_KEY"'],  # noqa: S607
        capture_output=True,
        text=True,
        cwd=stage.folder,
        check=True,
    )
    assert shown.stdout == "$(touch${IFS}x);'\""
    assert not list(stage.folder.glob("x"))


def test_a_server_that_does_not_come_ends_the_wait_and_says_where_to_look(stage: Stage) -> None:
    exists(stage)
    stage.answer("gcloud", part="ready", status=1)
    done = stage.run("tpu-vm/tunnel", *WHICH, "--wait", "1")
    assert done.status == 2
    assert "sudo journalctl -u google-startup-scripts -u shardserve" in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--iap",), "compute ssh"),
        (("--tpu-api",), "compute tpus tpu-vm ssh"),
        (("--tpu-api", "--iap"), "alpha compute tpus tpu-vm ssh"),
    ],
)
def test_the_tunnel_goes_through_either_api_and_proxy(stage: Stage, options: tuple[str, ...], words: str) -> None:
    exists(stage)
    stage.answer("gcloud compute tpus tpu-vm list", "my-tpu READY\n")
    stage.answer("gcloud", f"{KEY}\n", part=f"{HOST} key")
    assert stage.run("tpu-vm/tunnel", *WHICH, *options).status == 0
    way = ["--tunnel-through-iap"] if "--iap" in options else []
    assert all(
        call[: len(words.split()) + 4 + len(way)] == ["gcloud", *words.split(), *PLACE, *way]
        for call in stage.calls()[1:]
    )


@pytest.mark.parametrize("port", ["0", "65536", "80a"])
def test_a_port_that_is_none_is_refused(stage: Stage, port: str) -> None:
    done = stage.run("tpu-vm/tunnel", *WHICH, "--local-port", port)
    assert (done.status, stage.calls()) == (2, [])
