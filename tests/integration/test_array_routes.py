"""Resident arrays by `curl` on a real server, and what is left of them when the engine dies."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.calls import Array
from tests.server.front.serving import Answer, eventually, post_head, read_answer

from .serving import RunningServer, launch

NPY = {"Content-Type": "application/x-npy"}
X = np.random.default_rng(0).random((1000, 64)).astype(np.float32)


def npy(array: Array) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def put(server: RunningServer, array: Array, query: str = "") -> dict[str, Any]:
    answer = server.request("POST", f"/v1/arrays?{query}", body=npy(array), headers=NPY)
    assert answer.status == 201, answer.body
    found: dict[str, Any] = answer.json
    return found


def get(server: RunningServer, text: str) -> Array:
    answer = server.request("GET", f"/v1/arrays/{text}")
    assert answer.status == 200, answer.body[:500]
    loaded: Array = np.load(io.BytesIO(answer.body), allow_pickle=False)
    return loaded


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_puts_a_file_calls_a_kernel_on_it_and_fetches_what_np_load_opens(
    server: RunningServer, tmp_path: Path
) -> None:
    np.save(tmp_path / "a.npy", X)

    def curl(*arguments: str) -> bytes:
        command = ["curl", "-sS", "--fail-with-body", "-g", *arguments]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=50).stdout

    url, as_json = f"{server.url}/v1", ("-H", "Content-Type: application/json")
    wish = f"{url}/arrays?name=curled&replace=true&spec=%5B%22devices%22%5D"
    info = json.loads(curl("--data-binary", "@a.npy", "-H", "Content-Type: application/x-npy", wish))
    assert (info["shape"], info["spec"], info["shard_shape"]) == ([1000, 64], ["devices"], [125, 64])
    call = {"arguments": [{"array": "curled"}], "params": {"norm": "l2", "axis": 1}, "keep": {"name": "normal"}}
    kept = json.loads(curl("-d", json.dumps(call), *as_json, f"{url}/kernels/normalize"))["results"][0]
    assert (kept["name"], kept["spec"]) == ("normal", ["devices"])
    curl("-o", "b.npy", f"{url}/arrays/normal")
    expected = X / np.linalg.norm(X.astype(np.float64), axis=1, keepdims=True)
    np.testing.assert_allclose(np.load(tmp_path / "b.npy"), expected, rtol=1e-6)
    curl("-OJ", f"{url}/arrays/normal?slice=::-100,:3")
    np.testing.assert_allclose(np.load(tmp_path / "normal.npy"), expected[::-100, :3], rtol=1e-6)
    for name in ("curled", "normal"):
        curl("-X", "DELETE", f"{url}/arrays/{name}")


@pytest.mark.parametrize(
    ("wish", "spec", "mesh"),
    [
        ("", ["devices"], [["devices", 8]]),
        ("spec=null", None, [["devices", 8]]),
        ("spec=auto&mesh=grid", [["x", "y"]], [["x", 4], ["y", 2]]),
        ("spec=[%22y%22,%22x%22]&mesh=grid", ["y", "x"], [["x", 4], ["y", 2]]),
        ("spec=[null,%22a%22]&mesh=a=5", [None, "a"], [["a", 5]]),
    ],
)
def test_an_array_lies_where_its_put_says_and_slices_are_exact(
    server: RunningServer, wish: str, spec: Any, mesh: Any
) -> None:
    x = np.arange(2100 * 1003, dtype=np.float64).reshape(2100, 1003)
    info = put(server, x, wish)
    assert (info["spec"], info["mesh"]) == (spec, mesh)
    assert info["devices"] == list(range(math.prod(size for _, size in mesh)))
    np.testing.assert_array_equal(get(server, info["id"]), x)
    for text, index in (("5:900:7,::-3", np.s_[5:900:7, ::-3]), ("-1", np.s_[-1]), ("...,3", np.s_[..., 3])):
        np.testing.assert_array_equal(get(server, f"{info['id']}?slice={text}"), x[index])
    assert server.request("DELETE", f"/v1/arrays/{info['id']}").status == 204


def test_a_large_array_streams_down_and_a_slice_of_it_is_small(server: RunningServer) -> None:
    x = np.random.default_rng(3).random((12_000_000, 1)).astype(np.float64)  # 96 MB: above what is gathered whole
    info = put(server, x)
    assert get(server, info["id"]).tobytes() == x.tobytes()
    answer = server.request("GET", f"/v1/arrays/{info['id']}?slice=7:9")
    assert len(answer.body) == 128 + 16
    assert server.request("DELETE", f"/v1/arrays/{info['id']}").status == 204
    memory = server.request("GET", "/v1/memory").json
    assert (memory["own_resident_bytes"], memory["arrays"]) == (0, 0)
    eventually(lambda: server.request("GET", "/v1/memory").json["resident_bytes"] == 0)
    eventually(lambda: server.request("GET", "/v1/memory").json["transit_bytes"] == 0)


def test_what_cannot_fit_now_is_507_and_names_the_holders_to_their_owner() -> None:
    """D1: the ledger refuses before anything is allocated; room that comes free is used."""
    with launch("--memory-bytes", "4MiB", devices=2) as server:
        held = put(server, np.zeros(3 * 2**17), "name=held")
        began = time.monotonic()
        answer = server.request("POST", "/v1/arrays", body=npy(np.zeros(2**18)), headers=NPY)
        assert (answer.status, answer.code) == (507, "out_of_memory")
        assert time.monotonic() - began < 5
        details = answer.json["error"]["details"]
        (holder,) = details["holders"]
        assert (holder["name"], holder["id"], holder["is_own"]) == ("held", held["id"], True)
        assert "retry-after" in answer.headers
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as stream:
            beginning = npy(np.zeros(2**20))[:128]
            stream.sendall(post_head("/v1/arrays", 128 + 2**23, "application/x-npy") + beginning)
            assert read_answer(stream).status == 413  # by its header alone
        assert server.request("DELETE", "/v1/arrays/held").status == 204
        put(server, np.zeros(2**18))


def declared_in(folder: Path) -> dict[str, str]:
    """The settings of declared arrays."""
    return {"SHARDSERVE_ARRAYS_FILE": str(folder / "arrays.toml"), "SHARDSERVE_ARRAYS_ROOT": str(folder)}


def test_a_dead_engine_takes_unpinned_arrays_and_no_other(tmp_path: Path) -> None:
    """`kill -9` of the engine with an unpinned, a pinned and a declared array: what each handle answers."""
    kill_and_ask(tmp_path, X)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_what_each_handle_answers_before_and_after_a_kill_and_when(tmp_path: Path) -> None:
    """The same with 256 MiB each, and a table of the times."""
    large = np.random.default_rng(0).random((2**18, 256)).astype(np.float32)
    print("\n" + "\n".join(kill_and_ask(tmp_path, large)))


def kill_and_ask(tmp_path: Path, x: Array) -> list[str]:
    """Kill the engine under three arrays, and ask for each again; a table of what was answered."""
    np.save(tmp_path / "vectors.npy", x)
    (tmp_path / "arrays.toml").write_text('[vectors]\nfile = "vectors.npy"\nspec = ["devices"]\n')
    with launch(environment=declared_in(tmp_path)) as server:
        lost, pinned = (
            put(server, x + 1, "name=lost"),
            put(server, x + 2, "name=pinned&pinned=true&spec=[%22devices%22]"),
        )
        declared = server.request("GET", "/v1/arrays/vectors/info").json
        ids = {"unpinned": lost["id"], "pinned": pinned["id"], "declared": declared["id"]}
        for key, array in zip(ids.values(), (x + 1, x + 2, x), strict=True):
            np.testing.assert_array_equal(get(server, key), array)
        before = {kind: answer_of(server, key) for kind, key in ids.items()}
        os.kill(server.engine_pid, signal.SIGKILL)
        killed = time.monotonic()
        first = eventually_not_ready(server)
        noticed_s = time.monotonic() - killed
        assert first.code in ("engine_starting", "engine_lost")
        at_once = {kind: answer_of(server, key) for kind, key in ids.items()}
        assert at_once["pinned"] == "503 engine_starting"
        server.wait_ready()
        ready_s = time.monotonic() - killed
        after = {kind: answer_of(server, key) for kind, key in ids.items()}
        for text in (pinned["id"], "pinned"):
            np.testing.assert_array_equal(get(server, text), x + 2)
        for text in (declared["id"], "vectors"):
            np.testing.assert_array_equal(get(server, text), x)
        gone = server.request("GET", f"/v1/arrays/{lost['id']}")
        assert (gone.status, gone.code) == (410, "expired")
        assert "lost when the engine died" in gone.json["error"]["message"]
        assert server.request("GET", "/v1/arrays/lost").status == 410
        names = {info["name"] for info in server.request("GET", "/v1/arrays").json}
        assert names == {"pinned", "vectors"}
        assert server.request("GET", "/v1/arrays/pinned/info").json["spec"] == ["devices"]
        call = server.json("sum", {"arguments": [{"array": "pinned"}]})
        assert call.status == 200, call.body
        memory = server.request("GET", "/v1/memory").json
        assert memory["resident_bytes"] == pinned["device_bytes"] + declared["device_bytes"]
        assert memory["pinned_bytes"] == x.nbytes
    return [
        f"kill -9 of the engine under three arrays of {x.nbytes / 2**20:.2f} MiB: /readyz says so after "
        f"{noticed_s * 1e3:.0f} ms, and is 200 again after {ready_s:.2f} s",
        f"{'array':10} {'before':8} {'at once':22} when ready again",
        *(f"{kind:10} {before[kind]:8} {at_once[kind]:22} {after[kind]}" for kind in ids),
    ]


def answer_of(server: RunningServer, key: str) -> str:
    """Status and code of a small download."""
    answer = server.request("GET", f"/v1/arrays/{key}?slice=:1")
    return "200" if answer.status == 200 else f"{answer.status} {answer.code}"


def eventually_not_ready(server: RunningServer) -> Answer:
    """The first answer of `/readyz` that is no 200."""
    answers: list[Answer] = []

    def is_away() -> bool:
        answers.append(server.request("GET", "/readyz"))
        return answers[-1].status == 503

    eventually(is_away)
    return answers[-1]


def test_an_entry_that_went_wrong_meanwhile_is_left_out_and_everything_else_is_there(tmp_path: Path) -> None:
    """F6: a fault of one entry stops the first start; later it takes neither the others nor pinned arrays down."""
    table = tmp_path / "arrays.toml"
    np.save(tmp_path / "a.npy", np.arange(3.0))
    table.write_text('[there]\nfile = "a.npy"\n')
    options = ("--arrays-file", str(table), "--arrays-root", str(tmp_path))
    with launch(*options, devices=1) as server:
        table.write_text('[there]\nfile = "a.npy"\n[vectors]\nfile = "../vectors.npy"\n')
        os.kill(server.engine_pid, signal.SIGKILL)
        eventually_not_ready(server)
        eventually(lambda: server.request("GET", "/readyz").status == 200, within_s=40)
        assert [info["name"] for info in server.request("GET", "/v1/arrays").json] == ["there"]
        assert server.process.poll() is None


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (("--arrays-file", "{}/arrays.toml", "--arrays-root", "{}"), "arrays_file"),
        (("--arrays-file", "{}/arrays.toml", "--arrays-root", "{}/nowhere"), "arrays_root"),
        (("--mesh", "grid:x=4,y=99"), "meshes"),
    ],
    ids=["table", "folder", "mesh"],
)
def test_what_the_first_engine_refuses_ends_the_server_with_status_2_and_the_setting(
    tmp_path: Path, options: tuple[str, ...], name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "arrays.toml").write_text('[vectors]\nfile = "missing.npy"\n')
    with launch(*(option.format(tmp_path) for option in options), devices=None, wait=False) as server:
        assert server.process.wait(40) == 2
    printed = capfd.readouterr().err
    assert f"shardserve: setting {name} (SHARDSERVE_{name.upper()}): " in printed
    assert "Traceback" not in printed
