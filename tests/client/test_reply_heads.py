"""Headers of replies are remembered, and what is remembered says nothing about another reply."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import shardserve as ss
from shardserve import _reply_heads
from shardserve._reply_heads import read_reply_head
from shardserve_proto.abstract import Aval
from shardserve_proto.frames import decode_header, encode_header
from shardserve_proto.messages import CallReply

from .replies import header

X = np.arange(12.0).reshape(3, 4)
EXPECTED = [Aval((3, 4), np.dtype(np.float64))]


def head_of(seconds: Any = 0.25, *, array: Any = X, **more: Any) -> bytes:
    fields = header([array])
    fields["report"]["phases_s"] = {"run": seconds}
    return encode_header(fields | more)


@pytest.fixture(autouse=True)
def full_reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The headers that were read in full."""
    read: list[bytes] = []

    def counted(data: bytes) -> Any:
        read.append(data)
        return decode_header(data)

    monkeypatch.setattr(_reply_heads, "decode_header", counted)
    monkeypatch.setattr(_reply_heads, "_known", type(_reply_heads._known)(8))
    return read


def test_an_equal_reply_is_read_in_full_once_and_keeps_its_own_seconds(full_reads: list[bytes]) -> None:
    for number in range(4):
        data = head_of(number / 7)
        head, report = read_reply_head(data, declared=1, expected=EXPECTED)
        whole = CallReply.model_validate(decode_header(data))
        assert report == whole.report
        assert head.arrays == (((3, 4), np.dtype(np.float64)),)
    assert len(full_reads) == 1


def test_another_reply_is_read_in_full(full_reads: list[bytes]) -> None:
    read_reply_head(head_of(), declared=1, expected=EXPECTED)
    with pytest.raises(ss.BadReply, match="result 0 of the server is"):
        read_reply_head(head_of(array=X.T.copy()), declared=1, expected=EXPECTED)
    assert len(full_reads) == 2


def test_a_remembered_reply_is_held_against_what_this_call_expects() -> None:
    read_reply_head(head_of(), declared=1, expected=EXPECTED)
    with pytest.raises(ss.BadReply, match=r"float64\[3, 4\], but the program gives float32\[\]"):
        read_reply_head(head_of(), declared=1, expected=[Aval((), np.dtype(np.float32))])
    with pytest.raises(ss.BadFrame):
        read_reply_head(head_of(), declared=2, expected=EXPECTED)


@pytest.mark.parametrize("tail", ["text", None, {"x": 1.0}, [1.0], True, b"12345678"])
def test_seconds_that_are_none_are_refused_behind_a_remembered_beginning_too(tail: Any) -> None:
    read_reply_head(head_of(), declared=1, expected=EXPECTED)
    with pytest.raises(ss.ShardserveError):
        read_reply_head(head_of(tail), declared=1, expected=EXPECTED)


def test_a_reply_with_more_behind_its_seconds_is_read_in_full(full_reads: list[bytes]) -> None:
    for _ in range(2):
        _, report = read_reply_head(head_of(later={"phases_s": {"run": 9.0}}), declared=1, expected=EXPECTED)
        assert report.phases_s == {"run": 0.25}
    assert len(full_reads) >= 2


def test_a_long_header_is_not_kept() -> None:
    read_reply_head(head_of(later="x" * 5000), declared=1, expected=EXPECTED)
    assert not len(_reply_heads._known)
