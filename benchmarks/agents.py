"""The agents of a run: one process for each peer, each in its own environment; a peer that fails is told of."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .environments import ROOT, NotInstalled, python_of

START_LIMIT_S = 90.0
ORDER_LIMIT_S = 300.0
STOP_LIMIT_S = 20.0


class Failed(Exception):
    """A peer did not do what it was asked; the message is the reason that the table shows."""


class Agent:
    """One peer's process. After a failure that ended it, it answers `Failed` to everything."""

    def __init__(self, peer: str, python: Path, log: Path) -> None:
        self.peer = peer
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [str(python), "-m", "benchmarks.agent", peer],
                cwd=ROOT,
                env=_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
            )

    def wait_until_ready(self) -> None:
        """Wait for the peer's server and its client.

        Raises:
            Failed: one of them did not start.
        """
        self._answer(START_LIMIT_S)

    def order(self, do: str, **details: Any) -> dict[str, list[float]]:
        """The seconds of each call, by what was timed.

        Raises:
            Failed: the peer cannot, or did not.
        """
        self.send(do, **details)
        return self.collect()

    def send(self, do: str, **details: Any) -> None:
        """Give an order without waiting for it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **details}).encode() + b"\n")
        except OSError:
            raise Failed("its process ended") from None

    def collect(self) -> dict[str, list[float]]:
        """The answer to an order that was sent."""
        timed: dict[str, list[float]] = self._answer(ORDER_LIMIT_S)["timed"]
        return timed

    def _answer(self, limit_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], limit_s)
        if not readable:
            self._process.kill()
            raise Failed(f"no answer in {limit_s:g} s")
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "its process ended"}
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def leave(self) -> None:
        """Tell the peer that nothing more will come; it ends its server, and then itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self) -> None:
        """Wait for the peer's end."""
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@dataclass
class Agents:
    """All peers that started, and why the others did not."""

    logs: Path
    running: dict[str, Agent] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    _started: list[Agent] = field(default_factory=list)

    def start(self, peers: Iterable[str]) -> None:
        """Start peers side by side; who does not start is missing, with the reason."""
        started: dict[str, Agent] = {}
        for peer in peers:
            try:
                started[peer] = Agent(peer, python_of(peer), self.logs / f"{peer}.log")
            except NotInstalled as reason:
                self.missing[peer] = f"not installed: {reason}"
        for peer, agent in started.items():
            self._started.append(agent)
            try:
                agent.wait_until_ready()
            except Failed as reason:
                self.missing[peer] = f"not started: {reason}"
            else:
                self.running[peer] = agent

    def agent(self, peer: str) -> Agent:
        """A peer's agent.

        Raises:
            Failed: it is missing.
        """
        if peer not in self.running:
            raise Failed(self.missing.get(peer, "not asked for"))
        return self.running[peer]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for agent in self._started:
            agent.leave()
        for agent in self._started:
            agent.wait()


def _environment() -> Mapping[str, str]:
    """This environment, without what leads a client elsewhere."""
    unwanted = ("SHARDSERVE_", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
    return {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
