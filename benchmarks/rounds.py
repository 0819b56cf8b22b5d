"""Interleaved rounds: every contender in every round, in rotated order, so that a slow minute hits all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

#: One round of one contender: by quantity, the value of each of its calls. It raises when an answer is wrong.
Contender = Callable[[], Mapping[str, list[float]]]
Statistic = Literal["median", "p99"]


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
    """What was measured of one quantity.

    Attributes:
        values: contender -> one list for each round, of the value of each call.
        statistic: what stands for a round.
    """

    values: Mapping[str, list[list[float]]]
    statistic: Statistic = "median"

    def of_rounds(self, contender: str) -> list[float]:
        """One value for each round."""
        return [summary(calls, self.statistic) for calls in self.values[contender]]

    def band(self, contender: str) -> Band:
        return Band.of(self.of_rounds(contender))

    def ratio(self, contender: str, *others: str) -> Band:
        """The contender over the sum of the others, round by round."""
        return Band.of([mine / theirs for mine, theirs in self.pairs(contender, others)])

    def added(self, contender: str, *others: str) -> Band:
        """The contender less the sum of the others, round by round."""
        return Band.of([mine - theirs for mine, theirs in self.pairs(contender, others)])

    def best_of(self, *contenders: str) -> list[float]:
        """The best of several, in each round."""
        return [min(values) for values in zip(*map(self.of_rounds, contenders), strict=True)]

    def pairs(self, contender: str, others: Sequence[str]) -> list[tuple[float, float]]:
        """In each round: the contender, and the sum of the others."""
        sums = [sum(values) for values in zip(*map(self.of_rounds, others), strict=True)]
        return list(zip(self.of_rounds(contender), sums, strict=True))


@dataclass
class Run:
    """Everything that was measured in one set of rounds.

    Attributes:
        quantities: quantity -> contender -> rounds -> calls.
        failed: contender -> why it is not among them.
    """

    quantities: dict[str, dict[str, list[list[float]]]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def rounds(self, quantity: str, statistic: Statistic = "median") -> Rounds:
        return Rounds(self.quantities.get(quantity, {}), statistic)


def interleave(
    contenders: Mapping[str, Contender], *, rounds: int, warm_up: int = 1, failure: type[Exception] = ValueError
) -> Run:
    """Run all contenders `rounds` times; the first `warm_up` rounds do not count.

    A contender that raises `failure` is out, with all that was measured of it: an error voids its rounds.
    """
    run, names = Run(), list(contenders)
    for number in range(warm_up + rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            if name in run.failed:
                continue
            try:
                measured = contenders[name]()
            except failure as reason:
                run.failed[name] = str(reason)
                continue
            if number >= warm_up:
                for quantity, calls in measured.items():
                    run.quantities.setdefault(quantity, {}).setdefault(name, []).append(calls)
    for measured_ones in run.quantities.values():
        for name in run.failed:
            measured_ones.pop(name, None)
    return run


def summary(calls: Sequence[float], statistic: Statistic) -> float:
    """What stands for the calls of a round."""
    if statistic == "median" or len(calls) < 2:
        return statistics.median(calls)
    return statistics.quantiles(calls, n=100, method="inclusive")[-1]


def time_calls(call: Callable[[], object], count: int, *, limit_s: float = float("inf")) -> list[float]:
    """The seconds of each of `count` calls, one after the other; fewer once `limit_s` is over."""
    seconds: list[float] = []
    end = time.perf_counter() + limit_s
    while len(seconds) < count:
        started = time.perf_counter()
        call()
        now = time.perf_counter()
        seconds.append(now - started)
        if now >= end:
            break
    return seconds
