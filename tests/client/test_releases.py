"""Arrays whose last object is gone: released together, without I/O where the object goes, and only if they are ours."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest

import shardserve as ss
from shardserve import _releases
from shardserve._releases import Releases
from shardserve_proto.messages import ArrayInfo

from .handles import NOWHERE, answer, handle, ids_of, kept
from .replies import refusal

DONE = answer({"released": 1})


def released(server: Any) -> list[list[str]]:
    """The ids of each release that the server was asked for."""
    bodies = [request.partition(b"\r\n\r\n")[2] for request in server.requests if b"/v1/arrays/release" in request]
    return [json.loads(body)["ids"] for body in bodies]


def wait_until(condition: Any, *, within_s: float = 5.0) -> None:
    until = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_dropped_arrays_are_released_together_after_a_moment(raw_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_releases, "PAUSE_S", 0.2)
    server = raw_server(kept((4,), (4,), (4,)), DONE)
    with ss.Client(server.url) as client:
        arrays = client.put([np.ones(4, np.float32)] * 3)
        ids = [array.id for array in arrays]
        assert ids == ids_of(server.requests[0])
        del arrays
        assert released(server) == []
        wait_until(lambda: released(server))
    assert [sorted(some) for some in released(server)] == [sorted(ids)]


def test_where_an_object_goes_nothing_is_sent_and_no_lock_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector may run anywhere, also within a lock's own code."""
    monkeypatch.setattr(_releases, "PAUSE_S", 60.0)
    with ss.Client(NOWHERE) as client:
        h = handle(client, releases=client._releases.watch())
        monkeypatch.setattr(client._connections.here(), "send", lambda *_: pytest.fail("I/O"))
        client._releases._starting.acquire()
        started = time.perf_counter()
        del h
        assert time.perf_counter() - started < 0.1
        client._releases._starting.release()
        assert len(client._releases._dropped) == 1
        monkeypatch.undo()


def test_close_releases_what_was_dropped_and_ends_the_thread(raw_server: Any) -> None:
    server = raw_server(kept((4,)), DONE)
    before = threading.active_count()
    with ss.Client(server.url) as client:
        key = client.put(np.ones(4, np.float32)).id
    assert released(server) == [[key]]
    assert threading.active_count() <= before + 2, "those of the scripted server's connections"
    assert not [thread for thread in threading.enumerate() if thread.name == "shardserve-releases"]


def test_a_client_that_nobody_closes_ends_its_thread_too(raw_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_releases, "PAUSE_S", 0.05)
    server = raw_server(kept((4,)), DONE)
    client = ss.Client(server.url)
    array = client.put(np.ones(4, np.float32))
    (thread,) = [t for t in threading.enumerate() if t.name == "shardserve-releases"]
    gone = weakref.ref(client)
    del client, array
    gc.collect()
    assert gone() is None
    thread.join(5)
    assert not thread.is_alive()
    assert len(released(server)) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda client: client.put(np.ones(4, np.float32), name="weights"),
        lambda client: client.put(np.ones(4, np.float32), pinned=True),
        lambda client: client.put(np.ones(4, np.float32)).detach(),
    ],
    ids=["named", "pinned", "detached"],
)
def test_what_others_may_find_is_never_released(raw_server: Any, make: Any) -> None:
    server = raw_server(kept((4,)), DONE)
    with ss.Client(server.url) as client:
        make(client)
    assert released(server) == []


def test_an_attached_array_is_never_released(raw_server: Any) -> None:
    info = ArrayInfo(
        id="ab" * 16, dtype="int8", shape=(4,), spec=None, mesh=(), shard_shape=(4,), nbytes=4, device_bytes=4
    )
    server = raw_server(answer(info.model_dump(mode="json")), DONE)
    with ss.Client(server.url) as client:
        assert client.attach("ab" * 16).shape == (4,)
    assert released(server) == []


def test_many_or_large_ones_go_before_the_next_call(raw_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_releases, "PAUSE_S", 60.0)
    server = raw_server(DONE, kept((4,)))
    with ss.Client(server.url) as client:
        handle(client, (2**22,), releases=client._releases.watch())  # 16 MiB
        client.put(np.ones(4, np.float32))
        assert released(server) == [["01" * 16]]
        assert b"/v1/arrays/release" in server.requests[0]
    releases = Releases(lambda: pytest.fail("nothing to send"))
    for number in range(_releases.MANY):
        assert releases.due() == []
        releases.drop(f"{number:032x}", 1, os.getpid())
    assert len(releases.due()) == _releases.MANY


