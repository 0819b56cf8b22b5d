"""Rows of Markdown, and numbers with their units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .rounds import Rounds


def row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def rows_of(names: Sequence[str], tables: Mapping[str, Rounds], unit: str) -> str:
    """Contenders downwards, quantities to the right."""
    present = [name for name in names if any(name in table.values for table in tables.values())]
    lines = [row("", *tables), row("---", *["---:"] * len(tables))]
    lines += [row(name, *(cell(table, name, unit) for table in tables.values())) for name in present]
    return "\n".join(lines)


def cell(table: Rounds, name: str, unit: str) -> str:
    """A median with its band; empty where there is no figure."""
    if name not in table.values:
        return ""
    band = table.band(name)
    return f"{shown(band.median, unit)} ({shown(band.low, unit)} to {shown(band.high, unit)})"


def shown(value: float, unit: str) -> str:
    """A number as a person reads it."""
    if unit == "bytes":
        for name, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
            if value >= size:
                return f"{value / size:g} {name}"
        return f"{value / 1024:g} KiB"
    if unit == "x payload":
        return f"{value:.3f}x"
    if value < 1e-3:
        return f"{value * 1e6:.0f} µs"
    return f"{value * 1e3:.2f} ms" if value < 0.1 else f"{value * 1e3:.0f} ms"
