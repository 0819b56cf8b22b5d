"""Where the scripts of deploy/ meet nothing real: stubs on PATH that record their calls and give prepared answers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

DEPLOY = Path(__file__).parents[2] / "deploy"

# What the scripts use of a system; anything else that they would call is missing here, and fails.
TOOLS = (
    "awk base64 basename bash cat chmod cut dirname env find flock grep head install mkdir mktemp mv rm sed sort stat"
    " timeout".split()
)

STUB = """#!{python} -IS
import fcntl, json, os, sys
stage, program, argv = {stage!r}, os.path.basename(sys.argv[0]), sys.argv[1:]
given = sys.stdin.read() if "--password-stdin" in argv else ""
with open(stage + "/calls", "a") as calls:
    fcntl.flock(calls, fcntl.LOCK_EX)
    calls.write(json.dumps([program, argv, given]) + "\\n")
    calls.flush()
    with open(stage + "/answers") as file:
        answers = json.load(file)
    line = " ".join([program, *argv])
    for answer in answers:
        if answer["times"] != 0 and line.startswith(answer["start"]) and answer["part"] in line:
            answer["times"] -= 1
            break
    else:
        answer = dict(stdout="", stderr="", status=0, command="")
    with open(stage + "/answers", "w") as file:
        json.dump(answers, file)
sys.stdout.write(answer["stdout"])
sys.stderr.write(answer["stderr"])
sys.stdout.flush()
if answer["command"]:
    os.system(answer["command"])
sys.exit(answer["status"])
"""


@dataclass(frozen=True)
class Done:
    """How a script ended."""

    status: int
    stdout: str
    stderr: str


@dataclass
class Stage:
    """Stubs, their answers and their calls; and a folder that stands for the root of a host."""

    folder: Path
    programs: Iterable[str]
    answers: list[dict[str, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "bin").mkdir(parents=True)
        (self.folder / "root/etc").mkdir(parents=True)
        for tool in TOOLS:
            place = shutil.which(tool)
            assert place is not None, f"{tool} is missing on this machine"
            (self.folder / "bin" / tool).symlink_to(place)
        for program in self.programs:
            stub = self.folder / "bin" / program
            stub.write_text(STUB.format(python=sys.executable, stage=str(self.folder)))
            stub.chmod(0o755)

    @property
    def root(self) -> Path:
        return self.folder / "root"

    def answer(
        self,
        start: str,
        stdout: str = "",
        *,
        part: str = "",
        status: int = 0,
        stderr: str = "",
        times: int = -1,
        command: str = "",
    ) -> None:
        """The stubs' answer to command lines with this start and part; the first that fits is taken, `times` times."""
        self.answers.append(
            {
                "start": start,
                "part": part,
                "stdout": stdout,
                "stderr": stderr,
                "status": status,
                "times": times,
                "command": command,
            }
        )

    def environment(self) -> dict[str, str]:
        return {"PATH": str(self.folder / "bin"), "SHARDSERVE_HOST_ROOT": str(self.root), "TMPDIR": str(self.folder)}

    def prepare(self) -> None:
        """Forget what was called, and lay the answers out."""
        (self.folder / "calls").write_text("")
        (self.folder / "answers").write_text(json.dumps(self.answers))

    def run(self, script: Path | str, *arguments: str, stdin: str = "", **environment: str) -> Done:
        self.prepare()
        argv = [str(DEPLOY / script), *arguments]
        done = subprocess.run(
            argv,
            input=stdin,
            env=self.environment() | environment,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
            cwd=self.folder,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def begin(self, script: Path | str, *arguments: str) -> subprocess.Popen[str]:
        """Start a script, in a process group of its own."""
        self.prepare()
        argv = [str(DEPLOY / script), *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            argv, env=self.environment(), cwd=self.folder, stdout=pipe, stderr=pipe, text=True, process_group=0
        )

    def wait_for(self, start: str, times: int = 1) -> None:
        """Until a stub was called so often with a command line of this start."""
        deadline = time.monotonic() + 20
        while sum(line.startswith(start) for line in self.lines()) < times:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def pauses(self) -> list[str]:
        """How long the script has slept, each time."""
        return [argv[0] for program, argv, _ in self._written() if program == "sleep"]

    def _written(self) -> list[tuple[str, list[str], str]]:
        return [tuple(json.loads(line)) for line in (self.folder / "calls").read_text().splitlines()]

    def records(self) -> list[tuple[str, list[str], str]]:
        """Program, arguments and piped text of each call since the last run began, but for waiting."""
        return [record for record in self._written() if record[0] != "sleep"]

    def calls(self) -> list[list[str]]:
        return [[program, *argv] for program, argv, _ in self.records()]

    def lines(self) -> list[str]:
        return [" ".join(call) for call in self.calls()]


def scripts() -> list[Path]:
    """Every shell script of the folder, the sourced one too."""
    found = [path for path in sorted(DEPLOY.rglob("*")) if path.is_file()]
    return [path for path in found if path.read_text().startswith(("#!/usr/bin/env bash", "# shellcheck shell=bash"))]
