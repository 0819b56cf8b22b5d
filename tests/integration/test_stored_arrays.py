"""D4: a stored array never changes, whatever is uploaded, computed, downloaded and deleted around it.

The pool overwrites each buffer at the moment it comes back, so an array that lies in one of them would show it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Hashable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import shardserve as ss
from shardserve import P
from shardserve_server.front.app import make_engine
from shardserve_server.link.buffers import BufferPool, Lease
from shardserve_server.settings import Settings
from tests.server.front.serving import eventually, serving

from .memory import digest, random_array
from .test_buffer_reuse import OverwritingPool

MIB = 2**20
SHAPE = (4096, 64)  # 1 MiB
STORED = {
    "rows": P("devices"), "columns": P(None, "devices"), "replicated": None, "open": ss.AUTO, "pinned": P("devices"),
}  # fmt: skip
EVERY_S = 0.1
SIZES = (1000, 40_000, 262_144, 262_145, 700_000)


class EarlyPool(OverwritingPool):
    """A build that takes the buffers of stored arrays back as soon as their call is over."""

    def adopt(self, lease: Lease, holder: Hashable) -> None:
        super().adopt(lease, holder)
        for holder in list(lease._holders):
            lease.release(holder)


@contextmanager
def client_of(pool: BufferPool) -> Iterator[ss.Client]:
    settings = Settings(port=0, devices=8, stop_grace_s=1)
    with serving(settings=settings, pool=pool, make_engine=lambda pool: make_engine(settings, pool)) as served:
        eventually(lambda: served.request("GET", "/readyz").status == 200, within_s=50)
        with ss.Client(f"http://127.0.0.1:{served.port}", timeout=50.0) as client:
            yield client


def churn(client: ss.Client, seed: int, stop: threading.Event, failures: list[BaseException]) -> None:
    """Uploads, calls, results that stay, downloads and deletions, over and over."""
    rng = np.random.default_rng(seed)
    try:
        while not stop.is_set():
            x = rng.random(int(rng.choice(SIZES)), np.float32)
            h = client.put(x, (ss.AUTO, P("devices"), None)[int(rng.integers(3))])
            assert digest(h.numpy()) == digest(x)
            assert digest(client.identity(x)) == digest(x)
            kept = client.negative(h)
            h.delete()
            assert digest(kept.numpy()) == digest(-x)
    except BaseException as error:
        failures.append(error)


def watched(client: ss.Client, seconds: float, names: Collection[str] = STORED) -> tuple[int, set[str]]:
    """How often all arrays were looked at during the churn, and which ones changed."""
    sources = {name: random_array(SHAPE, seed) for seed, name in enumerate(names)}
    handles = {name: client.put(x, STORED[name], pinned=name == "pinned") for name, x in sources.items()}
    expected = {name: digest(x) for name, x in sources.items()}
    del sources
    stop, failures = threading.Event(), list[BaseException]()
    threads = [threading.Thread(target=churn, args=(client, seed, stop, failures)) for seed in range(4)]
    for thread in threads:
        thread.start()
    looks, changed, until = 0, set[str](), time.monotonic() + seconds
    try:
        while time.monotonic() < until and not failures:
            changed |= {name for name, h in handles.items() if digest(h.numpy()) != expected[name]}
            looks += 1
            time.sleep(EVERY_S)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if not changed and failures:
        raise failures[0]
    return looks, changed


def test_stored_arrays_stay_the_same_while_buffers_are_reused_around_them() -> None:
    """D4, F9."""
    with client_of(OverwritingPool(kind="memfd", limit_bytes=2**28, spare_bytes=2**26)) as client:
        looks, changed = watched(client, 6.0)
    assert looks >= 5
    assert not changed


def test_a_build_that_reuses_the_buffers_of_stored_arrays_is_caught() -> None:
    """The control: with early reuse arrays that lie in their upload's buffer change."""
    with client_of(EarlyPool(kind="memfd", limit_bytes=2**28, spare_bytes=2**26)) as client:
        _, changed = watched(client, 1.0, STORED.keys() - {"pinned"})  # a pin of a lease that is over would be refused
    assert "rows" in changed


@pytest.mark.long
@pytest.mark.timeout(700)
def test_stored_arrays_stay_the_same_for_ten_minutes() -> None:
    """D4, in full."""
    with client_of(OverwritingPool(kind="memfd", limit_bytes=2**28, spare_bytes=2**26)) as client:
        looks, changed = watched(client, 600.0)
    print(
        f"\n{len(STORED)} stored arrays, looked at {looks} times during ten minutes of churn; changed: {len(changed)}"
    )
    assert not changed
