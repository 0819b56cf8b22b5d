"""What is measured of arrays on their way: P1 to P4 and P17."""

from __future__ import annotations

from .measurements import (
    DASK,
    FASTAPI,
    FLIGHT,
    JAX,
    OURS,
    PEERS,
    RAW,
    SERVERS,
    TOUCHED,
    Measurement,
    Part,
    Target,
    parts,
)
from .sizes import MIB, Size
from .tables import shown


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
        rounds=1,
        warm_up=0,  # servers that keep memory for the next array have it before a second round
    )
