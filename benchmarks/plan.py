"""The table of all measurements, for a run of a given size."""

from __future__ import annotations

from . import bytes_moved, calls_made
from .measurements import Measurement
from .sizes import Size


def plan(size: Size) -> list[Measurement]:
    """All measurements, in the order of the page."""
    return [
        bytes_moved.transfers(size),
        *bytes_moved.sweep(size),
        bytes_moved.memory(size),
        calls_made.batched_dots(size),
        calls_made.small_dots(size),
        calls_made.handles(size),
        calls_made.resident_operand(size),
        *calls_made.products(),
        *calls_made.placements(size),
        *calls_made.crossover(size),
        calls_made.beside_others(size),
    ]
