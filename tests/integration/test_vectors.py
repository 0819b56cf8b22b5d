"""The golden frames over a real socket: what SPEC.md promises about bytes holds for the server, too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardserve_proto.errors import BY_CODE
from shardserve_proto.frames import MEDIA_TYPE
from tests.server.front.serving import Served, serving

FOLDER = Path(__file__).parents[2] / "proto_schemas" / "vectors"
BAD = sorted(path.stem for path in FOLDER.glob("bad-*.bin"))


@pytest.fixture(scope="module")
def front() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.mark.parametrize("name", BAD)
def test_a_malformed_frame_gets_the_status_and_code_that_are_described(front: Served, name: str) -> None:
    expected = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["error"]
    answer = front.request(
        "POST", "/v1/call", body=(FOLDER / f"{name}.bin").read_bytes(), headers={"Content-Type": MEDIA_TYPE}
    )
    assert (answer.status, answer.code) == (BY_CODE[expected].status, expected)


def test_no_malformed_frame_reached_the_engine(front: Served) -> None:
    assert front.engine.headers == []
    assert front.call("identity").status == 200
