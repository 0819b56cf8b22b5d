"""The keywords that every call takes, checked and merged with a client's defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, get_args

from shardserve_proto.errors import InvalidRequest, ProgramError, nearest
from shardserve_proto.messages import Precision
from shardserve_proto.specs import P, WireMesh

from ._config import MAX_IMPLICIT_BYTES
from ._progress import ProgressCallback
from ._specs import read_mesh

PRECISIONS: tuple[Precision, ...] = get_args(Precision)


class RunOptions(TypedDict, total=False):
    """Keywords of `client.run` and of every kernel.

    Attributes:
        mesh: a mesh's name, or its axes and sizes, one of which may be -1; default: that of the block or the client.
        precision: of float32 products and totals: "highest" (default), "high" or "default".
        timeout: seconds until the call gives up, from its start.
        progress: a function that is told with a `Progress` how far bodies over 1 MiB are, about ten times a second and
            at the end of each; `ss.progress_bar()` shows a bar.
        keep: whether results stay on the devices, as `RemoteArray`s; default: as the arguments, so they stay if any of
            those is one.
    """

    mesh: str | Mapping[str, int] | Sequence[tuple[str, int]] | None
    precision: Precision
    timeout: float | None
    progress: ProgressCallback | None
    keep: bool | None


class CallOptions(RunOptions, total=False):
    """Keywords of every kernel: `RunOptions`, named axes and shardings.

    Attributes:
        in_axes: which dimensions of the arguments carry names, a tree prefix of them: `{1: "batch"}`,
            `["rows", "cols"]`, `["batch", ...]`; ints and None as in `jax.vmap`.
        out_axes: where the names stand in the result; required with names, 0 by default with ints.
        axis_sizes: sizes of names that no argument has.
        axis_resources: the mesh axes that split each name.
        in_shardings: specs of the arguments, one for all or a tree prefix; None replicates, AUTO is the default.
        out_shardings: specs of the results.
    """

    in_axes: Any
    out_axes: Any
    axis_sizes: Mapping[str, int]
    axis_resources: Mapping[str, str | tuple[str, ...]]
    in_shardings: P | Any
    out_shardings: P | Any


RUN_KEYWORDS = tuple(RunOptions.__annotations__)
CALL_KEYWORDS = tuple(CallOptions.__annotations__)


@dataclass(frozen=True)
class Defaults:
    """What a client's calls use where they say nothing themselves."""

    mesh: WireMesh | None = None
    precision: Precision = "highest"
    timeout_s: float | None = None
    progress: ProgressCallback | None = None
    keep: bool | None = None
    max_implicit_bytes: int = MAX_IMPLICIT_BYTES

    def updated(self, options: Mapping[str, Any]) -> Defaults:
        """These defaults with the options that are given.

        Raises:
            ShardingError: no mesh.
            ProgramError: an unknown precision.
            InvalidRequest: a timeout that is no positive number, a progress that cannot be called, or a keep that is
                neither True, False nor None.
        """
        changes: dict[str, Any] = {}
        if options.get("mesh") is not None:
            changes["mesh"] = read_mesh(options["mesh"])
        if options.get("precision") is not None:
            changes["precision"] = check_precision(options["precision"])
        if "timeout" in options:
            changes["timeout_s"] = check_timeout(options["timeout"])
        if "progress" in options:
            changes["progress"] = check_progress(options["progress"])
        if "keep" in options:
            changes["keep"] = check_keep(options["keep"])
        return replace(self, **changes) if changes else self


def check_precision(value: Any) -> Precision:
    for known in PRECISIONS:
        if value == known:
            return known
    raise ProgramError(
        f"precision is one of {', '.join(map(repr, PRECISIONS))}, not {value!r}{nearest(str(value), PRECISIONS)}"
    )


def check_timeout(value: Any) -> float | None:
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value <= 0:
        raise InvalidRequest(f"timeout is a positive number of seconds, or None, not {value!r}")
    return float(value)


def check_progress(value: Any) -> ProgressCallback | None:
    if value is not None and not callable(value):
        raise InvalidRequest(f"progress is a function of one argument, or None, not {value!r}")
    return value  # type: ignore[no-any-return]


def check_keep(value: Any) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise InvalidRequest(f"keep is True, False, or None (as the arguments), not {value!r}")


def check_bytes(value: Any, *, what: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise InvalidRequest(f"{what} is a number of bytes, not {value!r}")
