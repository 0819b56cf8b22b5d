"""What is measured of calls: P5, P6, P10 to P12, P16, P18 and the ten million dots."""

from __future__ import annotations

from collections.abc import Sequence

from .inputs import PRODUCTS
from .measurements import (
    ECHO,
    EINSUM,
    FASTAPI,
    FLIGHT,
    JAX,
    NUMPY,
    OURS,
    PEERS,
    RAY,
    SERVERS,
    TRITON,
    Measurement,
    Part,
    Target,
    parts,
)
from .sizes import MIB, Size
from .tables import shown


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
    limits = {"calls": size.small_calls, "limit_s": size.small_s}
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
        parts=parts((OURS, JAX), "resident dot", calls=size.small_calls, limit_s=size.small_s),
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
