"""Where the time of a call goes: the phases of the server's report, and what is left for the client and the way."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import shardserve as ss

PHASES = ("receive", "queue", "upload", "compile", "run", "gather")


def median_phases(calls: Sequence[ss.Call]) -> dict[str, float]:
    """The median of each phase, of the rest, and of the whole."""
    phases = {phase: statistics.median(call.report.phases_s.get(phase, 0.0) for call in calls) for phase in PHASES}
    rest = [call.elapsed_s - sum(call.report.phases_s.get(phase, 0.0) for phase in PHASES) for call in calls]
    return {**phases, "other": statistics.median(rest), "whole": statistics.median(call.elapsed_s for call in calls)}
