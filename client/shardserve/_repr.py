"""Text pictures: which device holds which part of an array, and what a call did."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from shardserve_proto.layout import holders
from shardserve_proto.messages import PlacementReport, Report
from shardserve_proto.specs import describe_mesh, spec_from_wire

#: A picture has at most so many rows and columns of parts; the middle of a larger one is left out.
_MOST_ROWS, _MOST_COLUMNS = 16, 8
_ROW_OF_LEADING = 8


def picture(placement: PlacementReport, report: Report) -> str:
    """Which device holds which part of an array.

    Arguments:
        placement: of the array, from the report of its call.
        report: of the call, for mesh and devices.

    Returns: a few lines: one box for each part, with the ids of the devices that hold it. The last two dimensions are
        drawn; the parts of the dimensions before them follow each other.
    """
    spec = spec_from_wire(placement.spec)
    held = holders(placement, report.mesh, report.devices)
    grid = _parts(placement)
    head = f"{placement.dtype}{list(placement.shape)} as {spec}: {_sizes(placement.shard_shape)} on each device"
    lines = [head]
    for lead in itertools.islice(itertools.product(*(range(count) for count in grid[:-2])), _ROW_OF_LEADING):
        if lead:
            lines.append(f"[{', '.join(_range(placement, d, index) for d, index in enumerate(lead))}, ...]")
        lines += _sheet(lead, grid, placement, held)
    hidden = math.prod(grid[:-2]) - _ROW_OF_LEADING
    return "\n".join([*lines, f"… {hidden} more"] if hidden > 0 else lines)


def _parts(placement: PlacementReport) -> list[int]:
    """Into how many parts each dimension is split."""
    pairs = zip(placement.padded_shape, placement.shard_shape, strict=True)
    return [padded // shard if shard else 1 for padded, shard in pairs]


def _sheet(
    lead: tuple[int, ...], grid: Sequence[int], placement: PlacementReport, held: Mapping[tuple[int, ...], list[int]]
) -> list[str]:
    """The boxes of the last two dimensions (or of one, or of none)."""
    rank = len(grid)
    rows = range(grid[-2]) if rank > 1 else range(1)
    columns = range(grid[-1]) if rank else range(1)
    shown_rows, shown_columns = _shortened(rows, _MOST_ROWS), _shortened(columns, _MOST_COLUMNS)
    table = [["", *("…" if c is None else _range(placement, rank - 1, c) if rank else "" for c in shown_columns)]]
    for row in shown_rows:
        label = "…" if row is None else _range(placement, rank - 2, row) if rank > 1 else ""
        table.append([label, *(_cell(lead, row, column, rank, held) for column in shown_columns)])
    return _boxes(table)


def _cell(
    lead: tuple[int, ...], row: int | None, column: int | None, rank: int, held: Mapping[tuple[int, ...], list[int]]
) -> str:
    if row is None or column is None:
        return "…"
    drawn = (row, column)[2 - min(rank, 2) :]
    return _devices(held.get((*lead, *drawn), []))


def _shortened(items: range, most: int) -> list[int | None]:
    if len(items) <= most:
        return list(items)
    half = most // 2
    return [*items[:half], None, *items[-half:]]


def _range(placement: PlacementReport, dimension: int, index: int) -> str:
    """The rows of one part, `25:50`, without padding."""
    size, shard = placement.shape[dimension], placement.shard_shape[dimension]
    start, stop = min(index * shard, size), min((index + 1) * shard, size)
    return f"{start}:{stop}" if stop > start else "padding"


def _devices(ids: Sequence[int]) -> str:
    """`0`, `0,4`, or `0-7`."""
    ids = sorted(ids)
    if len(ids) > 2 and ids == list(range(ids[0], ids[-1] + 1)):
        return f"{ids[0]}-{ids[-1]}"
    shown = [str(device) for device in ids]
    return ",".join(shown if len(shown) <= 6 else [*shown[:5], "…", shown[-1]])


def _boxes(table: Sequence[Sequence[str]]) -> list[str]:
    """A header line, then a box for each cell."""
    widths = [max(len(row[c]) for row in table) for c in range(len(table[0]))]
    margin = " " * (widths[0] + 1)
    line = "+".join("-" * (width + 2) for width in widths[1:])
    lines = [
        margin + " " + " ".join(cell.center(width + 2) for cell, width in zip(table[0][1:], widths[1:], strict=True))
    ]
    if not lines[0].strip():
        lines = []
    for label, *cells in table[1:]:
        boxed = "|".join(cell.center(width + 2) for cell, width in zip(cells, widths[1:], strict=True))
        lines += [f"{margin}+{line}+", f"{label.rjust(widths[0])} |{boxed}|"]
    return [text.rstrip() for text in [*lines, f"{margin}+{line}+"]]


def _sizes(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "1 number"


def describe_report(report: Report) -> list[str]:
    """What the server did, in a few lines."""
    count = len(report.devices)
    where = f"mesh {describe_mesh(report.mesh)}" if report.mesh else f"{count} device{'s' * (count != 1)}"
    phases = ", ".join(f"{phase} {seconds(duration)}" for phase, duration in report.phases_s.items())
    compiled = "compiled" if report.compiled else "was compiled already"
    lines = [f"{report.device_kind}, {where}, precision {report.precision}, {compiled}", phases or "no phases"]
    lines += [f"argument {index}: {_placed(placement)}" for index, placement in enumerate(report.arguments)]
    return lines + [f"result {index}: {_placed(placement)}" for index, placement in enumerate(report.outputs)]


def _placed(placement: PlacementReport) -> str:
    spec = spec_from_wire(placement.spec)
    padded = "" if placement.padded_shape == placement.shape else f", padded to {_sizes(placement.padded_shape)}"
    moved = ", moved here for this call" if placement.moved else ""
    where = f"{_sizes(placement.shard_shape)} on each device{padded}{moved}"
    return f"{placement.dtype}{list(placement.shape)} as {spec}, {where}"


def seconds(duration_s: float) -> str:
    """`12.3 ms`."""
    if duration_s < 1e-3:
        return f"{duration_s * 1e6:.0f} µs"
    return f"{duration_s * 1e3:.1f} ms" if duration_s < 1 else f"{duration_s:.2f} s"


def size(nbytes: int) -> str:
    """`12.3 MB`."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if nbytes >= factor:
            return f"{nbytes / factor:.1f} {unit}"
    return f"{nbytes} B"
