"""The image's recipe and its pins. `make image` and `make try-image` build one and run it, where a builder is."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement

from shardserve_server.settings import Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
TARGETS = ("cpu", "gpu", "tpu")
LOCKS = (*TARGETS, "wheel")
# The Python of the images.
ENVIRONMENT = {
    "python_version": "3.13",
    "python_full_version": "3.13.0",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
}


def requirements(path: Path) -> Iterator[Requirement]:
    """The requirements of a lock that hold in an image; each has a hash."""
    for entry in path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        line = re.sub(r"\s#.*|^#.*", "", entry).strip()
        if line:
            text, _, hashes = line.partition("--hash=")
            assert re.match(r"sha256:[0-9a-f]{64}", hashes), line
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate(ENVIRONMENT):
                yield requirement


def pins(path: Path) -> dict[str, str]:
    return {requirement.name: str(requirement.specifier) for requirement in requirements(path)}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_package_of_an_image_has_the_version_that_the_tests_run_with(lock: str) -> None:
    image, tests = pins(DEPLOY / f"{lock}.lock"), pins(ROOT / "requirements.lock")
    shared = image.keys() & tests.keys()
    assert {name: image[name] for name in shared} == {name: tests[name] for name in shared}
    if lock in ("cpu", "wheel"):
        assert image.keys() <= tests.keys()  # all of it runs in the tests


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_index_and_no_file(lock: str) -> None:
    text = (DEPLOY / f"{lock}.lock").read_text(encoding="utf-8")
    assert "://" not in text
    assert "--index" not in text
    assert " @ " not in text


@pytest.mark.parametrize(
    ("target", "accelerator"), [("cpu", set()), ("gpu", {"jax-cuda12-plugin"}), ("tpu", {"libtpu"})]
)
def test_an_image_has_what_its_extra_asks_for(target: str, accelerator: set[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [Requirement(text) for text in project["dependencies"] + extras["cli"] + extras["server"]]
    held = pins(DEPLOY / f"{target}.lock").items()
    names = {re.sub(r"[-_.]+", "-", name).lower(): specifier.removeprefix("==") for name, specifier in held}
    for requirement in wanted:
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name != "shardserve" and (requirement.marker is None or requirement.marker.evaluate(ENVIRONMENT)):
            assert requirement.specifier.contains(names[name]), requirement
    assert {"jax-cuda12-plugin", "libtpu"} & names.keys() == accelerator
    assert not {"pytest", "mypy", "ruff", "hatchling", "pip"} & names.keys()


@dataclass(frozen=True)
class Stage:
    """A part of the Dockerfile: what it starts from, and its instructions."""

    base: str
    instructions: list[tuple[str, str]]

    def last(self, instruction: str) -> str | None:
        values = [rest for name, rest in self.instructions if name == instruction]
        return values[-1] if values else None


def stages() -> dict[str, Stage]:
    found: dict[str, Stage] = {}
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE, flags=re.M).replace("\\\n", " ")
    for line in filter(None, map(str.strip, text.splitlines())):
        instruction, rest = line.split(None, 1)
        if instruction == "FROM":
            base, name = re.fullmatch(r"(\S+) AS (\S+)", rest).groups()  # type: ignore[union-attr]
            found[name] = Stage(base, [])
        elif found:
            list(found.values())[-1].instructions.append((instruction, rest))
    return found


def environment(stage: Stage) -> dict[str, str]:
    entries = " ".join(rest for name, rest in stage.instructions if name == "ENV").split()
    return dict(entry.split("=", 1) for entry in entries)


def test_the_only_base_is_the_argument() -> None:
    found = stages()
    assert {stage.base for stage in found.values()} - found.keys() == {"${BASE_IMAGE}"}
    assert DOCKERFILE.count("ARG BASE_IMAGE=debian:trixie-slim\n") == 1


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_ends_as_an_unprivileged_user_with_its_platform(target: str) -> None:
    stage = stages()[target]
    assert stage.last("USER") == "10001:10001"
    assert stage.instructions[-1][0] == "USER"
    assert stage.base == "runtime"
    assert environment(stage)["SHARDSERVE_PLATFORM"] == target
    copied = [rest for name, rest in stage.instructions if name == "COPY"]
    assert copied == [f"--from={target}-packages /opt/shardserve /opt/shardserve", "--from=project /tree/ /"]
    assert not [rest for name, rest in stage.instructions if name in ("RUN", "ADD")]


def test_an_image_says_how_it_is_started_watched_and_stopped() -> None:
    runtime = stages()["runtime"]
    assert json.loads(runtime.last("ENTRYPOINT") or "") == ["shardserve"]
    assert json.loads(runtime.last("CMD") or "") == ["serve"]
    assert (runtime.last("HEALTHCHECK") or "").endswith('CMD ["shardserve", "ready"]')
    assert "--interval=15s " in (runtime.last("HEALTHCHECK") or "")  # each one starts an interpreter
    assert runtime.last("STOPSIGNAL") == "SIGTERM"
    assert runtime.last("VOLUME") == "/var/cache/shardserve"
    assert runtime.last("EXPOSE") == environment(runtime)["SHARDSERVE_PORT"]


def test_everything_that_is_written_lies_in_the_volume() -> None:
    for stage in (stages()[name] for name in ("runtime", *TARGETS)):
        for name, value in environment(stage).items():
            if name in ("HOME", "TMPDIR") or name.endswith(("_DIR", "_PATH")):
                assert value == "disabled" or f"{value}/".startswith("/var/cache/shardserve/"), name


def test_the_images_settings_are_settings_of_the_server() -> None:
    for stage in stages().values():
        for name in environment(stage):
            if name.startswith("SHARDSERVE_"):
                assert name.removeprefix("SHARDSERVE_").lower() in Settings.model_fields


def test_nothing_is_fetched_but_packages_and_nothing_is_copied_that_is_not_let_in() -> None:
    let_in = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in let_in
    for stage in stages().values():
        for name, rest in stage.instructions:
            assert name != "ADD"
            assert not re.search(r"curl|wget|https?:", rest)
            if name == "COPY" and not rest.startswith("--from="):
                for source in rest.split()[:-1]:
                    assert (ROOT / source).exists()
                    assert f"!{source}" in let_in or f"!{Path(source).parent}/*{Path(source).suffix}" in let_in


def build(
    tmp_path: Path, *arguments: str, engines: dict[str, int], **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run deploy/build-image where there are these engines, whose `info` ends with such a status."""
    for tool in ("bash", "dirname", "sed", "cat"):
        (tmp_path / tool).symlink_to(next(p for f in os.get_exec_path() if (p := Path(f) / tool).exists()))
    for name, status in engines.items():
        (tmp_path / name).write_text(f"#!{tmp_path / 'bash'}\nexit {status}\n")
        (tmp_path / name).chmod(0o755)
    return subprocess.run(
        [DEPLOY / "build-image", *arguments],
        env={"PATH": str(tmp_path), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("engines", "used"),
    [
        ({"docker": 0, "podman": 0, "buildah": 0}, "docker"),
        ({"docker": 1, "podman": 0, "buildah": 0}, "podman"),
        ({"docker": 1, "podman": 1, "buildah": 0}, "buildah"),
    ],
)
def test_a_builder_that_does_not_work_is_passed_over(tmp_path: Path, engines: dict[str, int], used: str) -> None:
    done = build(tmp_path, "--print", "cpu", "gpu", engines=engines)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [used, used]
    for line, target in zip(lines, ("cpu", "gpu"), strict=True):
        assert f"--target {target} --tag shardserve:{target} " in line
    assert all(("--format docker" in line) == (used != "docker") for line in lines)  # else there is no health check


def test_without_a_builder_the_build_says_what_would_do(tmp_path: Path) -> None:
    done = build(tmp_path, engines={"docker": 1})
    assert done.returncode == 1
    assert "apt-get install buildah" in done.stderr


def test_a_build_takes_the_names_of_the_person_who_builds(tmp_path: Path) -> None:
    done = build(
        tmp_path,
        "--print",
        engines={"docker": 0},
        BASE_IMAGE="debian:mine",
        IMAGE_NAME="mine/server",
        BUILD_OPTIONS="--pull",
    )
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    label = f"--label org.opencontainers.image.version={version} "
    for part in ("BASE_IMAGE=debian:mine", "--tag mine/server:cpu", label, "--pull ."):
        assert part in done.stdout


def test_a_builds_label_is_the_commit_and_says_what_was_not_committed(tmp_path: Path) -> None:
    tree, path = tmp_path / "tree", tmp_path / "bin"
    (tree / "deploy").mkdir(parents=True)
    path.mkdir()
    for source in ("deploy/build-image", "pyproject.toml"):
        shutil.copy(ROOT / source, tree / source)
    for tool in ("bash", "dirname", "sed", "cat", "git"):
        (path / tool).symlink_to(str(shutil.which(tool)))

    def run(*argv: str) -> str:
        environment = {"PATH": str(path), "BUILDER": "docker", "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
        return subprocess.run(argv, cwd=tree, env=environment, capture_output=True, text=True, check=True).stdout

    def label() -> str:
        return run("deploy/build-image", "--print").partition("revision=")[2].split()[0]

    run("git", "init", "--quiet")
    run("git", "add", ".")
    person = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    run("git", *person, "commit", "--quiet", "--message=x")
    run("git", *person, "tag", "--annotate", "--message=x", "v1")
    commit = run("git", "rev-parse", "HEAD").strip()
    assert label() == commit
    (tree / "pyproject.toml").write_text('version = "2"\n')
    assert label() == f"{commit}-dirty"


def test_a_build_tells_how_it_is_done_for_another_machine_and_another_storage(tmp_path: Path) -> None:
    told = build(tmp_path, "--help", engines={}).stdout
    assert "BUILD_OPTIONS='--platform linux/amd64'" in told
    assert "podman save IMAGE | docker load" in told
    assert "podman save IMAGE | sudo podman load" in told


LAPTOP_SCRIPTS = [DEPLOY / "build-image", *sorted((DEPLOY / "tpu-vm").iterdir())]


@pytest.mark.parametrize("script", LAPTOP_SCRIPTS, ids=lambda path: path.name)
def test_no_script_for_a_laptop_writes_out_an_array_that_may_be_empty(script: Path) -> None:
    """bash 3.2, which is what macOS has, takes it for a variable that is not set, and ends."""
    text = script.read_text(encoding="utf-8")
    guarded = re.sub(r"\$\{(\w+)\[@\]\+\"\$\{\1\[@\]\}\"\}", "", text)
    for name in set(re.findall(r"\$\{(\w+)\[@\]\}", guarded)):
        assert re.search(rf"\b{name}=\(\s*[^\s)]", text) or script.name == "startup", name  # that one runs on the VM


def test_a_build_refuses_what_is_no_target(tmp_path: Path) -> None:
    done = build(tmp_path, "rocm", engines={"docker": 0})
    assert (done.returncode, "'rocm' is no target" in done.stderr) == (2, True)


def test_trying_an_image_without_an_engine_says_what_would_do(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, DEPLOY / "try-image"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "apt-get install podman" in done.stderr


def try_image() -> ModuleType:
    """The program deploy/try-image as a module."""
    loader = SourceFileLoader("try_image", str(DEPLOY / "try-image"))
    specification = spec_from_loader(loader.name, loader)
    assert specification is not None
    module = module_from_spec(specification)
    sys.modules[loader.name] = module  # dataclasses look there
    loader.exec_module(module)
    return module


def test_an_engine_by_itself_is_tried_without_the_servers_health_check() -> None:
    program = try_image()
    started: list[tuple[str, ...]] = []

    class Engine(program.Engine):  # type: ignore[name-defined, misc]
        def __call__(self, *arguments: str, **_: object) -> str:
            if arguments[0] == "run":
                started.append(arguments)
                if len(started) == 2:
                    raise program.Failure("far enough")
            return "[]" if arguments[0] == "image" else arguments[-1]

    with pytest.raises(program.Failure, match="far enough"):
        program.try_two(Engine("docker", []), "shardserve:cpu")
    engine, front = started
    assert engine[-4:] == ("shardserve:cpu", "engine", "--socket", "/run/shardserve/engine.sock")
    assert "--no-healthcheck" in engine
    assert "--no-healthcheck" not in front


def test_what_tries_an_image_refuses_each_right_too_many() -> None:
    program = try_image()
    rights = {"Name": ["x"], "Uid": ["0"] * 4, "CapPrm": ["0"], "CapEff": ["0"], "CapBnd": ["1"], "NoNewPrivs": ["0"]}
    seen: dict[str, Any] = {
        "processes": [rights],
        "writable": ["/", "/var/cache/shardserve"],
        "root": ["rw"],
        "tools": ["cc"],
        "has_pip": True,
        "setuid": ["/usr/bin/su"],
    }
    mends: list[tuple[dict[str, Any], str, object]] = [
        (rights, "Uid", ["10001"] * 4),
        (rights, "CapBnd", ["0"]),
        (rights, "NoNewPrivs", ["1"]),
        (seen, "setuid", []),
        (seen, "root", ["ro"]),
        (seen, "writable", ["/dev/shm", "/var/cache/shardserve/state"]),  # noqa: S108
        (seen, "tools", []),
        (seen, "has_pip", False),
    ]
    refused = set()
    for where, name, mended in mends:
        with pytest.raises(program.Failure) as caught:
            program.check_rights(seen, user="10001", folders={"/var/cache/shardserve"})
        refused.add(str(caught.value))
        where[name] = mended
    program.check_rights(seen, user="10001", folders={"/var/cache/shardserve"})
    assert len(refused) == len(mends)
