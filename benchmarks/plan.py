"""The table of all measurements, for a run of a given size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .inputs import PRODUCTS
from .measurements import (
    DASK,
    ECHO,
    EINSUM,
    FASTAPI,
    FLIGHT,
    JAX,
    NUMPY,
    OURS,
    PEERS,
    RAW,
    RAY,
    SERVERS,
    TOUCHED,
    TRITON,
    Measurement,
    Part,
    Target,
)
from .tables import shown

MIB = 1 << 20


@dataclass(frozen=True)
class Size:
    """How much a run does.

    Attributes:
        rounds: that count, after one that does not.
        transfer_bytes: of the array that goes up and down.
        sweep_bytes: of the arrays of the sweep.
        memory_bytes: of the array whose extra memory is watched.
        batch: pairs of 3-vectors.
        small_s: seconds of small calls for each contender and round.
        rate: small calls per second of the open loop, for open_loop_s.
    """

    rounds: int = 7
    transfer_bytes: int = 256 * MIB
    sweep_bytes: tuple[int, ...] = (MIB // 256, MIB // 16, MIB, 16 * MIB, 64 * MIB)
    memory_bytes: int = 1024 * MIB
    batch: int = 10_000_000
    small_s: float = 0.25
    matvec_bytes: int = 64 * MIB
    placed: tuple[int, ...] = (256, 1 << 14, 1 << 18, 1 << 22, 1 << 24)
    rows: tuple[int, ...] = (1_000, 30_000, 1_000_000)
    rate: float = 100.0
    open_loop_s: float = 4.0


QUICK = Size()
FULL = Size(rounds=9, sweep_bytes=(*QUICK.sweep_bytes, 256 * MIB, 1024 * MIB), small_s=2.0, open_loop_s=10.0)
TINY = Size(2, MIB, (MIB // 256,), MIB, 800, 0.02, MIB, (256,), (1_000,), 50.0, 0.2)


def plan(size: Size) -> list[Measurement]:
    """All measurements, in the order of the page."""
    return [
        transfers(size),
        *sweep(size),
        memory(size),
        batched_dots(size),
        small_dots(size),
        handles(size),
        resident_operand(size),
        *products(),
        *placements(size),
        *crossover(size),
        beside_others(size),
    ]


def parts(labels: Iterable[str], do: str, **details: Any) -> tuple[Part, ...]:
    """The same order for several contenders."""
    return tuple(Part(label, PEERS[label], do, details) for label in labels)


def transfers(size: Size) -> Measurement:
    """P1, P2 and P17."""
    order = {"nbytes": size.transfer_bytes, "fresh": False}
    fast = parts((OURS, RAW, TOUCHED), "transfer", calls=2, **order)
    others = parts((JAX, *SERVERS), "transfer", calls=1, **order)
    fresh = Part(f"{OURS}, new result", PEERS[OURS], "transfer", {**order, "calls": 1, "fresh": True})
    raw_fresh = Part(RAW, PEERS[RAW], "transfer", {**order, "calls": 2, "fresh": True})
    fast = tuple(raw_fresh if part.label == RAW else part for part in fast)
    return Measurement(
        key="transfer",
        title=f"{size.transfer_bytes // MIB} MiB float32, split eight ways by rows",
        parts=(*fast, fresh, *others),
        shows={"up": "up, until it is a usable handle", "down": "down", "up CPU": "CPU up", "down CPU": "CPU down"},
        note="Fresh memory is made while the bytes arrive, touched memory is there before. shardserve takes its buffers"
        " from a pool that it keeps touched, and fills the caller's own touched array. Ray moves no bytes down: its"
        " result is a view of its shared memory.",
        targets=(
            Target("P1", "up", (RAW,), speed=0.70),
            Target("P1", "up", (TOUCHED,), speed=0.70),
            Target("P1", "up", (FLIGHT,), speed=1.0),
            Target("P1", "up", (DASK,), speed=2.0),
            Target("P1", "up", (FASTAPI,), speed=2.5),
            Target("P2", "down", (TOUCHED,), speed=0.70),
            Target("P2", "down", (RAW,), ours=f"{OURS}, new result", speed=0.70),
            Target("P2", "down", (FLIGHT,), speed=1.0),
            Target("P2", "down", (FASTAPI,), speed=2.5),
            *(Target("P17", way, (FLIGHT,), time=1.0) for way in ("up CPU", "down CPU")),
            *(Target("P17", way, (FASTAPI,), time=0.4) for way in ("up CPU", "down CPU")),
        ),
    )


def sweep(size: Size) -> list[Measurement]:
    """P3."""
    return [
        Measurement(
            key=f"sweep {nbytes}",
            title="From small to large",
            case=shown(nbytes, "bytes"),
            parts=parts((OURS, TOUCHED, FLIGHT), "transfer", nbytes=nbytes, calls=calls, fresh=False),
            shows={"up": "up", "down": "down"},
            targets=tuple(Target("P3", way, (TOUCHED,), speed=0.5) for way in ("up", "down") if nbytes >= MIB),
            rounds=min(size.rounds, 5),
        )
        for nbytes in size.sweep_bytes
        for calls in (max(1, min(20, 128 * MIB // nbytes)),)
    ]


def memory(size: Size) -> Measurement:
    """P4."""
    margin = 64 * MIB / size.memory_bytes
    return Measurement(
        key="memory",
        title=f"Extra memory of both sides for {size.memory_bytes // MIB:,} MiB",
        parts=parts((OURS, FLIGHT), "memory", nbytes=size.memory_bytes),
        shows={"up": "up", "down": "down, into the caller's array"},
        note="As multiples of the payload, the array itself on the server included.",
        targets=(Target("P4", "up", most=1.10 + margin), Target("P4", "down", most=margin)),
        unit="x payload",
        rounds=2,
    )


def batched_dots(size: Size) -> Measurement:
    """The issue's 10M x 3."""
    return Measurement(
        key="batched dot",
        title=f"{size.batch:,} dots, (3, N) × (3, N) → (N,), there and back",
        parts=parts((OURS, JAX, EINSUM, NUMPY, *SERVERS), "dot", batch=size.batch, calls=1, limit_s=60.0),
        shows={"call": "a call", "call CPU": "CPU"},
        note="The peers' servers compute with the terms written out, as shardserve's kernel does, on one CPU device.",
        targets=(
            Target("10M×3", "call", (FLIGHT,), speed=2.0),
            Target("10M×3", "call", (TRITON,), speed=5.0),
            Target("10M×3", "call", (JAX,), time=2.0),
        ),
    )


