"""A GPU host or a TPU VM in a folder, with stubs of what it has, for the scripts that run on hosts."""

from __future__ import annotations

from pathlib import Path

from .stage import DEPLOY, Stage

OLD, NEW = "sha256:" + "a" * 64, "sha256:" + "b" * 64
UNIT = "shardserve.service"
SECOND = "registry.example/shardserve:2"
HOST_FILES = DEPLOY / "host"
HOST = "host/shardserve-host"
DRIVER = "nvidia-smi --format=csv,noheader --query-gpu=driver_version"
MODES = "nvidia-smi --format=csv,noheader --query-gpu=index,compute_mode"
APPS = "nvidia-smi --format=csv,noheader --query-compute-apps"
GPUS = "nvidia-smi --format=csv,noheader --query-gpu=gpu_uuid,index,compute_mode"


def host_stage(tmp_path: Path) -> Stage:
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
