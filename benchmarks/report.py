"""The page and the raw numbers of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import batched_dot, small_dot
from .batched_dot import BatchedDot
from .rounds import Band, Rounds
from .small_dot import SmallDot


def write(folder: Path, machine: Mapping[str, Any], small: SmallDot, batched: BatchedDot, *, batch: int) -> None:
    """Write RESULTS.md and results.json."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = {
        "machine": machine,
        "small_dot": {"microseconds": _microseconds(small.rounds), "phases_s": small.phases_s},
        "batched_dot": {"batch": batch, "microseconds": _microseconds(batched.rounds), "phases_s": batched.phases_s},
    }
    (folder / "results.json").write_text(json.dumps(raw) + "\n", encoding="utf-8")
    (folder / "RESULTS.md").write_text(page(machine, small, batched, batch=batch), encoding="utf-8")


def _microseconds(rounds: Rounds) -> dict[str, list[list[int]]]:
    return {name: [[round(call * 1e6) for call in calls] for calls in lists] for name, lists in rounds.seconds.items()}


def page(machine: Mapping[str, Any], small: SmallDot, batched: BatchedDot, *, batch: int) -> str:
    """One page: machine, both tables, and where the time goes."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    rounds = len(small.rounds.seconds[small_dot.OURS])
    bound = small.rounds.ratio(small_dot.OURS, small_dot.ECHO, small_dot.JAX)
    over_jax = batched.rounds.ratio(batched_dot.OURS, batched_dot.JAX)
    gigabytes = batch * 28 / 1e9
    speed = gigabytes / batched.phases_s["whole"]
    return f"""# Results

`{machine["command"]}`: {rounds} interleaved rounds in rotated order, after one that does not count. Times are medians
over the rounds of each round's median, with the band that holds the middle 80 % of them; ratios are taken round by
round. Every answer was checked. The raw numbers are in [results.json](results.json).

{machine["cpu"]}, {machine["cores"]} cores, {machine["memory_gib"]} GiB, load {machine["load_before"]} before;
{machine["system"]}, Python {machine["python"]}; {versions}.

Client, server and peers share the cores, and eight virtual devices of one CPU compute no faster than one: the tables
tell what being remote costs, not what a mesh gains.

## A dot of two 1 KiB vectors

{_table(small.rounds)}

shardserve takes {_band(bound)} times the bare echo of the same bytes by the same client plus JAX's own time.
Where the time of one call goes:

{_phases(small.phases_s)}

## {batch:,} dots, (3, N) × (3, N) → (N,), batch over eight devices

{_table(batched.rounds)}

shardserve takes {_band(over_jax)} times JAX in process with the terms written out, which is what the server's kernel
does. {gigabytes:.2f} GB cross the socket for each call: {speed:.2f} GB/s over the whole call. Where its time goes:

{_phases(batched.phases_s)}

*other* is the client itself, the way of the first byte, and the download behind the result's first byte.
"""


def _table(rounds: Rounds) -> str:
    lines = ["| | median | 10 % | 90 % |", "| --- | ---: | ---: | ---: |"]
    for name in rounds.seconds:
        band = rounds.band(name)
        lines.append(f"| {name} | {_time(band.median)} | {_time(band.low)} | {_time(band.high)} |")
    return "\n".join(lines)


def _phases(phases_s: Mapping[str, float]) -> str:
    shown = {name: seconds for name, seconds in phases_s.items() if name != "compile"}
    head = "| " + " | ".join(shown) + " |"
    rule = "| " + " | ".join(["---:"] * len(shown)) + " |"
    return "\n".join([head, rule, "| " + " | ".join(map(_time, shown.values())) + " |"])


def _band(band: Band) -> str:
    return f"{band.median:.2f} ({band.low:.2f} to {band.high:.2f})"


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"
