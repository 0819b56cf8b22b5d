"""D2: many calls that fit alone, at the same time, on a server that has room for a few of them."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TypeVar

import numpy as np
import pytest

import shardserve as ss
from tests.server.front.serving import Answer, eventually, frame, post_head, read_answer

from .serving import RunningServer, launch

MIB = 2**20
CLIENTS = 32
ROOM = 32 * MIB
R = TypeVar("R")
X = np.random.default_rng(0).random(6 * MIB // 8)


@pytest.fixture(scope="module")
def narrow() -> Iterator[RunningServer]:
    """Room for four or five uploads, in shared buffers and on the devices."""
    with launch("--buffer-bytes", "32MiB", "--memory-bytes", "32MiB", devices=8) as server:
        yield server


@contextmanager
def sampled(server: RunningServer) -> Iterator[list[tuple[int, int]]]:
    """What devices and shared buffers hold, looked at every 10 ms."""
    samples: list[tuple[int, int]] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.01):
            memory = server.request("GET", "/v1/memory").json
            samples.append((memory["resident_bytes"] + memory["reserved_bytes"], memory["transit_bytes"]))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()


def all_at_once(work: Callable[[int], R]) -> list[R]:
    """What each of the clients got, who begin together."""
    barrier = threading.Barrier(CLIENTS)

    def one(number: int) -> R:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(one, range(CLIENTS)))


def call_once(server: RunningServer) -> Answer:
    """A client that asks before it sends, and reads the refusal that ends its upload."""
    body = frame("sum", X)
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as stream:
        stream.sendall(post_head("/v1/call", len(body), Expect="100-continue"))
        if stream.recv(1, socket.MSG_PEEK) and b" 100 " in stream.recv(25, socket.MSG_PEEK):
            stream.recv(25)
            with suppress(BrokenPipeError, ConnectionResetError):
                stream.sendall(body)
        return read_answer(stream)


def test_uploads_together_never_take_more_than_there_is_and_the_rest_is_told_when_to_come_again(
    narrow: RunningServer,
) -> None:
    """D2: without patience, 200 or 507 with Retry-After; never more bytes than there are; at the end none."""
    with sampled(narrow) as samples:
        answers = all_at_once(lambda _: call_once(narrow))
    found = Counter(answer.status for answer in answers)
    assert set(found) == {200, 507}, found
    for answer in answers:
        if answer.status == 200:
            np.testing.assert_allclose(answer.arrays[0], X.sum())
        else:
            assert answer.code == "out_of_memory"
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json["error"]["details"]["is_transient"] is True
    check_bounds(samples)
    eventually(lambda: narrow.request("GET", "/v1/memory").json["transit_bytes"] == 0)


def test_every_client_of_the_sdk_succeeds_by_coming_again(narrow: RunningServer) -> None:
    """D2: the SDK waits for a shortage that passes, so that nobody sees it."""
    with sampled(narrow) as samples, ss.Client(narrow.url, timeout=50.0) as client:
        totals = all_at_once(lambda number: client.sum(X + number))
    for number, total in enumerate(totals):
        np.testing.assert_allclose(total, X.sum() + number * X.size)
    check_bounds(samples)


def check_bounds(samples: list[tuple[int, int]]) -> None:
    assert max(held for held, _ in samples) <= ROOM
    assert 0 < max(lent for _, lent in samples) <= ROOM


def test_the_sdk_waits_no_longer_than_its_timeout_and_not_at_all_for_arrays_that_stay(narrow: RunningServer) -> None:
    """D2: resident arrays do not go away by waiting; who holds the room is told at once."""
    with ss.Client(narrow.url, timeout=30.0) as client:
        held = client.put(np.zeros(24 * MIB // 8), name="held")
        began = time.monotonic()
        with pytest.raises(ss.OutOfMemory, match="delete some") as caught:
            client.put(np.zeros(12 * MIB // 8))
        assert time.monotonic() - began < 5
        assert caught.value.details["is_transient"] is False
        assert [holder["name"] for holder in caught.value.details["holders"]] == ["held"]
        client.delete(held)
        client.put(np.zeros(12 * MIB // 8)).delete()
