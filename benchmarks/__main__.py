"""`python -m benchmarks`: measure, check, and write RESULTS.md, results.json and a plot."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .agents import Agents, Failed
from .machine import describe_machine
from .measurements import OURS, PEERS
from .plan import plan
from .report import write
from .run import carry_out, idle
from .sizes import FULL, QUICK, TINY, Size

FOLDER = Path(__file__).parent
SIZES: Mapping[str, Size] = {"quick": QUICK, "full": FULL, "tiny": TINY}


def main() -> None:
    given = _parser().parse_args()
    size = SIZES[given.size]
    todo = [each for each in plan(size) if not given.only or each.key.split()[0] in given.only]
    wanted = {PEERS[OURS], *(given.peers or PEERS.values())}
    with tempfile.TemporaryDirectory() as logs, Agents(given.logs or Path(logs)) as agents:
        facts: dict[str, Any] = {"machine": describe_machine(), "size": given.size}
        agents.start([peer for peer in PEERS.values() if peer in wanted])
        facts["idle_cpu"] = idle(agents, seconds=2.0)
        runs = carry_out(todo, agents, rounds=given.rounds or size.rounds)
        facts["phases_s"] = _phases(agents, size)
        facts["missing"] = {**{peer: "left out by --peers" for peer in PEERS.values() if peer not in wanted}}
        facts["missing"] |= agents.missing
    print(write(given.output, facts, todo, runs))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--size", choices=list(SIZES), default="quick", help="how much (default quick)")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (default: the size's)")
    parser.add_argument("--peers", nargs="*", choices=list(PEERS.values()), help="only these, and shardserve")
    parser.add_argument("--only", nargs="*", help="only these measurements, by the first word of their key")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of RESULTS.md and results.json")
    parser.add_argument("--logs", type=Path, help="keep what the peers print in this folder")
    return parser


def _phases(agents: Agents, size: Size) -> dict[str, dict[str, float]]:
    """The median of each phase of our own calls."""
    titles = {"a small dot": (0, 200), "the batched dot": (size.batch, 3)}
    try:
        ours = agents.agent(PEERS[OURS])
        return {
            title: {name: values[0] for name, values in ours.order("phases", batch=batch, calls=calls).items()}
            for title, (batch, calls) in titles.items()
        }
    except Failed:
        return {}


if __name__ == "__main__":
    main()
