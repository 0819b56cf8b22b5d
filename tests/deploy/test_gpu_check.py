"""`deploy/gpu/check`: what a GPU host lacks, and who holds its GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from .hosts import APPS, DRIVER, GPUS, MODES, healthy
from .stage import Stage


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
