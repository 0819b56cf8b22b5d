"""Parts of resident arrays that go to their caller: cut out of the shards as they are gathered.

A compiled program has the positions of a slice in it, so each new index would cost a compilation and a place in the
cache of programs; a copy of the part costs neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from shardserve_proto.messages import CallRequest
from shardserve_proto.rules import slice_ranges

from .placement import Where
from .transfer import Array, HostShard

#: For each dimension the positions that are taken, in their order.
Cut: TypeAlias = tuple[range, ...]


def cut_of(call: CallRequest, residents: Sequence[Where | None]) -> Cut | None:
    """What is taken, if the call only asks for a part of one resident array; else None."""
    says_where = (call.mapping, call.mesh, call.in_shardings, call.out_shardings)
    if len(residents) != 1 or residents[0] is None or any(call.kept()) or any(said is not None for said in says_where):
        return None
    steps = call.program.steps
    kernels = [step.kernel for step in steps]
    is_chain = all(step.operands == (number,) and step.specs is None for number, step in enumerate(steps))
    if kernels not in (["slice"], ["slice", "reshape"]) or not is_chain or call.program.outputs != (len(steps),):
        return None
    return tuple(slice_ranges(residents[0].placed.aval.shape, steps[0].params))


def copy_cut(shards: Sequence[HostShard], cut: Cut, target: Array) -> None:
    """Copy the positions of a cut out of the shards that hold some of them.

    Arguments:
        target: its shape is that of the cut.
    """
    backward = tuple(slice(None, None, -1 if taken.step < 0 else 1) for taken in cut)
    rising = target[backward]
    forward = [taken[::-1] if taken.step < 0 else taken for taken in cut]
    for bounds, data in shards:
        parts = [_within(taken, part) for taken, part in zip(forward, bounds, strict=True)]
        if all(first < last for first, last in parts):
            there = tuple(slice(first, last) for first, last in parts)
            here = tuple(
                slice(taken[first] - part.start, taken[last - 1] - part.start + 1, taken.step)
                for taken, part, (first, last) in zip(forward, bounds, parts, strict=True)
            )
            rising[there] = data[here]


def _within(taken: range, part: slice) -> tuple[int, int]:
    """Which of the positions lie in one shard: numbers of the first one, and of the one behind the last."""
    first = max(0, -(-(part.start - taken.start) // taken.step))
    last = min(len(taken), -(-(part.stop - taken.start) // taken.step))
    return first, last
