"""Carry out a plan with the agents of a run."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Mapping, Sequence

from .agents import Agents, Failed
from .measurements import Measurement, Part
from .rounds import Run, interleave


def carry_out(plan: Sequence[Measurement], agents: Agents, *, rounds: int) -> dict[str, Run]:
    """Measure everything in the plan, by key; the inputs of each are let go before the next."""
    runs = {}
    for measurement in plan:
        started = time.monotonic()
        runs[measurement.key] = measure(measurement, agents, rounds=rounds)
        for agent in agents.running.values():
            agent.order("release")
        print(f"{time.monotonic() - started:5.1f} s  {measurement.name}", file=sys.stderr, flush=True)
    return runs


def measure(measurement: Measurement, agents: Agents, *, rounds: int) -> Run:
    """The rounds of one measurement; who is missing is among the failed ones, with the reason."""

    def contender(part: Part) -> Mapping[str, list[float]]:
        return agents.agent(part.peer).order(part.do, **part.details)

    contenders = {part.label: functools.partial(contender, part) for part in measurement.parts}
    return interleave(contenders, rounds=measurement.rounds or rounds, warm_up=measurement.warm_up, failure=Failed)


def idle(agents: Agents, *, seconds: float) -> dict[str, float]:
    """CPU seconds per second that each peer takes while nobody calls it, all at the same time."""
    for agent in agents.running.values():
        agent.send("idle", seconds=seconds)
    return {peer: agent.collect()["idle CPU"][0] for peer, agent in agents.running.items()}
