"""A laptop with a gcloud that records its calls, for the scripts that make and run a TPU VM."""

from __future__ import annotations

from pathlib import Path

from .stage import Stage

WHICH = ("--project", "my-project-1", "--zone", "us-east5-a", "--name", "my-tpu")
PLACE = ["my-tpu", "--project=my-project-1", "--zone=us-east5-a"]
IMAGE = "registry.example/team/shardserve:tpu-2"
FILES = (
    "--metadata-from-file=startup-script=startup,shardserve-host=../host/shardserve-host,"
    "shardserve-unit=../host/shardserve.service"
)
PULL = "--scopes=https://www.googleapis.com/auth/devstorage.read_only"  # storage-ro
HOST = "/usr/local/lib/shardserve/shardserve-host"
KEY = "c2VjcmV0LWtleS1vZi10aGUtVk0hISEh"
VERBS = ("create", "start", "update", "stop", "delete", "tunnel")


def laptop_stage(tmp_path: Path) -> Stage:
    """A laptop; no VM of that name is there."""
    return Stage(tmp_path / "stage", ("gcloud", "sleep"))


def exists(stage: Stage, state: str = "RUNNING") -> None:
    """An instance on Compute Engine, and another one whose name begins alike."""
    stage.answer("gcloud compute instances list", f"my-tpu-2 STAGING\nmy-tpu {state}\n")


def create(stage: Stage, *options: str) -> tuple[int, str]:
    done = stage.run("tpu-vm/create", *WHICH, "--image", IMAGE, *options)
    return done.status, done.stderr
