"""What a client gives back besides arrays: calls with their reports, logs, devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

from shardserve_proto.messages import DeviceInfo, Report

from ._repr import describe_report, picture, seconds, size


@dataclass(frozen=True)
class Call:
    """One call that was answered.

    Attributes:
        title: the kernel's or the function's name.
        value: the result, or a tree of them.
        report: what the server did.
        sent_bytes, received_bytes: of the bodies.
        elapsed_s: from the start of the call to the last byte of its answer.
    """

    title: str
    value: Any = field(repr=False)
    report: Report = field(repr=False)
    sent_bytes: int
    received_bytes: int
    elapsed_s: float

    def picture(self, result: int = 0) -> str:
        """Which device held which part of a result, as text."""
        return picture(self.report.outputs[result], self.report)

    def __str__(self) -> str:
        traffic = f"{size(self.sent_bytes)} sent, {size(self.received_bytes)} received"
        return "\n  ".join([f"{self.title}: {seconds(self.elapsed_s)}, {traffic}", *describe_report(self.report)])


class Log(Sequence[Call]):
    """The calls of a `client.record()` block, without their values; `print` shows them."""

    def __init__(self) -> None:
        self._calls: list[Call] = []

    def add(self, call: Call) -> None:
        """Note a call; its arrays are not kept alive."""
        self._calls.append(replace(call, value=None))

    @overload
    def __getitem__(self, index: int) -> Call: ...
    @overload
    def __getitem__(self, index: slice) -> list[Call]: ...
    def __getitem__(self, index: int | slice) -> Call | list[Call]:
        return self._calls[index]

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Call]:
        return iter(list(self._calls))

    def __str__(self) -> str:
        return "\n".join(f"{number}. {call}" for number, call in enumerate(self, start=1)) or "no calls"


@dataclass(frozen=True)
class Device:
    """One device of a server.

    Attributes:
        id: as in reports.
        kind: such as "TPU v5e".
        platform: "cpu", "gpu" or "tpu".
        process: of the engine that owns it.
    """

    id: int
    kind: str
    platform: str
    process: int = 0

    @classmethod
    def of(cls, info: DeviceInfo) -> Device:
        return cls(info.id, info.kind, info.platform, info.process)