def small_dots(size: Size) -> Measurement:
    """P5."""
    limits = {"calls": 5000, "limit_s": size.small_s}
    echo = parts((ECHO,), "echo", **limits)
    return Measurement(
        key="small dot",
        title="A dot of two 1 KiB vectors",
        parts=(
            *parts((OURS,), "dot", batch=0, **limits),
            *echo,
            *parts((JAX, NUMPY, *SERVERS), "dot", batch=0, **limits),
        ),
        shows={"call": "a call", "call CPU": "CPU"},
        note="The echo is of the same bytes by shardserve's own client.",
        targets=(
            Target("P5", "call", (ECHO, JAX), time=2.0),
            Target("P5", "call", (FLIGHT,), time=1.0),
            Target("P5", "call", (RAY,), time=1.0),
            Target("P5", "call", (TRITON,), time=1.0),
        ),
    )


def handles(size: Size) -> Measurement:
    """P6."""
    return Measurement(
        key="resident dot",
        title="The same on resident arrays",
        parts=parts((OURS, JAX), "resident dot", calls=5000, limit_s=size.small_s),
        shows={"call": "a call"},
        targets=(Target("P6", "call", (JAX,), added=0.4e-3),),
    )


def resident_operand(size: Size) -> Measurement:
    """P10."""
    again = f"{OURS}, sent again"
    order = {"nbytes": size.matvec_bytes, "calls": 5}
    return Measurement(
        key="matvec",
        title=f"A {size.matvec_bytes // MIB} MiB matrix times a vector, per product",
        parts=(
            *parts((OURS, JAX), "matvec", resident=True, **order),
            Part(again, PEERS[OURS], "matvec", {**order, "calls": 2, "resident": False}),
            *parts((FASTAPI,), "matvec", nbytes=size.matvec_bytes, calls=1, resident=False),
        ),
        shows={"call": "a product"},
        targets=(
            Target("P10", "call", (again,), speed=3.0),
            Target("P10", "call", (JAX,), speed=0.9),
            Target("P10", "call", (FASTAPI,), speed=3.0),
        ),
    )


def products() -> list[Measurement]:
    """P11."""
    return [
        Measurement(
            key=f"product {subscripts}",
            title="einsum of resident arrays, result kept",
            case=f"{subscripts} of {' and '.join('×'.join(map(str, shape)) for shape in shapes)}",
            parts=parts((OURS, JAX), "kept product", subscripts=subscripts, calls=2),
            shows={"call": "a product"},
            targets=(Target("P11", "call", (JAX,), speed=0.97), Target("P11", "call", (JAX,), added=5e-3)),
            rounds=5,
        )
        for subscripts, shapes in PRODUCTS.items()
    ]


def placements(size: Size) -> list[Measurement]:
    """P12."""
    ways = {OURS: "open", "one device": "one", "eight devices": "eight"}
    return [
        Measurement(
            key=f"placed {elements}",
            title="A dot of two vectors, placement left open",
            case=shown(elements * 4, "bytes"),
            parts=tuple(
                Part(label, PEERS[OURS], "placed dot", {"size": elements, "way": way, "calls": calls})
                for label, way in ways.items()
            ),
            shows={"server": "upload, run and gather on the server"},
            note="What the server takes: upload to the devices, run and gather; the way there and back is the same.",
            targets=(Target("P12", "server", ("one device", "eight devices"), speed=0.9, best=True),),
            rounds=5,
        )
        for elements in size.placed
        for calls in (max(2, min(100, (1 << 22) // elements)),)
    ]


def crossover(size: Size) -> list[Measurement]:
    """P16."""
    return [
        Measurement(
            key=f"normalize {rows}",
            title="Rows of 64 normalized, uploaded and returned",
            case=f"{rows:,} rows",
            parts=parts((OURS, NUMPY), "normalize", rows=rows, calls=2),
            shows={"call": "a call"},
            note="No claim: over loopback the way never pays for a cheap operation.",
            rounds=3,
        )
        for rows in size.rows
    ]


def beside_others(size: Size) -> Measurement:
    """P18."""
    order = {"rate": size.rate, "seconds": size.open_loop_s}
    labels: Sequence[tuple[str, str]] = (
        ("alone", "none"),
        ("during uploads", "upload"),
        ("during compiles", "compile"),
    )
    return Measurement(
        key="open loop",
        title=f"Small dots at {size.rate:g} a second while others work, p99",
        parts=tuple(Part(label, PEERS[OURS], "open loop", {**order, "load": load}) for label, load in labels),
        shows={"latency": "from when a call was due"},
        note="Uploads are of 1 GiB, the compiles of programs that take seconds; both by a process of their own.",
        targets=tuple(
            target
            for label in ("during uploads", "during compiles")
            for target in (
                Target("P18", "latency", ("alone",), ours=label, time=3.0),
                Target("P18", "latency", ("alone",), ours=label, added=5e-3),
            )
        ),
        statistic="p99",
        rounds=3,
    )
