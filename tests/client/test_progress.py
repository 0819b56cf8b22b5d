"""Large transfers tell how far they are."""

from __future__ import annotations

import asyncio
import builtins
import time
from typing import Any

import numpy as np
import pytest

import shardserve as ss
from shardserve import _progress
from shardserve._progress import Meter

from .replies import frame, http, refusal

LARGE = np.arange(2**20, dtype=np.float64)
X = np.arange(3.0)


@pytest.fixture
def told() -> list[ss.Progress]:
    return []


def test_both_directions_are_told_to_their_end(raw_server: Any, told: list[ss.Progress]) -> None:
    with ss.Client(raw_server(http(frame(LARGE))).url, progress=told.append) as client:
        call = client.call("identity", LARGE)
    for direction, nbytes in (("sent", call.sent_bytes), ("received", call.received_bytes)):
        steps = [p for p in told if p.direction == direction]
        assert steps[-1].done_bytes == steps[-1].total_bytes == nbytes
        assert sorted(p.done_bytes for p in steps) == [p.done_bytes for p in steps]


def test_the_async_client_tells_too(raw_server: Any, told: list[ss.Progress]) -> None:
    async def use() -> None:
        async with ss.AsyncClient(raw_server(http(frame(LARGE))).url) as client:
            await client.identity(LARGE, progress=told.append)

    asyncio.run(use())
    ends = {p.direction for p in told if p.done_bytes == p.total_bytes}
    assert ends == {"sent", "received"}


def test_small_bodies_are_not_told(raw_server: Any, told: list[ss.Progress]) -> None:
    with ss.Client(raw_server(http(frame(X))).url, progress=told.append) as client:
        client.identity(X)
    assert not told


def test_a_call_may_turn_off_what_the_client_shows(raw_server: Any, told: list[ss.Progress]) -> None:
    with ss.Client(raw_server(http(frame(LARGE))).url, progress=told.append) as client:
        client.identity(LARGE, progress=None)
    assert not told


def test_it_is_told_about_ten_times_a_second(told: list[ss.Progress]) -> None:
    meter = Meter.of(told.append, "sent", 2**30)
    assert meter is not None
    started = time.monotonic()
    while time.monotonic() - started < 0.35:
        meter.moved(1)
    assert 2 <= len(told) <= 4


def test_what_the_function_raises_ends_the_call(raw_server: Any) -> None:
    def stop(progress: ss.Progress) -> None:
        raise OSError("enough")  # not taken for one of the connection

    server = raw_server(http(frame(X)))
    with ss.Client(server.url) as client:
        with pytest.raises(OSError, match="enough"):
            client.identity(LARGE, progress=stop)
        np.testing.assert_array_equal(client.identity(X), X)
    assert len(server.requests) <= 2


def test_the_end_of_a_transfer_that_fails_is_told_once(
    raw_server: Any, told: list[ss.Progress], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_progress, "PROGRESS_S", 0.0)
    short = http(frame(LARGE))[: LARGE.nbytes // 2]
    server = raw_server(lambda connection: connection.sendall(short))
    with ss.Client(server.url, progress=told.append) as client, pytest.raises(ss.BadReply):
        client.identity(LARGE)
    assert [p.is_over for p in told].count(True) == 2
    assert told[-1].has_failed
    assert told[-1].done_bytes < told[-1].total_bytes
    assert len({p.transfer for p in told}) == 2


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(ss.InvalidRequest, match="progress is a function"):
        ss.Client("http://127.0.0.1:9", progress=True)  # type: ignore[arg-type]


# --- the bar ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any) -> Any:
        if name.startswith("rich"):
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", refuse)


def test_the_bar_shows_a_transfer_and_ends_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    bar = ss.progress_bar()
    for done in (0, 2**20, 2**21):
        bar(ss.Progress("sent", done, 2**21))
    shown = capsys.readouterr()
    assert "sent" in shown.err
    assert "2.0/2.0 MiB" in shown.err
    assert shown.out == ""
    assert not bar._transfers


@pytest.mark.usefixtures("without_rich")
def test_without_rich_the_bar_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    bar = ss.progress_bar()
    bar(ss.Progress("received", 2**20, 2**21))
    bar(ss.Progress("received", 2**21, 2**21))
    shown = capsys.readouterr().err
    assert "\rreceived 1 of 2 MiB, 50%" in shown
    assert shown.endswith("\n")


@pytest.mark.usefixtures("without_rich")
def test_a_bar_is_not_left_standing_by_a_call_that_fails(raw_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_progress, "PROGRESS_S", 0.0)
    short = http(frame(LARGE))[: LARGE.nbytes // 2]
    server = raw_server(refusal(ss.TooLarge("no")), lambda connection: connection.sendall(short))
    bar = ss.progress_bar()
    with ss.Client(server.url, progress=bar) as client:
        with pytest.raises(ss.TooLarge):
            client.identity(LARGE)
        assert not bar._transfers
        with pytest.raises(ss.BadReply):
            client.identity(LARGE)
        assert not bar._transfers


def test_transfers_at_the_same_time_have_a_bar_each(capsys: pytest.CaptureFixture[str]) -> None:
    bar = ss.progress_bar()
    bar(ss.Progress("sent", 2**20, 2**22, transfer=1))
    bar(ss.Progress("sent", 2**21, 2**23, transfer=2))
    picture = bar._picture
    bar(ss.Progress("sent", 2**22, 2**22, transfer=1))
    assert bar._picture is picture, "the other one goes on"
    bar(ss.Progress("sent", 2**21, 2**23, transfer=2, has_failed=True))
    assert bar._picture is None
    shown = capsys.readouterr().err
    assert "4.0/4.0 MiB" in shown
    assert "sent, failed" in shown
    assert "2.0/8.0 MiB" in shown


@pytest.mark.usefixtures("without_rich")
def test_transfers_at_the_same_time_share_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    bar = ss.progress_bar()
    bar(ss.Progress("sent", 2**20, 2**22, transfer=1))
    bar(ss.Progress("sent", 2**20, 2**22, transfer=2))
    bar.stop()
    shown = capsys.readouterr().err
    assert "\rsent 2 of 8 MiB, 25%" in shown
    assert shown.endswith("\n")


def test_a_callback_is_only_called() -> None:
    """Not stopped, though it may have such a method: it may be anything of the caller's."""
    from shardserve._asks import Ask

    class Callback:
        def __call__(self, progress: ss.Progress) -> None: ...

        def stop(self) -> None:
            pytest.fail("nobody asked for that")

    exchange = Ask("GET", "/v1/info", dict, None)
    exchange.progress = Callback()
    exchange.failed()
