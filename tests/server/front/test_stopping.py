"""What a front accepts at each stage of its end, and what it counts."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import structlog

from shardserve_proto.errors import Draining, EngineLost, EngineStarting
from shardserve_server.front.app import create_app
from shardserve_server.front.server import ExitStatus, bind, make_server
from shardserve_server.front.stopping import Door, Stage, Stopping
from shardserve_server.link.buffers import BufferPool
from shardserve_server.settings import Settings

from .serving import FakeEngine


def ask(door: Door, path: str) -> None:
    asyncio.run(door({"type": "http", "path": path}, None, None))  # type: ignore[arg-type]


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    pass


def test_a_front_that_serves_accepts_everything_and_counts_it() -> None:
    stopping = Stopping()
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["path"], stopping.active))

    for path in ("/v1/call", "/livez", "/readyz"):
        ask(Door(app, stopping), path)
    assert seen == [("/v1/call", 1), ("/livez", 0), ("/readyz", 0)]
    assert (stopping.active, stopping.given_up) == (0, 0)


@pytest.mark.parametrize("stage", [Stage.DRAINING, Stage.HURRYING])
def test_a_front_that_stops_refuses_all_but_the_sign_of_life(stage: Stage) -> None:
    stopping = Stopping()
    stopping.enter(stage)
    door = Door(nothing, stopping)
    ask(door, "/livez")
    for path in ("/v1/call", "/readyz", "/v1/info"):
        with pytest.raises(Draining) as caught:
            ask(door, path)
        assert caught.value.retry_after_s
    assert stopping.given_up == 0, "what was refused was never accepted"


def test_there_is_no_way_back() -> None:
    stopping = Stopping()
    stopping.enter(Stage.HURRYING)
    stopping.enter(Stage.DRAINING)
    assert stopping.stage == Stage.HURRYING


@pytest.mark.parametrize("error", [Draining("x"), EngineLost("x"), EngineStarting("x"), asyncio.CancelledError()])
def test_an_accepted_request_that_fails_during_a_stop_counts_as_given_up(error: BaseException) -> None:
    for stage, given_up in ((Stage.SERVING, 0), (Stage.DRAINING, 1), (Stage.HURRYING, 1)):
        stopping = Stopping()

        async def app(scope: Any, receive: Any, send: Any, now: Stage = stage, of: Stopping = stopping) -> None:
            of.enter(now)
            raise error

        with pytest.raises(type(error)):
            ask(Door(app, stopping), "/v1/call")
        assert (stopping.active, stopping.given_up) == (0, given_up)


def test_probes_are_no_use_and_a_request_is_one_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    stopping = Stopping()
    now = 110.0
    for path in ("/livez", "/readyz"):
        ask(Door(nothing, stopping), path)
    assert stopping.idle_s == 10.0
    stopping.active = 1
    assert stopping.idle_s == 0.0
    stopping.active = 0
    ask(Door(nothing, stopping), "/v1/info")
    assert stopping.idle_s == 0.0


def test_a_front_that_cannot_start_says_why_and_ends_as_a_fault(log: list[structlog.typing.EventDict]) -> None:
    class Broken(FakeEngine):
        async def start(self) -> None:
            raise PermissionError(13, "Permission denied")

    settings = Settings(port=0)
    pool = BufferPool(kind="memfd", limit_bytes=2**20, spare_bytes=0)
    with bind(settings) as listener:
        server = make_server(create_app(settings, engine=Broken(pool), pool=pool), settings)
        with pytest.raises(RuntimeError, match="could not start; the log says why"):
            server.run(sockets=[listener])
    assert [line["event"] for line in log] == ["cannot start"]
    assert 1 not in set(ExitStatus), "that status is left to faults"


def test_a_port_in_use_is_named_with_what_finds_its_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ValueError, match=rf"setting port .*127\.0\.0\.1:{port}: .* in use; `ss -ltnp`"):
            bind(Settings(port=port))
