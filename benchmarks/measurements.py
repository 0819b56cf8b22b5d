"""The words of a measurement: who takes part, what is asked of them, and which target the result is held against."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .rounds import Statistic

OURS = "shardserve"
RAW, TOUCHED = "raw socket, fresh memory", "raw socket, touched memory"
JAX, EINSUM, NUMPY = "JAX in process", "JAX in process, einsum", "NumPy in process"
FASTAPI, FLIGHT, DASK, RAY = "stock FastAPI", "Arrow Flight", "Dask", "Ray actor"
TRITON, ECHO = "PyTriton HTTP", "bare uvicorn echo"

#: What stands in the tables -> its folder under peers/.
PEERS: Mapping[str, str] = {
    OURS: "shardserve_sdk",
    RAW: "raw_socket",
    TOUCHED: "raw_socket_touched",
    JAX: "local_jax",
    EINSUM: "local_jax_einsum",
    NUMPY: "numpy_only",
    ECHO: "bare_echo",
    FASTAPI: "fastapi_stock",
    FLIGHT: "flight",
    DASK: "dask_tcp",
    RAY: "ray_actor",
    TRITON: "pytriton_http",
}
SERVERS = (FASTAPI, FLIGHT, DASK, RAY, TRITON)
Unit = Literal["s", "CPU s", "x payload"]


@dataclass(frozen=True)
class Part:
    """One contender of a measurement: what its agent is asked to do."""

    label: str
    peer: str
    do: str
    details: Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """What a quantity should come to, by performance.md's and the issue's numbers.

    Attributes:
        id: of the target.
        quantity: what is compared.
        ours, others: contenders; the others' values are added up, or with `best` the best of them counts.
        speed: at least so many times as fast as the others.
        time: at most so many times the others' time, memory or CPU.
        added: at most so much more than the others.
        most: at most so much, beside nobody.
    """

    id: str
    quantity: str
    others: tuple[str, ...] = ()
    ours: str = OURS
    speed: float | None = None
    time: float | None = None
    added: float | None = None
    most: float | None = None
    best: bool = False


@dataclass(frozen=True)
class Measurement:
    """One set of interleaved rounds.

    Attributes:
        key: in the raw numbers.
        title: of its section; measurements of one title share a table, a row for each.
        case: what tells it from the others of its title.
        warm_up: rounds that do not count.
        shows: quantity -> the heading of its column; where measurements share a table, the first one is shown.
    """

    key: str
    title: str
    parts: tuple[Part, ...]
    shows: Mapping[str, str]
    case: str = ""
    note: str = ""
    targets: tuple[Target, ...] = ()
    unit: Unit = "s"
    statistic: Statistic = "median"
    rounds: int | None = None
    warm_up: int = 1

    @property
    def name(self) -> str:
        return f"{self.title}: {self.case}" if self.case else self.title


def parts(labels: Iterable[str], do: str, **details: Any) -> tuple[Part, ...]:
    """The same order for several contenders."""
    return tuple(Part(label, PEERS[label], do, details) for label in labels)
