"""Messages on the socket: every kind there and back, streams cut anywhere, and streams that are no messages."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardserve_proto.errors import BY_CODE, InternalError, OutOfMemory, TooLarge
from shardserve_server.link.channel import PREFIX, BrokenLink, LoopChannel, StreamDecoder, ThreadChannel, encode
from shardserve_server.link.messages import (
    Call,
    Cancel,
    Delete,
    Denied,
    Failed,
    Forget,
    Granted,
    Hello,
    Message,
    Refused,
    Released,
    Reply,
    WantBuffer,
    error_from_wire,
    error_to_wire,
)

from .harness import run, until

ERROR = error_to_wire(OutOfMemory("no room", details={"needed_bytes": 2**40}, retry_after_s=1.5))
MESSAGES: tuple[Message, ...] = (
    Hello(1, {"devices": ({"id": 0},)}),
    Refused(ERROR),
    Call(7, "ana", b"\x00header", ((0, 64), (64, 0)), 3, 4, 64, 12.5, 0.25),
    Call(8, "", b"", (), None, None, 0, None, 0.0),
    Cancel(2**40),
    WantBuffer(1, 2**40),
    Granted(1, 2, 3, 4),
    Denied(1, ERROR),
    Reply(1, b"header", ((0, 8),), None),
    Failed(1, ERROR),
    Released(9),
    Forget(5),
)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_sent(message: Message) -> None:
    ((received, payload),) = StreamDecoder().feed(encode(message, (b"pay", memoryview(b"load"))))
    assert received == message
    assert bytes(payload) == b"payload"


@given(st.data())
def test_a_stream_may_be_cut_anywhere(data: st.DataObject) -> None:
    sent = data.draw(st.lists(st.tuples(st.sampled_from(MESSAGES), st.binary(max_size=200)), max_size=6))
    stream = b"".join(encode(message, (payload,)) for message, payload in sent)
    decoder = StreamDecoder()
    received: list[tuple[Message, bytes]] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        received += [(message, bytes(payload)) for message, payload in decoder.feed(stream[:size])]
        stream = stream[size:]
    assert received == sent


@pytest.mark.parametrize(
    "stream",
    [
        PREFIX.pack(2**31, 0),
        PREFIX.pack(1, 2**31),
        PREFIX.pack(1, 0) + b"\xc1",
        PREFIX.pack(2, 0) + b"\x91\x63",
        PREFIX.pack(2, 0) + b"\x91\x04",
        PREFIX.pack(1, 0) + b"\x05",
    ],
    ids=["message too long", "payload too long", "no msgpack", "no such kind", "fields missing", "no list"],
)
def test_what_is_no_message_breaks_the_link(stream: bytes) -> None:
    with pytest.raises(BrokenLink):
        list(StreamDecoder().feed(stream))


def test_the_engines_end_reads_and_writes_the_same_stream() -> None:
    front, engine = socket.socketpair()
    with front, engine:
        channel = ThreadChannel(engine)
        front.sendall(encode(Cancel(3), (b"abc",)))
        message, payload = channel.receive()
        assert (message, bytes(payload), payload.readonly) == (Cancel(3), b"abc", True)
        channel.send(Released(4), (b"xyz",))
        assert front.recv(1000) == encode(Released(4), (b"xyz",))
        front.close()
        with pytest.raises(BrokenLink):
            channel.receive()
        with pytest.raises(BrokenLink):
            channel.send(Released(4))


def _send_often(channel: ThreadChannel, message: Message) -> None:
    for _ in range(50):
        channel.send(message, (bytes(1000),))


def test_many_threads_may_send_at_once() -> None:
    front, engine = socket.socketpair()
    with front, engine:
        channel = ThreadChannel(engine)
        threads = [threading.Thread(target=_send_often, args=(channel, Released(n))) for n in range(8)]
        for thread in threads:
            thread.start()
        decoder = StreamDecoder()
        received: list[Any] = []
        while len(received) < 400:
            received += [message for message, _ in decoder.feed(front.recv(65536))]
        for thread in threads:
            thread.join()
    assert sorted(message.lease for message in received) == sorted([*range(8)] * 50)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_the_fronts_end_lives_in_the_event_loop(loop: str) -> None:
    async def talk() -> None:
        front, engine = socket.socketpair()
        received: list[Any] = []
        ends: list[str] = []
        channel = await LoopChannel.open(
            front, on_message=lambda message, payload: received.append((message, bytes(payload))),
            on_end=lambda: ends.append("end"),
        )  # fmt: skip
        peer = ThreadChannel(engine)
        channel.send(Cancel(1), (b"abc",))
        assert (await asyncio.to_thread(peer.receive))[0] == Cancel(1)
        peer.send(Released(2), (b"xyz",))
        await until(lambda: bool(received))
        assert received == [(Released(2), b"xyz")]
        engine.close()
        await until(lambda: ends == ["end"])
        channel.send(Cancel(2))  # to nobody: dropped

    run(talk(), loop=loop)


def test_a_broken_stream_ends_the_link() -> None:
    async def talk() -> None:
        front, engine = socket.socketpair()
        ends: list[str] = []
        await LoopChannel.open(front, on_message=lambda *_: None, on_end=lambda: ends.append("end"))
        engine.sendall(b"\xff" * 64)
        await until(lambda: ends == ["end"])
        engine.close()

    run(talk())


@pytest.mark.parametrize("code", sorted(code for code, cls in BY_CODE.items() if cls.status is not None))
def test_an_error_crosses_the_link_whole(code: str) -> None:
    error = BY_CODE[code]("what was wrong", details={"axis": "x"}, retry_after_s=2.0, error_id="abc")
    received = error_from_wire(error_to_wire(error))
    assert type(received) is type(error)
    assert (received.message, received.details, received.retry_after_s, received.error_id) == (
        "what was wrong",
        {"axis": "x"},
        2.0,
        "abc",
    )


def test_an_unknown_error_is_internal() -> None:
    assert type(error_from_wire({"code": "nonsense", "message": "m"})) is InternalError


def test_a_message_that_the_other_end_would_not_take_is_refused_here() -> None:
    """It fails one call; sent, it would end the link and the engine with it."""
    with pytest.raises(TooLarge):
        encode(Delete("owner", (b"i" * 16,) * 1_200_000))
