"""Targets held against what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .measurements import Measurement, Target
from .rounds import Band, Rounds, Run


@dataclass(frozen=True)
class Verdict:
    """A target and what came of it.

    Attributes:
        id: of the target.
        claim: in words: what, of whom, against whom, and how much.
        found: the median with its band, or why there is none.
        word: "met" by the whole band, "met by the median", "missed", or "not measured".
    """

    id: str
    claim: str
    found: str
    word: str


def verdicts(measurement: Measurement, run: Run) -> Iterator[Verdict]:
    """One for each target of a measurement."""
    for target in measurement.targets:
        rounds = run.rounds(target.quantity, measurement.statistic)
        claim = _claim(measurement, target)
        absent = [name for name in (target.ours, *target.others) if name not in rounds.values]
        if absent:
            reasons = "; ".join(f"{name}: {run.failed.get(name, 'no figure')}" for name in absent)
            yield Verdict(target.id, claim, reasons, "not measured")
            continue
        band = compared(target, rounds)
        yield Verdict(target.id, claim, _shown(target, band), _word(target, band))


def compared(target: Target, rounds: Rounds) -> Band:
    """What the target speaks of, over the rounds."""
    ours = rounds.of_rounds(target.ours)
    if target.most is not None:
        return Band.of(ours)
    if target.added is not None:
        return rounds.added(target.ours, *target.others)
    if target.best:
        pairs = zip(rounds.best_of(*target.others), ours, strict=True)
        return Band.of([best / mine for best, mine in pairs])
    ratio = [mine / theirs for mine, theirs in rounds.pairs(target.ours, target.others)]
    return Band.of([1 / value for value in ratio] if target.speed is not None else ratio)


def _word(target: Target, band: Band) -> str:
    if target.speed is not None:
        is_met = [value >= target.speed for value in (band.median, band.low)]
    else:
        limit = _limit(target)
        is_met = [value <= limit for value in (band.median, band.high)]
    if all(is_met):
        return "met"
    return "met by the median" if is_met[0] else "missed"


def _limit(target: Target) -> float:
    return next(value for value in (target.time, target.added, target.most) if value is not None)


def _claim(measurement: Measurement, target: Target) -> str:
    what = f"{measurement.name}, {measurement.shows.get(target.quantity, target.quantity)}"
    whose = "" if target.ours == "shardserve" else f" ({target.ours})"
    joined = (" or " if target.best else " + ").join(target.others)
    return f"{what}{whose}, {_wanted(target, joined)}"


def _wanted(target: Target, others: str) -> str:
    if target.speed is not None:
        return f"≥ {target.speed:g}x the speed of {'the better of ' if target.best else ''}{others}"
    if target.time is not None:
        return f"≤ {target.time:g}x {others}"
    if target.added is not None:
        return f"≤ {others} + {target.added * 1e3:g} ms"
    return f"≤ {target.most:.2f}x the payload"


def _shown(target: Target, band: Band) -> str:
    if target.added is not None:
        return f"{band.median * 1e3:+.2f} ms ({band.low * 1e3:.2f} to {band.high * 1e3:.2f})"
    return f"{band.median:.2f} ({band.low:.2f} to {band.high:.2f})"


def summary_of(all_verdicts: Mapping[str, list[Verdict]]) -> str:
    """How many targets were met, in one line."""
    words = [verdict.word for found in all_verdicts.values() for verdict in found]
    counts = {word: words.count(word) for word in ("met", "met by the median", "missed", "not measured")}
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count)