@pytest.mark.parametrize(
    "error",
    [
        ss.OutOfMemory("no room"),
        ss.OutOfMemory("no room", details={"is_transient": True}),
        ss.QuotaExceeded("too many"),
        ss.QuotaExceeded("too many", retry_after_s=30.0),
    ],
)
def test_a_call_without_room_releases_what_was_dropped_and_tries_once_more(
    raw_server: Any, monkeypatch: pytest.MonkeyPatch, error: ss.ShardserveError
) -> None:
    monkeypatch.setattr(_releases, "PAUSE_S", 60.0)
    server = raw_server(refusal(error), DONE, kept((4,)), refusal(error))
    with ss.Client(server.url, timeout=0.9) as client:
        handle(client, releases=client._releases.watch())
        assert client.put(np.ones(4, np.float32), name="fits").shape == (4,)
        assert released(server) == [["01" * 16]]
        with pytest.raises(type(error)):
            client.put(np.ones(4, np.float32))
    assert len(server.requests) == 4


def test_the_async_client_makes_room_too(raw_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_releases, "PAUSE_S", 60.0)
    server = raw_server(refusal(ss.QuotaExceeded("too many")), DONE, kept((4,)))

    async def put() -> Any:
        async with ss.AsyncClient(server.url) as client:
            client._releases.watch().drop("01" * 16, 48, os.getpid())
            return await client.put(np.ones(4, np.float32), name="fits")

    assert asyncio.run(put()).shape == (4,)
    assert released(server) == [["01" * 16]]


def test_a_release_that_fails_disturbs_nobody(raw_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_releases, "PAUSE_S", 0.01)
    server = raw_server(None, kept((4,)))
    with ss.Client(server.url) as client:
        handle(client, releases=client._releases.watch())
        wait_until(lambda: server.requests)
        assert client.put(np.ones(4, np.float32)).shape == (4,)


PROGRAM = """
import os, sys, threading
sys.path.insert(0, {root!r})
from tests.client.handles import handle
import shardserve as ss
client = ss.Client("http://127.0.0.1:9")
arrays = [handle(client, releases=client._releases.watch()) for _ in range(3)]
{rest}
"""


def program(rest: str) -> subprocess.CompletedProcess[str]:
    from pathlib import Path

    code = PROGRAM.format(root=str(Path(__file__).parents[2]), rest=rest)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30)


def test_an_interpreter_ends_in_peace_with_arrays_alive_and_dropped() -> None:
    done = program("del arrays[0]\ncycle = [arrays]; cycle.append(cycle)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


#: Python 3.12 warns of every fork beside threads.
NO_FORK_WARNING = ["-W", "ignore:This process:DeprecationWarning"]


def ends(code: str, **environment: str) -> None:
    """Run a program, which says nothing."""
    program = f"import asyncio, os, sys\nimport numpy as np\nimport shardserve as ss\n{code}"
    done = subprocess.run(
        [sys.executable, *NO_FORK_WARNING, "-c", program],
        capture_output=True, text=True, check=False, timeout=30, env=os.environ | environment,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "code",
    [
        "c = ss.Client()\nc.put(np.ones(4, 'f4'))",
        "c = ss.Client()\nc.put(np.ones(4, 'f4'))\nsys.exit()",
        "def f():\n    h = ss.Client().put(np.ones(4, 'f4'))\nf()",
        "async def f():\n    await c.put(np.ones(4, 'f4'))\nc = ss.AsyncClient()\nasyncio.run(f())",
    ],
    ids=["end", "exit", "local", "async"],
)
@pytest.mark.parametrize("is_proxied", [False, True], ids=["direct", "proxied"])
def test_what_a_program_drops_in_its_last_moment_is_released(raw_server: Any, code: str, is_proxied: bool) -> None:
    server = raw_server(kept((4,)), DONE)
    if is_proxied:
        ends(code, SHARDSERVE_URL="http://shardserve.test:9", http_proxy=server.url)
    else:
        ends(code, SHARDSERVE_URL=server.url)
    assert released(server) == [ids_of(server.requests[0])]


def test_a_forked_child_releases_what_it_dropped_in_its_last_moment(raw_server: Any) -> None:
    server = raw_server(kept((4,)), kept((4,)), DONE, DONE)
    code = """
c = ss.Client()
mine = c.put(np.ones(4, "f4"))
pid = os.fork()
if pid == 0:
    c.put(np.ones(4, "f4"))
else:
    assert os.waitpid(pid, 0)[1] == 0
"""
    ends(code, SHARDSERVE_URL=server.url)
    assert released(server) == [ids_of(server.requests[1])], "that of the parent is left to its lease"


def test_a_forked_child_leaves_its_parent_s_arrays_alone() -> None:
    rest = """
pid = os.fork()
if pid == 0:
    arrays.clear()
    assert not client._releases._dropped
    other = handle(client, key=b"c" * 16, releases=client._releases.watch())
    del other
    assert len(client._releases._dropped) == 1  # its own
    client.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
arrays.clear()
assert len(client._releases._dropped) == 3
"""
    done = program(rest)
    assert done.returncode == 0, done.stderr
