"""How resident arrays live through the SDK against a real server: names, leases, owners, and their end."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import shardserve as ss
from shardserve import P
from tests.server.front.serving import eventually

from .serving import launch

# --- names, leases, owners -------------------------------------------------------------------------------------------


def test_a_name_moves_to_a_new_array_and_old_handles_keep_the_old_one(client: ss.Client) -> None:
    old = client.put(np.zeros(5), name="moving")
    with pytest.raises(ss.NameTaken, match="replace=True moves it"):
        client.put(np.ones(5), name="moving")
    new = client.put(np.ones(5), name="moving", replace=True)
    assert client.attach("moving").id == new.id
    assert client.get("moving").tolist() == [1.0] * 5
    assert old.numpy().tolist() == [0.0] * 5
    client.delete("moving")
    with pytest.raises(ss.NotFound, match="no array has the name 'moving'"):
        client.attach("moving")


def test_calls_that_run_while_a_name_moves_have_the_old_array_or_the_new_one(client: ss.Client) -> None:
    size = 4096
    client.put(np.zeros(size), name="swapped")
    stop = threading.Event()

    def read() -> set[float]:
        seen: set[float] = set()
        while not stop.is_set():
            found = client.get("swapped")
            assert len(set(found.tolist())) == 1, "half of one array and half of another"
            seen.add(float(found[0]))
        return seen

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        for number in range(1, 20):
            client.put(np.full(size, float(number)), name="swapped", replace=True)
        stop.set()
        assert set.union(*(reader.result() for reader in readers)) <= set(map(float, range(20)))
    client.delete("swapped")


def test_a_lease_that_is_over_is_told_and_uses_renew_it(client: ss.Client) -> None:
    h = client.put(np.ones(3), ttl=0.6)
    lease = h.lease
    assert lease.ttl_s == 0.6
    for _ in range(4):
        time.sleep(0.25)
        assert client.sum(h, keep=False) == 3.0
    assert h.renew(0.2).ttl_s == 0.2
    time.sleep(0.4)
    with pytest.raises(ss.Expired, match=r"its lease of 0\.2 s is over"):
        client.sum(h)
    with pytest.raises(ss.Expired, match="lease"):
        client.attach(h.id)


def test_a_pinned_array_has_no_lease(client: ss.Client) -> None:
    h = client.put(np.ones(3), ttl=60)
    assert h.pin() == h.lease == ss.Lease(None, None, True)
    assert h.renew(60).ttl_s == 60
    h.delete()
    with pytest.raises(ss.Expired, match="it was deleted"):
        client.attach(h.id)


def test_arrays_and_memory_tell_what_is_there(client: ss.Client) -> None:
    before = client.memory()
    h = client.put(np.zeros((64, 64)), None, mesh={"x": 2, "y": 4}, name="listed")
    (listed,) = [info for info in client.arrays() if info.name == "listed"]
    assert (listed.id, listed.nbytes, listed.device_bytes) == (h.id, 32768, 8 * 32768)
    assert "listed" in str(client.arrays())
    assert client.memory().own_resident_bytes - before.own_resident_bytes >= 8 * 32768
    client.delete(h)


KEYS_FILE = f"alice {'a1b2c3d4' * 5}\nbob {'e5f6a7b8' * 5}\n"


@pytest.fixture(scope="module")
def two_owners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ss.Client, ss.Client]]:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(KEYS_FILE)
    path.chmod(0o600)
    keys = [line.split()[1] for line in KEYS_FILE.splitlines()]
    with (
        launch("--key-file", str(path)) as server,
        ss.Client(server.url, api_key=keys[0]) as alice,
        ss.Client(server.url, api_key=keys[1]) as bob,
    ):
        yield alice, bob


def test_another_owner_s_array_is_not_found_by_id_or_name(two_owners: tuple[ss.Client, ss.Client]) -> None:
    alice, bob = two_owners
    h = alice.put(np.ones(4), name="secret")
    for asked in (h.id, "secret"):
        with pytest.raises(ss.NotFound):
            bob.attach(asked)
        with pytest.raises(ss.NotFound):
            bob.delete(asked)
    forged = ss.RemoteArray(bob, bytes.fromhex(h.id), h._placement, mesh=(), devices=(0,))
    with pytest.raises(ss.NotFound, match="there is no array"):
        bob.get(forged)
    assert bob.put(np.zeros(2), name="secret").shape == (2,), "names are of each owner's own"
    assert len(bob.arrays()) == 1
    assert alice.get("secret").tolist() == [1.0] * 4


# --- the end of arrays -----------------------------------------------------------------------------------------------


def ids(client: ss.Client) -> set[str]:
    return {info.id for info in client.arrays()}


def test_dropped_arrays_are_released_and_named_ones_stay(client: ss.Client) -> None:
    dropped = [client.put(np.ones(3)) for _ in range(5)]
    results = [client.exp(h) for h in dropped]
    named = client.put(np.ones(3), name="stays")
    keys, name_id = {h.id for h in (*dropped, *results)}, named.id
    del dropped, results, named
    until = time.monotonic() + 10
    while ids(client) & keys:
        assert time.monotonic() < until
        time.sleep(0.1)
    assert name_id in ids(client)
    client.delete("stays")


def test_a_loop_that_drops_its_results_does_not_fill_the_devices(client: ss.Client) -> None:
    h = client.put(np.ones((1024, 1024)))  # 8 MiB
    for _ in range(20):
        client.negative(h)
    assert len([info for info in client.arrays() if info.shape == (1024, 1024)]) <= 5


def test_threads_share_handles(client: ss.Client) -> None:
    x = np.random.default_rng(3).random((64, 64))
    h = client.put(x)

    def work(number: int) -> float:
        return float(np.asarray(client.sum(client.multiply(h, float(number)))))

    with ThreadPoolExecutor(8) as pool:
        totals = list(pool.map(work, range(40)))
    np.testing.assert_allclose(totals, [x.sum() * number for number in range(40)])


def test_the_async_client_shares_arrays_with_the_blocking_one(client: ss.Client) -> None:
    x = np.arange(12.0).reshape(3, 4)

    async def run() -> None:
        async with ss.AsyncClient(client.url) as other:
            h = await other.put(x, P("devices"))
            assert client.attach(h.id).numpy().tolist() == x.tolist()
            several = await asyncio.gather(*(other.matmul(h, x.T * n) for n in range(8)))
            for n, product in enumerate(await other.get(several)):
                np.testing.assert_allclose(product, x @ x.T * n)
            np.testing.assert_array_equal(await h[1:].numpy(), x[1:])

    asyncio.run(run())


def test_after_the_engine_s_death_an_unpinned_handle_says_so_and_a_pinned_one_works() -> None:
    with launch() as server, ss.Client(server.url) as client:
        lost, pinned = client.put(np.arange(5.0)), client.put(np.arange(6.0), P("devices"), name="kept", pinned=True)
        os.kill(server.engine_pid, signal.SIGKILL)
        eventually(lambda: not server.is_ready(), within_s=5)
        assert client.sum(pinned, keep=False) == 15.0, "the call waits for the new engine"
        with pytest.raises(ss.Expired, match="lost when the engine died; put it again, or pin it"):
            client.sum(lost)
        assert client.get("kept").tolist() == list(range(6))
        assert client.attach(pinned.id).spec == P("devices")


def test_a_name_that_moves_again_and_again_takes_the_room_of_what_it_left() -> None:
    """Replaced arrays have a last chance of a minute, but never at the cost of a call that finds no room."""
    with launch("--memory-bytes", "64MiB", devices=8) as server, ss.Client(server.url) as client:
        for turn in range(8):
            client.put(np.full(20 * 2**17, turn, np.float64), name="cat", replace=turn > 0, timeout=20)
        assert client.get("cat")[0] == 7
