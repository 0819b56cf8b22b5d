"""The log is never a reason for anything to fail."""

from __future__ import annotations

import io
from typing import TextIO

import pytest

from shardserve_server.link.log import Sink


def closed() -> TextIO:
    file = io.StringIO()
    file.close()
    return file


@pytest.mark.parametrize("make", [closed, lambda: None, lambda: open("/dev/full", "w", buffering=1)])  # noqa: SIM115
def test_a_line_that_cannot_be_written_is_counted(make: object) -> None:
    file = make()  # type: ignore[operator]
    sink = Sink(file)
    sink.write("one\n")
    sink.flush()
    assert sink.lost >= 1
    if file is not None:
        try:
            file.close()
        except OSError:
            return


def test_a_line_that_can_be_written_is() -> None:
    file = io.StringIO()
    sink = Sink(file)
    sink.write("one\n")
    sink.flush()
    assert (file.getvalue(), sink.lost) == ("one\n", 0)
