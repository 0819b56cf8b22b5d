"""SPEC.md says what the code does: its tables are read and compared."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from shardserve_proto.dtypes import DTYPES
from shardserve_proto.errors import BY_CODE
from shardserve_proto.frames import ALIGNMENT, MAGIC, MEDIA_TYPE, PRELUDE_BYTES, VERSION
from shardserve_proto.limits import LIMITS
from shardserve_proto.messages import CallReply, CallRequest, PlacementReport, Report, Segment
from shardserve_proto.programs import Mapping, Program, Step
from shardserve_proto.signatures import BUILTIN
from shardserve_proto.specs import Axes

SPEC = (Path(__file__).parents[2] / "proto_schemas" / "SPEC.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """The text under one heading."""
    match = re.search(rf"^##+ {re.escape(title)}$(.*?)(?=^##|\Z)", SPEC, re.DOTALL | re.MULTILINE)
    assert match, title
    return match[1]


def rows(text: str) -> list[list[str]]:
    """The cells of every table line."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def first_cells(text: str) -> list[str]:
    return [row[0].strip("`") for row in rows(text) if row[0].startswith("`")]


def test_the_limits_are_those_of_the_code() -> None:
    written = {row[0].strip("`"): int(row[1]) for row in rows(section("10. Limits")) if row[0].startswith("`")}
    assert written == LIMITS.as_dict()


def test_every_dtype_is_listed_with_its_itemsize() -> None:
    listed: dict[str, set[int]] = {}
    for row in rows(section("3. Arrays")):
        if len(row) == 3 and row[1][:1].isdigit():
            sizes = {int(size) for size in row[1].split(",")}
            listed |= dict.fromkeys(re.findall(r"`(\w+)`", row[0]), sizes)
    assert listed.keys() == DTYPES.keys()
    assert all(DTYPES[name].itemsize in sizes for name, sizes in listed.items())


@pytest.mark.parametrize(
    ("title", "model"),
    [("4. Calls", CallRequest), ("5. Programs", Program), ("5.1 Steps", Step)],
)
def test_every_field_of_a_message_is_described(title: str, model: type[BaseModel]) -> None:
    assert [name for name in first_cells(section(title)) if name in model.model_fields] == list(model.model_fields)


def test_every_field_of_arrays_mappings_and_replies_is_described() -> None:
    assert list(Segment.model_fields) == first_cells(section("3. Arrays"))[:3]
    assert [*Mapping.model_fields, *Axes.model_fields] == first_cells(section("5.3 Mappings"))
    replies = section("6. Replies")
    assert list(CallReply.model_fields) == first_cells(replies)[:2]
    assert all(f"`{name}`" in replies for name in (*Report.model_fields, *PlacementReport.model_fields))


def test_every_code_of_the_wire_is_listed_under_its_status() -> None:
    listed: dict[str, Any] = {}
    for row in rows(section("7. Errors")):
        if row[0][:1].isdigit():
            statuses, codes = re.findall(r"\d+", row[0]), re.findall(r"`(\w+)`", row[1])
            pairs = zip(statuses, codes, strict=True) if len(statuses) > 1 else ((statuses[0], code) for code in codes)
            listed |= {code: int(status) for status, code in pairs}
    assert listed == {code: cls.status for code, cls in BY_CODE.items() if cls.status}


def test_every_built_in_kernel_is_listed_with_its_operands_and_parameters() -> None:
    listed: dict[str, Any] = {}
    for row in rows(section("5.2 Kernels")):
        parameters = re.findall(r"`([a-z_]+)`", row[2])
        listed |= dict.fromkeys(re.findall(r"`(\w+)`", row[0]), (row[1], parameters))
    assert listed.keys() == BUILTIN.keys()
    for name, (operands, parameters) in listed.items():
        signature = BUILTIN[name]
        assert parameters == [parameter.name for parameter in signature.parameters], name
        assert operands == ("one or more" if signature.is_variadic else ", ".join(signature.operands)), name


def test_the_constants_of_the_frame_are_written() -> None:
    assert " ".join(f"{byte:02x}" for byte in MAGIC) in SPEC
    assert MEDIA_TYPE in SPEC
    assert f"version {VERSION}" in SPEC
    assert f"multiple of {ALIGNMENT}" in SPEC
    assert f"align({PRELUDE_BYTES} + H)" in SPEC


def test_links_lead_somewhere() -> None:
    root = Path(__file__).parents[2] / "proto_schemas"
    targets = re.findall(r"\]\(([^)#]+)\)", SPEC)
    assert targets
    assert all((root / target).exists() for target in targets)
    headings = re.findall(r"^##+ (.*)$", SPEC, re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", SPEC)) <= anchors
