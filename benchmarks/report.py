"""The page and the raw numbers of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from .measurements import PEERS, Measurement
from .plot import plot
from .rounds import Rounds, Run
from .tables import cell, row, rows_of, shown
from .verdicts import Verdict, summary_of, verdicts

SWEEP = "sweep "


def write(folder: Path, facts: Mapping[str, Any], plan: Sequence[Measurement], runs: Mapping[str, Run]) -> str:
    """Write RESULTS.md, results.json and the plot; the page is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = {**facts, "runs": {key: _raw(run) for key, run in runs.items()}}
    (folder / "results.json").write_text(json.dumps(raw) + "\n", encoding="utf-8")
    text = page(facts, plan, runs)
    (folder / "RESULTS.md").write_text(text, encoding="utf-8")
    if "transfer" in runs:
        (folder / "transfer.svg").write_text(plot(runs["transfer"], _bytes_of(plan)), encoding="utf-8")
    return text


def _raw(run: Run) -> dict[str, Any]:
    rounded = {
        quantity: {
            name: [[float(f"{value:.6g}") for value in calls] for calls in rounds] for name, rounds in of.items()
        }
        for quantity, of in run.quantities.items()
    }
    return {"quantities": rounded, "failed": run.failed}


def _bytes_of(plan: Sequence[Measurement]) -> int:
    nbytes: int = next(part.details["nbytes"] for each in plan if each.key == "transfer" for part in each.parts)
    return nbytes


def page(facts: Mapping[str, Any], plan: Sequence[Measurement], runs: Mapping[str, Run]) -> str:
    """One page: the targets first, then each table, then who was not there."""
    found = {each.key: list(verdicts(each, runs[each.key])) for each in plan}
    sections = [_head(facts, found), _targets(found), "![up and down](transfer.svg)"]
    sections += _sections(plan, runs)
    sections += [_absent(facts, plan, runs), _phases(facts)]
    return "\n\n".join(section for section in sections if section) + "\n"


def _head(facts: Mapping[str, Any], found: Mapping[str, list[Verdict]]) -> str:
    machine = facts["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return f"""# Results

`{machine["command"]}`: interleaved rounds in rotated order, after one that does not count. A figure is the
median over the rounds of each round's median, with the band that holds the middle 80 % of them; ratios are taken round
by round. Every answer was checked. The raw numbers are in [results.json](results.json); what each peer does is in
[README.md](README.md).

{machine["cpu"]}, {machine["cores"]} cores, {machine["memory_gib"]} GiB, load {machine["load_before"]} before;
{machine["system"]}, Python {machine["python"]}; {versions}.

Client, server and peers share the cores, and eight virtual devices of one CPU compute no faster than one: the tables
tell what being remote costs, not what a mesh gains.

Targets: {summary_of(found)}."""


def _targets(found: Mapping[str, list[Verdict]]) -> str:
    lines = [row("target", "what", "found", ""), row("---", "---", "---:", "---")]
    lines += [row(each.id, each.claim, each.found, each.word) for of in found.values() for each in of]
    return "\n".join(lines)


def _sections(plan: Sequence[Measurement], runs: Mapping[str, Run]) -> Iterator[str]:
    """Measurements of one title share a section."""
    for title, group in groupby(plan, key=lambda each: each.title):
        members = list(group)
        first = members[0]
        if first.key.startswith(SWEEP):
            table = _speeds(members, runs)
        elif first.case:
            table = _cases(members, runs)
        else:
            names = [part.label for part in first.parts]
            run = runs[first.key]
            shows = {heading: run.rounds(quantity, first.statistic) for quantity, heading in first.shows.items()}
            table = rows_of(names, shows, first.unit)
        yield "\n\n".join(part for part in (f"## {title}", first.note, table) if part)


def _cases(members: Sequence[Measurement], runs: Mapping[str, Run]) -> str:
    """A row for each case, a column for each contender."""
    names = [part.label for part in members[0].parts]
    lines = [row("", *names), row("---", *["---:"] * len(names))]
    for each in members:
        rounds = runs[each.key].rounds(next(iter(each.shows)), each.statistic)
        lines.append(row(each.case, *(cell(rounds, name, each.unit) for name in names)))
    return "\n".join(lines)


def _speeds(members: Sequence[Measurement], runs: Mapping[str, Run]) -> str:
    """The sweep: GB/s up / down."""
    names = [part.label for part in members[0].parts]
    lines = [row("GB/s up / down", *names), row("---", *["---:"] * len(names))]
    for each in members:
        nbytes = each.parts[0].details["nbytes"]
        lines.append(row(each.case, *(_speed(runs[each.key], name, nbytes) for name in names)))
    return "\n".join(lines)


def _speed(run: Run, name: str, nbytes: int) -> str:
    ways: list[Rounds] = [run.rounds("up"), run.rounds("down")]
    if any(name not in way.values for way in ways):
        return ""
    return " / ".join(f"{nbytes / way.band(name).median / 1e9:.2g}" for way in ways)


def _absent(facts: Mapping[str, Any], plan: Sequence[Measurement], runs: Mapping[str, Run]) -> str:
    """Who did not take part, and why: nobody is left out in silence."""
    lines = [f"* {name}: {facts['missing'][folder]}" for name, folder in PEERS.items() if folder in facts["missing"]]
    lines += list(_failures(facts, plan, runs))
    return "## Not measured\n\n" + ("\n".join(lines) or "Everybody took part in everything.")


def _failures(facts: Mapping[str, Any], plan: Sequence[Measurement], runs: Mapping[str, Run]) -> Iterator[str]:
    for each in plan:
        folders = {part.label: part.peer for part in each.parts}
        for name, reason in runs[each.key].failed.items():
            if folders[name] not in facts["missing"]:
                yield f"* {name}, {each.name}: {reason}"


def _phases(facts: Mapping[str, Any]) -> str:
    """Where the time of our own calls goes, and what the peers take while nobody calls."""
    text = ""
    for title, phases in facts.get("phases_s", {}).items():
        kept = {name: value for name, value in phases.items() if name != "compile"}
        lines = [row(*kept), row(*["---:"] * len(kept)), row(*(shown(value, "s") for value in kept.values()))]
        text += f"## Where the time of {title} goes\n\n" + "\n".join(lines) + "\n\n"
    idle = ", ".join(
        f"{name} {facts['idle_cpu'][folder]:.1%}" for name, folder in PEERS.items() if folder in facts["idle_cpu"]
    )
    return f"{text}While nobody calls, the peers take of one core: {idle}."
