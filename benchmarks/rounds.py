"""Interleaved rounds: every contender in every round, in rotated order, so that a slow minute hits all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

#: One round of one contender: the seconds of each of its calls. It raises when an answer is wrong.
Contender = Callable[[], list[float]]


@dataclass(frozen=True)
class Band:
    """A median over rounds, with the band that holds eight rounds of ten."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Band:
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        deciles = statistics.quantiles(values, n=10, method="inclusive")
        return cls(statistics.median(values), deciles[0], deciles[-1])


@dataclass(frozen=True)
class Rounds:
    """What was measured.

    Attributes:
        seconds: contender -> one list for each round, of the seconds of each call.
    """

    seconds: Mapping[str, list[list[float]]]

    def medians(self, contender: str) -> list[float]:
        """The median call of each round."""
        return [statistics.median(calls) for calls in self.seconds[contender]]

    def band(self, contender: str) -> Band:
        return Band.of(self.medians(contender))

    def ratio(self, contender: str, *others: str) -> Band:
        """The contender over the sum of the others, round by round."""
        sums = [sum(values) for values in zip(*(self.medians(other) for other in others), strict=True)]
        return Band.of([mine / theirs for mine, theirs in zip(self.medians(contender), sums, strict=True)])


def interleave(contenders: Mapping[str, Contender], *, rounds: int, warm_up: int = 1) -> Rounds:
    """Run all contenders `rounds` times; the first `warm_up` rounds do not count."""
    names = list(contenders)
    seconds: dict[str, list[list[float]]] = {name: [] for name in names}
    for number in range(warm_up + rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            calls = contenders[name]()
            if number >= warm_up:
                seconds[name].append(calls)
    return Rounds(seconds)


def time_calls(call: Callable[[], object], count: int) -> list[float]:
    """The seconds of each of `count` calls, one after the other."""
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return seconds
