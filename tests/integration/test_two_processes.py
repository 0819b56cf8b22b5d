"""Front and engine as two services that share a socket: what listens, what is known where, and how both stop."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from tests.server.front.serving import eventually, frame, post_head, read_answer
from tests.server.link.harness import is_alive

from .load import load
from .serving import RunningServer, children, launch


@contextmanager
def engine_service(path: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`shardserve engine` on eight virtual devices."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("SHARDSERVE_")}
    argv = [sys.executable, "-m", "shardserve_server", "engine", "--socket", str(path), "--devices", "8", *options]
    with subprocess.Popen(argv, env=own, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert "waits for its front" in process.stdout.readline()
            yield process
        finally:
            process.kill()
            process.communicate()


@contextmanager
def both(folder: Path, *options: str, **environment: str) -> Iterator[tuple[RunningServer, subprocess.Popen[str]]]:
    path = folder / "engine.sock"
    with (
        engine_service(path, "--mesh", "grid:x=4,y=2") as engine,
        launch("--engine-socket", str(path), *options, devices=None, environment=environment) as front,
    ):
        yield front, engine


def listening_ports(pid: int) -> set[int]:
    """TCP and UDP ports that a process listens on, as `ss -ltnp` tells them."""
    sockets = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link))
            sockets |= {found[1]} if found else set()
    ports = set()
    for kind, state in (("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")):
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == state and fields[9] in sockets:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def test_only_the_api_listens_in_one_service() -> None:
    """Promise C9."""
    with launch() as server:
        assert server.json("dot", {"arguments": [[1, 2], [3, 4]]}).status == 200
        assert listening_ports(server.pid) == {server.port}
        assert listening_ports(server.engine_pid) == set()


def test_only_the_api_listens_in_two(tmp_path: Path) -> None:
    with both(tmp_path) as (front, engine):
        assert front.json("dot", {"arguments": [[1, 2], [3, 4]]}).status == 200
        assert children(front.pid) == []
        assert listening_ports(front.pid) == {front.port}
        assert [listening_ports(pid) for pid in (engine.pid, *children(engine.pid))] == [set(), set()]


def test_large_arrays_and_the_engines_own_settings_work_across(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((3000, 500))
    with both(tmp_path) as (front, _):
        answer = front.call("add", x, x, mesh="grid")
        np.testing.assert_array_equal(answer.arrays[0], x + x)
        info = front.request("GET", "/v1/info").json
        assert info["meshes"]["grid"] == [["x", 4], ["y", 2]]
        assert (info["device_count"], info["limits"]["queue_depth"]) == (8, 256)


def test_each_is_stopped_and_started_without_the_other(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    with engine_service(path) as engine:
        for _ in range(2):
            with launch("--engine-socket", str(path), devices=None) as front:
                assert front.json("dot", {"arguments": [[1, 2], [3, 4]]}).status == 200
                assert front.stop() == 0
        with launch("--engine-socket", str(path), devices=None) as front:
            engine.kill()
            engine.wait()
            eventually(lambda: not front.is_ready(), within_s=5.0)
            assert front.request("GET", "/readyz").code == "engine_starting"
            with engine_service(path):
                front.wait_ready()
                assert front.json("dot", {"arguments": [[1, 2], [3, 4]]}).status == 200
                assert front.stop() == 0


def test_an_engine_that_is_replaced_under_load_loses_nothing_that_was_accepted(tmp_path: Path) -> None:
    """As its container is, by an upgrade: the front says `engine_starting` until the next engine is there."""
    path = tmp_path / "engine.sock"
    with (
        engine_service(path) as engine,
        launch("--engine-socket", str(path), devices=None) as front,
        load(front.port) as made,
    ):
        eventually(lambda: made.outcomes["right"] > 20)
        engine.terminate()
        assert engine.wait(20) == 0
        with engine_service(path):
            before = made.outcomes["right"]
            eventually(lambda: made.outcomes["right"] > before + 20, within_s=20.0)
            assert set(made.outcomes) == {"right", "503 engine_starting"}
            assert front.stop() == 0


def test_both_asked_to_stop_at_once_lose_nothing(tmp_path: Path) -> None:
    """As a pod is stopped: the engine stays until its front has left, which has an upload on its way."""
    with both(tmp_path) as (front, engine):
        (process,) = children(engine.pid)
        body = frame("sum", np.ones(10**6))
        with socket.create_connection(("127.0.0.1", front.port), timeout=20) as arriving:
            arriving.sendall(post_head("/v1/call", len(body)) + body[: len(body) // 2])
            time.sleep(0.3)
            for service in (engine, front.process):
                service.send_signal(signal.SIGTERM)
            time.sleep(1.0)
            arriving.sendall(body[len(body) // 2 :])
            answer = read_answer(arriving)
        assert answer.status == 200
        assert answer.arrays[0] == 10**6
        assert front.process.wait(20) == 0
        assert engine.wait(20) == 0
        eventually(lambda: not is_alive(process), within_s=5.0)


def test_an_engines_bad_setting_ends_it_with_status_2_and_its_name(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    argv = [sys.executable, "-m", "shardserve_server", "engine", "--socket"]
    cases = {
        "setting meshes": [str(path), "--devices", "2", "--mesh", "grid:x=9"],
        "setting platform": [str(path), "--platform", "tpu"],
        "setting cache_dir": [str(path), "--devices", "2", "--cache-dir", "/dev/null/programs"],
        "--socket": [str(tmp_path / "no" / "engine.sock"), "--devices", "2"],
    }
    for name, arguments in cases.items():
        done = subprocess.run([*argv, *arguments], capture_output=True, text=True, timeout=50, check=False)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
        assert name in done.stderr


def test_a_front_of_its_own_engine_names_what_the_engine_refused() -> None:
    for options, name in (
        (["--platform", "gpu"], r"setting platform \(SHARDSERVE_PLATFORM\): .*GPU"),
        (["--cache-dir", "/dev/null/programs"], r"setting cache_dir \(SHARDSERVE_CACHE_DIR\): it cannot be written to"),
    ):
        argv = [sys.executable, "-m", "shardserve_server", "serve", "--port", "0", *options]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=50, check=False)
        assert done.returncode == 2, done.stderr
        assert re.search(f"shardserve: {name}", done.stderr)


def test_a_server_without_jax_says_which_extra_brings_it(tmp_path: Path) -> None:
    (tmp_path / "jax.py").write_text("raise ModuleNotFoundError('No module named jax', name='jax')")
    argv = [sys.executable, "-m", "shardserve_server", "serve", "--port", "0"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 2
    assert "shardserve: the engine needs 'jax', which is not installed; pip install 'shardserve[server]'" in done.stderr


@pytest.mark.parametrize("alone", [False, True])
def test_no_key_is_ever_seen_outside_of_its_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], alone: bool
) -> None:
    """Promise C4: keys of the environment and of a file, through refusals, faults, an engine's death and a stop."""
    first, second, wrong = (secrets.token_urlsafe(24) for _ in range(3))
    file = tmp_path / "keys"
    file.write_text(f"team {second}\n")
    file.chmod(0o600)
    said: list[str] = []
    options = ("--key-file", str(file), "--cache-dir", str(tmp_path / "programs"))
    start = both(tmp_path, *options[:2], SHARDSERVE_API_KEY=first) if alone else None
    with start or _one(options, first) as (front, engine):
        for key in (first, second, wrong, wrong[:-1], first + second):
            headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            for method, path, body in (
                ("GET", "/v1/info", None), ("GET", f"/v1/arrays/{key}", None), ("GET", f"/{key}?key={key}", None),
                ("POST", "/v1/kernels/dot", b'{"arguments": [[1], [2, 3]]}'), ("POST", "/v1/kernels/dot", b"{"),
                ("PUT", "/v1/kernels/dot", b""), ("POST", "/v1/call", b"junk"),
            ):  # fmt: skip
                answer = front.request(method, path, body=body, headers=headers)
                assert answer.status < 500
                mentioned = key in path  # the caller's own words may come back to the caller
                said += [] if mentioned else [str(answer.headers), answer.body.decode("latin-1")]
        worker = children(engine.pid)[0] if engine is not None else front.engine_pid
        for pid in (front.pid, worker):
            said.append(Path(f"/proc/{pid}/cmdline").read_bytes().decode("latin-1"))
        said.append(Path(f"/proc/{worker}/environ").read_bytes().decode("latin-1"))
        os.kill(worker, signal.SIGKILL)
        eventually(lambda: not front.is_ready())
        front.wait_ready()
        said.append(json.dumps(front.first_line))
        assert front.stop() == 0
        if engine is not None:
            engine.terminate()
            said += [text or "" for text in engine.communicate()]
    said += [path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file() and path != file]
    said += capfd.readouterr()
    assert any('"engine died"' in text for text in said), "the log is among what was looked at"
    for key in (first, second, wrong):
        assert not any(key in text for text in said)


@contextmanager
def _one(options: tuple[str, ...], key: str) -> Iterator[tuple[RunningServer, None]]:
    with launch(*options, environment={"SHARDSERVE_API_KEY": key}) as server:
        yield server, None
