"""Arrays that are large beside every buffer: right by hash, and with bounded memory on each side."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardserve as ss
from shardserve import P
from shardserve_server.front.app import make_pool
from shardserve_server.link.buffers import BufferPool
from shardserve_server.link.engine_process import EngineProcess
from shardserve_server.link.launchers import ChildLauncher
from shardserve_server.settings import Settings
from tests.server.front.serving import eventually, serving

from .memory import MIB, Watch, digest, digest_of_double, random_array
from .serving import RunningServer, launch

ROOT = Path(__file__).parents[2]
GIB = 2**30
#: Beside the payload: Python's and JAX's own, the windows of a stream.
SLACK = 64 * MIB
MESH = {"x": 4, "y": 2}


def small_engine(settings: Settings, pool: BufferPool) -> EngineProcess:
    """An engine whose windows are so small that some MiB are a long stream."""
    command = settings.engine_command()
    command.environment = {**command.environment, "PYTHONPATH": str(ROOT)}
    command.program = ("-m", "tests.integration.small_windows")
    return EngineProcess(ChildLauncher(command), pool)


@pytest.fixture(scope="module")
def small() -> Iterator[tuple[ss.Client, Watch]]:
    """A client, and a watch on the memory of this process (client and front) and the engine."""
    settings = Settings(port=0, devices=8, stop_grace_s=1, spare_buffer_bytes=0)
    with serving(
        settings=settings, pool=make_pool(settings), make_engine=lambda pool: small_engine(settings, pool)
    ) as served:
        eventually(lambda: served.request("GET", "/readyz").status == 200, within_s=50)
        engine_pid: Any = served.engine.pid  # type: ignore[attr-defined]
        with ss.Client(f"http://127.0.0.1:{served.port}") as client:
            yield client, Watch({"client and front": os.getpid(), "engine": engine_pid})


@pytest.mark.parametrize("spec", [P("x"), P("x", "y"), P(None, "y"), None], ids=str)
def test_streams_of_many_small_windows_arrive_whole(small: tuple[ss.Client, Watch], spec: P | None) -> None:
    """D10 with every limit a thousandth: up, doubled and down, by uneven sizes."""
    client, _ = small
    x = random_array((3001, 251))
    h = client.put(x, spec, mesh=MESH)
    doubled = client.run(lambda a: a * 2, h)
    expected, out = digest_of_double(x), np.empty_like(x)
    assert client.get(doubled, out=out) is out
    assert digest(out) == expected
    assert digest(h.numpy()) == digest(x)


def test_a_download_takes_a_few_windows_and_an_upload_its_own_size(small: tuple[ss.Client, Watch]) -> None:
    """D10, P4: the bounds, where what is beside the payload is small too."""
    client, watch = small
    x = random_array((64 * MIB // 1024, 256))
    out = np.zeros_like(x)
    client.get(client.put(x, P("devices")), out=out)  # whatever is made once is made
    with watch as up:
        h = client.put(x, P("devices"))
    assert up.extra_bytes() <= 1.1 * x.nbytes + 16 * MIB, up.row("put", x.nbytes)
    down = Watch(watch._pids)
    with down:
        client.get(h, out=out)
    assert down.extra_bytes() <= 16 * MIB, down.row("get", x.nbytes)
    assert digest(out) == digest(x)


@contextmanager
def measured(*options: str, **environment: str) -> Iterator[tuple[ss.Client, RunningServer, dict[str, int]]]:
    """A server, a client of it, and the processes to watch."""
    with (
        launch(*options, environment=environment) as server,
        ss.Client(server.url, timeout=600.0) as client,
    ):
        yield client, server, {"client": os.getpid(), "front": server.pid, "engine": server.engine_pid}


def download_ten_times(nbytes: int) -> list[str]:
    """D5, F10: what one download took is free again before the next one."""
    # Without room for it, no spare buffer of the array's size is made in the background meanwhile.
    with measured(SHARDSERVE_SPARE_BUFFER_BYTES="64MiB") as (client, _, pids):
        x = random_array((nbytes // 1024, 256))
        h = client.put(x, P("devices"))
        out = np.zeros_like(x)
        client.get(h, out=out)
        with Watch(pids) as watch:
            for _ in range(10):
                client.get(h, out=out)
        row = watch.row("ten downloads", nbytes)
        assert digest(out) == digest(x)
        assert watch.extra_bytes() <= SLACK, row
        assert watch.after["all"] - watch.before["all"] <= SLACK // 2, row  # windows stay mapped for the next one
    return [row]


def test_ten_downloads_take_no_more_memory_than_one_and_give_it_back() -> None:
    """D5."""
    download_ten_times(128 * MIB)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_ten_downloads_of_a_gibibyte_take_no_more_memory_than_one() -> None:
    """D5, in full."""
    print("\n" + "\n".join(download_ten_times(GIB)))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_three_gibibytes_go_up_are_doubled_and_come_down() -> None:
    """D10: an array beyond 2 GiB in every direction, equal by hash; the memory of each process on the way."""
    rows = []
    with measured() as (client, _, pids):
        x = random_array((3 * GIB // 1024, 256))
        expected = digest_of_double(x)
        with Watch(pids, every_s=0.2) as up:
            h = client.put(x, P("devices"))
        rows.append(up.row("3 GiB put, split by rows", x.nbytes))
        with Watch(pids, every_s=0.2) as run:
            doubled = client.run(lambda a: a * 2, h)
        rows.append(run.row("doubled, the result stays", x.nbytes))
        with Watch(pids, every_s=0.2) as down:
            client.get(doubled, out=x)
        rows.append(down.row("fetched into the caller's array", x.nbytes))
        print("\nMiB before -> peak of each process (Pss: what they share counts once)", *rows, sep="\n")
        assert digest(x) == expected
        client.delete(h, doubled)
    assert up.extra_bytes() <= 1.1 * x.nbytes + SLACK
    assert run.extra_bytes() <= 1.1 * x.nbytes + SLACK
    assert down.extra_bytes() <= SLACK


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("spec", "most"),
    [(P(("x", "y")), 1.1), (P("x"), 1.1), (P(None, ("x", "y")), 2.1), (P("x", "y"), 2.1)],
    ids=["rows", "rows-replicated", "columns", "grid"],
)
def test_a_gibibyte_up_and_down_takes_what_it_must(spec: P, most: float) -> None:
    """P4: peak extra memory of front and engine; replicas on the devices are what the caller asked for."""
    x = random_array((GIB // 1024, 256))
    with measured() as (client, _, pids):
        client.get(client.put(x[:4096], spec, mesh=MESH))
        with Watch(pids) as up:
            h = client.put(x, spec, mesh=MESH)
        copies = client.attach(h.id)._placement.shard_shape
        device_bytes = 8 * copies[0] * copies[1] * x.itemsize
        out = np.zeros_like(x)
        with Watch(pids) as down:
            client.get(h, out=out)
        assert digest(out) == digest(x)
    print(
        f"\n{spec}, {device_bytes / MIB:.0f} MiB on the devices",
        up.row("1 GiB put", x.nbytes), down.row("1 GiB fetched", x.nbytes), sep="\n",
    )  # fmt: skip
    assert up.extra_bytes() <= most * max(x.nbytes, device_bytes) + SLACK
    assert down.extra_bytes() <= SLACK
