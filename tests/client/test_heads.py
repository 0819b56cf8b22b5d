"""Heads of answers and chunked bodies are read strictly and within bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardserve as ss
from shardserve._heads import FIELDS, HEAD_BYTES, Chunks, head_end, parse_head


def test_a_head_is_read_with_its_fields_in_lower_case() -> None:
    head = parse_head(b"HTTP/1.1 200 OK\r\nContent-Length:  12 \r\nRetry-After: 1\r\nX-a: 1\r\nX-A: 2\r\nempty:")
    assert head.status == 200
    assert head.fields == {"content-length": "12", "retry-after": "1", "x-a": "1, 2", "empty": ""}
    assert (head.body_bytes, head.is_chunked, head.is_last) == (12, False, False)


@pytest.mark.parametrize(
    ("head", "framing"),
    [
        (b"HTTP/1.1 200 OK", (None, False, True)),
        (b"HTTP/1.1 200", (None, False, True)),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 3", (3, False, True)),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 3", (3, False, False)),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nconnection: Close", (3, False, True)),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked", (None, True, False)),
        (b"HTTP/1.1 204 No Content", (0, False, False)),
        (b"HTTP/1.1 100 Continue", (0, False, False)),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9", (0, False, False)),
    ],
)
def test_the_end_of_the_body_follows_from_the_head(head: bytes, framing: tuple[int | None, bool, bool]) -> None:
    assert parse_head(head)[2:] == framing


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"HTTP/2 200 OK",
        b"HTTP/1.1  200 OK",
        b"HTTP/1.1 99 OK",
        b"HTTP/1.1 600 OK",
        b"HTTP/1.1 2000 OK",
        b"http/1.1 200 OK",
        b"HTTP/1.1 200 OK\r\nfolded: 1\r\n 2",
        b"HTTP/1.1 200 OK\r\nname : value",
        b"HTTP/1.1 200 OK\r\n: value",
        b"HTTP/1.1 200 OK\r\nno colon",
        b"HTTP/1.1 200 OK\nname: value",
        b"HTTP/1.1 200 OK\r\nname: a\nb",
        b"HTTP/1.1 200 OK\r\nname: a\0b",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1",
        b"HTTP/1.1 200 OK\r\ncontent-length: +1",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1, 1",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2",
        b"HTTP/1.1 200 OK\r\ncontent-length: \xb2",
        b"HTTP/1.1 200 OK\r\ncontent-length: " + b"9" * 20,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 1",
        b"HTTP/1.1 200 OK" + b"\r\na: b" * (FIELDS + 1),
    ],
)
def test_a_head_that_breaks_a_rule_is_a_bad_reply(head: bytes) -> None:
    with pytest.raises(ss.BadReply):
        parse_head(head)


@given(st.binary(max_size=200))
def test_no_bytes_make_the_parser_fail_in_another_way(data: bytes) -> None:
    for start in (b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: "):
        try:
            assert parse_head(start + data).status >= 100
        except ss.BadReply:
            continue


def test_the_end_of_a_head_is_found_once_it_is_there() -> None:
    head = b"HTTP/1.1 200 OK\r\na: b\r\n\r\n"
    assert all(head_end(head[:end]) == -1 for end in range(len(head)))
    assert head_end(head + b"body\r\n\r\n") == len(head) - 4


@pytest.mark.parametrize("start", [b"SSH-2.0-OpenSSH_9", b"\x15\x03\x01" * 9, b"HTTP/1.1 2000 OK", b"HTTP/1.1 20x OK"])
def test_what_is_no_http_is_refused_at_its_beginning(start: bytes) -> None:
    with pytest.raises(ss.BadReply, match="no HTTP/1.1"):
        head_end(start)


def test_a_head_longer_than_64_kib_is_refused_before_its_end_comes() -> None:
    start = b"HTTP/1.1 200 OK\r\na: "
    assert head_end(start + b"x" * (HEAD_BYTES - len(start) - 1)) == -1
    with pytest.raises(ss.BadReply, match="longer than 65536 bytes"):
        head_end(start + b"x" * (HEAD_BYTES - len(start)))


# --- chunks ----------------------------------------------------------------------------------------------------------


def unchunk(data: bytes, step: int) -> tuple[bytes, bool]:
    chunks = Chunks()
    body = b""
    for start in range(0, len(data), step):
        body += b"".join(bytes(piece) for piece in chunks.feed(data[start : start + step]))
    return body, chunks.is_done


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_chunks_may_come_in_any_pieces(step: int) -> None:
    data = b"5\r\nhello\r\n0006;name=value\r\n world\r\nA \r\n0123456789\r\n0\r\ntrailer: x\r\n\r\n"
    assert unchunk(data, step) == (b"hello world0123456789", True)
    assert unchunk(data[:-1], step)[1] is False


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"x\r\n", "no size"),
        (b"-5\r\nhello\r\n", "no size"),
        (b"\r\n", "no size"),
        (b"1" * 16 + b"\r\n", "no size"),
        (b"5" + b" " * 2000, "no size"),
        (b"5\nhello", "carriage return"),
        (b"5\r\nhello!\r\n", "longer than its size"),
        (b"0\r\n\r\nmore", "follow the last chunk"),
        (b"0\r\n" + b"a: b\r\n" * 200, "does not end"),
    ],
)
def test_chunks_that_break_a_rule_are_a_bad_reply(data: bytes, message: str) -> None:
    for step in (1, 5000):
        with pytest.raises(ss.BadReply, match=message):
            unchunk(data, step)
