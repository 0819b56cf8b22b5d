"""A buffer must not be used again while its bytes are still to be sent, and a test that shows what happens if it is.

The pool of these tests overwrites each buffer at the moment it is released. Slow readers make sure that most of a reply
still waits in the server then.
"""

from __future__ import annotations

import hashlib
import socket
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from shardserve_proto.frames import MEDIA_TYPE
from shardserve_server.front.app import make_engine
from shardserve_server.front.protocol import Connection
from shardserve_server.link.buffers import BufferPool, Lease
from shardserve_server.settings import Settings
from tests.server.front.serving import Served, eventually, frame, post_head, read_answer, serving

MIB = 2**20
CLIENTS = 8
ROUNDS = 2
REPLY_BYTES = 6 * MIB


class OverwritingPool(BufferPool):
    """Spoils each buffer when its lease is over, so that a byte that is sent too late is another one."""

    def take_back(self, lease: Lease) -> None:
        lease.view[:] = b"\xa5" * lease.nbytes
        super().take_back(lease)


@pytest.fixture(scope="module", params=["uvloop", "asyncio"])
def front(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A front with a real engine, on each event loop."""
    settings = Settings(port=0, devices=8, event_loop=request.param, stop_grace_s=1)
    pool = OverwritingPool(kind="memfd", limit_bytes=2**29, spare_bytes=2**28)
    with serving(settings=settings, pool=pool, make_engine=lambda pool: make_engine(settings, pool)) as served:
        eventually(lambda: served.request("GET", "/readyz").status == 200, within_s=50)
        yield served


def download_slowly(front: Served, seed: int) -> bool:
    """Whether a large reply is what was sent, read by a client whose buffers are small and who is slow."""
    sent = np.random.default_rng(seed).integers(0, 256, REPLY_BYTES, np.uint8)
    body = frame("identity", sent)
    stream = socket.socket()
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with stream:
        stream.settimeout(30)
        stream.connect(("127.0.0.1", front.port))
        stream.sendall(post_head("/v1/call", len(body)) + body)
        time.sleep(0.3)  # by now the reply waits, as much of it as the server lets wait
        answer = read_answer(stream)
    assert answer.headers["content-type"] == MEDIA_TYPE
    (received,) = answer.arrays
    return hashlib.sha256(received.tobytes()).digest() == hashlib.sha256(sent.tobytes()).digest()


def download_together(front: Served) -> list[bool]:
    """Whether each of many replies is right, when they are downloaded at the same time."""
    right: list[bool] = []

    def work(client: int) -> None:
        for turn in range(ROUNDS):
            right.append(download_slowly(front, 1000 * client + turn))

    threads = [threading.Thread(target=work, args=(client,)) for client in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(right) == CLIENTS * ROUNDS
    return right


def test_no_reply_holds_a_byte_of_another_ones_buffer(front: Served) -> None:
    assert all(download_together(front))
    eventually(lambda: front.pool.usage().leases == 0)


def test_a_build_that_releases_early_is_caught(front: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: without the wait for the empty write buffer the test above fails."""
    if front.settings.event_loop == "asyncio" and sys.version_info < (3, 12):
        pytest.skip("asyncio copies what it cannot send at once before Python 3.12")
    monkeypatch.setattr(Connection, "when_flushed", lambda _, callback: callback())
    assert not all(download_together(front))
