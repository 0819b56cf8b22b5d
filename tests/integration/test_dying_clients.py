"""D3: a client may die at any point; whatever was reserved or lent for it comes back, and nothing else goes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from shardserve_server.front.app import make_engine
from shardserve_server.link.buffers import BufferPool
from shardserve_server.link.transfer import Upload
from shardserve_server.settings import Settings
from tests.server.front.serving import eventually, serving

from .dying import POINTS, Victim
from .serving import launch

#: Spare buffers keep their descriptors, so without them the numbers before and after are equal.
NO_SPARES = {"SHARDSERVE_SPARE_BUFFER_BYTES": "0"}
LONG_ROUNDS = 100


@contextmanager
def victim_of_its_own() -> Iterator[Victim]:
    with launch(environment=NO_SPARES) as server, Victim(server.port, (server.pid, server.engine_pid)) as victim:
        victim.prepare()
        yield victim


def test_a_client_that_dies_anywhere_leaves_nothing_behind() -> None:
    """D3: twenty points of upload, compute and download, twice."""
    with victim_of_its_own() as victim:
        report = victim.rounds(2)
        assert set(report.died.values()) == {2 * POINTS}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_clients_that_die_for_a_hundred_rounds_leave_nothing_behind() -> None:
    """D3, in full."""
    with victim_of_its_own() as victim:
        print(f"\n{victim.rounds(LONG_ROUNDS)}")


def test_a_server_that_forgets_one_release_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: one buffer of all is not given back, and the loop above ends in a failure."""
    settings = Settings(port=0, devices=2, stop_grace_s=1)
    pool = BufferPool(kind="memfd", limit_bytes=2**29, spare_bytes=0)
    release, forgotten = Upload.release, list[Upload]()

    def forgetful(upload: Upload) -> None:
        if upload.lease is not None and not forgotten:
            forgotten.append(upload)
        else:
            release(upload)

    with serving(settings=settings, pool=pool, make_engine=lambda pool: make_engine(settings, pool)) as served:
        eventually(lambda: served.request("GET", "/readyz").status == 200, within_s=50)
        with Victim(served.port, (os.getpid(), os.getpid()), within_s=1.0) as victim:
            victim.prepare()
            monkeypatch.setattr(Upload, "release", forgetful)
            with pytest.raises(AssertionError, match="did not happen in time"):
                victim.round(0)
        assert forgotten
