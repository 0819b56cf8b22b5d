"""How much a run does."""

from __future__ import annotations

from dataclasses import dataclass

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
        small_calls: of each contender and round; fewer when small_s seconds are over.
        rate: small calls per second of the open loop, for open_loop_s.
    """

    rounds: int = 7
    transfer_bytes: int = 256 * MIB
    sweep_bytes: tuple[int, ...] = (MIB // 256, MIB // 16, MIB, 16 * MIB, 64 * MIB)
    memory_bytes: int = 1024 * MIB
    batch: int = 10_000_000
    small_calls: int = 400
    small_s: float = 0.4
    matvec_bytes: int = 64 * MIB
    placed: tuple[int, ...] = (256, 1 << 14, 1 << 18, 1 << 22, 1 << 24)
    rows: tuple[int, ...] = (1_000, 30_000, 1_000_000)
    rate: float = 100.0
    open_loop_s: float = 3.0


QUICK = Size()
FULL = Size(
    rounds=9, sweep_bytes=(*QUICK.sweep_bytes, 256 * MIB, 1024 * MIB), small_calls=2000, small_s=2.0, open_loop_s=10.0
)
TINY = Size(2, MIB, (MIB // 256,), MIB, 800, 20, 0.02, MIB, (256,), (1_000,), 50.0, 0.2)
