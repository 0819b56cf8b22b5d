"""`python -m benchmarks`: measure, check, and write RESULTS.md and results.json."""

from __future__ import annotations

import argparse
from pathlib import Path

import shardserve as ss

from . import batched_dot, small_dot
from .children import bare_echo, local_jax
from .inputs import BATCH
from .machine import describe_machine
from .report import page, write

FOLDER = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="interleaved rounds (default 9)")
    parser.add_argument("--small-calls", type=int, default=300, help="calls of a small dot in each round (default 300)")
    parser.add_argument("--batched-calls", type=int, default=3, help="calls of the batched dot in each (default 3)")
    parser.add_argument("--batch", type=int, default=BATCH, help="dots in the batch (default ten million)")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of RESULTS.md and results.json")
    given = parser.parse_args()
    machine = describe_machine()
    with ss.LocalServer(devices=8) as client, bare_echo() as echo, local_jax() as jax:
        small = small_dot.measure(client, echo, jax, rounds=given.rounds, calls=given.small_calls)
        batched = batched_dot.measure(client, jax, rounds=given.rounds, calls=given.batched_calls, batch=given.batch)
    write(given.output, machine, small, batched, batch=given.batch)
    print(page(machine, small, batched, batch=given.batch))


if __name__ == "__main__":
    main()
