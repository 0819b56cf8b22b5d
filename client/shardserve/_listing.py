"""Listings of arrays as tables of text."""

from __future__ import annotations

from collections.abc import Sequence

from shardserve_proto.messages import ArrayInfo, Holder, MemoryInfo
from shardserve_proto.specs import describe_mesh, spec_from_wire

from ._repr import size

HEADINGS = ("name", "id", "array", "spec", "mesh", "bytes", "on devices", "lease")
HOLDER_HEADINGS = ("holder", "array", "on devices", "age")


class ArrayList(list[ArrayInfo]):
    """Arrays of a server, which print as a table."""

    def __repr__(self) -> str:
        if not self:
            return "no arrays"
        return table(HEADINGS, [array_row(info) for info in self])

    __str__ = __repr__


class Ledger(MemoryInfo):
    """A server's ledger, which prints as a table."""

    def __str__(self) -> str:
        rows = [
            (
                "resident arrays",
                size(self.resident_bytes),
                f"{size(self.own_resident_bytes)} in {self.arrays} of yours",
            ),
            ("running calls", size(self.reserved_bytes), f"of {size(self.device_limit_bytes)} on the devices"),
            ("shared buffers", size(self.transit_bytes), f"of {size(self.transit_limit_bytes)}"),
            ("spare buffers", size(self.spare_bytes), ""),
            ("pinned host copies", size(self.pinned_bytes), ""),
        ]
        return "\n".join(
            [table(("what", "bytes", ""), rows), "", table(HOLDER_HEADINGS, list(map(holder_row, self.holders)))]
        )


def holder_row(holder: Holder) -> tuple[str, ...]:
    """One holder in words, as HOLDER_HEADINGS say."""
    # Of the others' arrays only the declared ones have an id here.
    others = f"declared {holder.what}" if holder.id else f"{holder.what} of another key"
    whose = holder.what if holder.is_own else others
    return whose, holder.name or holder.id or "", size(holder.device_bytes), duration(holder.age_s)


def array_row(info: ArrayInfo) -> tuple[str, ...]:
    """One array in words, as HEADINGS say."""
    return (
        info.name or "",
        info.id[:8] if info.name else info.id,
        f"{info.dtype}{list(info.shape)}",
        str(spec_from_wire(info.spec)),
        describe_mesh(info.mesh) if info.mesh else "one device",
        size(info.nbytes),
        size(info.device_bytes),
        lease_text(info),
    )


def lease_text(info: ArrayInfo) -> str:
    """`12 min of 1 h left`, or why it has no lease."""
    if info.is_declared:
        return "declared"
    if info.pinned:
        return "pinned"
    if info.ttl_s is None or info.expires_in_s is None:
        return "none"
    return f"{duration(info.expires_in_s)} of {duration(info.ttl_s)} left"


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `2.5 h`, `3 days`."""
    for unit, factor in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= factor:
            return f"{seconds / factor:.2g} {unit}"
    return f"{max(seconds, 0.0):.0f} s"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of text, as wide as they must be."""
    lines = [headings, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    padded = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([padded[0], "  ".join("-" * width for width in widths), *padded[1:]])
