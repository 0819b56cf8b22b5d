"""Calls in wire form: from a kernel or a function, its arguments and options to a header and buffers. No I/O here."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardserve_proto.abstract import Aval, Scope, evaluate_mapped, identity_mapping
from shardserve_proto.errors import ProgramError
from shardserve_proto.frames import Buffer, encode_frame, encode_header
from shardserve_proto.handles import ID_BYTES
from shardserve_proto.limits import LIMITS
from shardserve_proto.messages import CallRequest, Keep, Precision, check_call
from shardserve_proto.programs import Mapping as AxisMapping
from shardserve_proto.programs import Param, Program, validate
from shardserve_proto.signatures import BUILTIN
from shardserve_proto.specs import AUTO, WireMesh, WireSpec

from ._arrays import Array, Leaf, arguments_of, as_leaf, aval_of, buffers_of, check_body, describe, handles_of
from ._config import HEADERS_KEPT
from ._functions import TracedFunction, traced
from ._kernel_axes import kernel_mapping, without_labels
from ._lru import Remembered
from ._options import Defaults
from ._params import wire_params
from ._progress import ProgressCallback
from ._specs import read_shardings
from ._tracing import significant
from ._tree import LEAF, Tree, flatten, unflatten


@dataclass(frozen=True)
class Outgoing:
    """A call that is ready to be sent, as often as it takes.

    Attributes:
        title: the kernel, or the function's name, for logs.
        header: of the frame; identical calls have identical headers.
        leaves: the arguments, whose own memory is sent.
        expected: abstract results; None when only the server knows.
        rebuild: puts the results together.
        timeout_s: seconds for all of it.
        progress: is told how far large bodies are.
        kept: ids of the results, when they stay on the devices; `expected` is empty then.
        stays: abstract results that stay; None when only the server knows.
        names: labels of the results that stay, where they have any.
        is_pinned: whether these have no lease.
        targets: arrays of the caller's own that results are written to.
    """

    title: str
    header: bytes
    leaves: tuple[Leaf, ...]
    expected: tuple[Aval, ...] | None
    rebuild: Callable[[Sequence[Any]], Any]
    timeout_s: float | None
    progress: ProgressCallback | None = None
    kept: tuple[bytes, ...] = ()
    stays: tuple[Aval, ...] | None = None
    names: tuple[str | None, ...] = ()
    is_pinned: bool = False
    targets: tuple[Array | None, ...] = ()

    def frame(self) -> list[Buffer]:
        """The body, as buffers to send one after another."""
        buffers = buffers_of(self.leaves)
        ids = [bytes.fromhex(handle.id) for handle in handles_of(self.leaves)]
        if ids or self.kept:
            buffers.insert(0, memoryview(b"".join((*ids, *self.kept))))
        return encode_frame(self.header, buffers)

    def keeping(self, results: int) -> Outgoing:
        """The same call, its results kept on the devices under fresh ids."""
        kept = tuple(secrets.token_bytes(ID_BYTES) for _ in range(results))
        return replace(self, kept=kept, stays=self.expected, expected=())


@dataclass(frozen=True)
class Setting:
    """The part of a header beside program and arguments; hashable.

    Attributes:
        keeps: for each result what to keep, without the row of its id; None for all as data.
    """

    mapping: AxisMapping | None
    in_specs: tuple[WireSpec, ...] | None
    out_specs: tuple[WireSpec, ...] | None
    mesh: WireMesh | None
    precision: Precision
    timeout_s: float | None
    keeps: tuple[Keep, ...] | None = None


_Header = tuple[bytes, tuple[Aval, ...] | None]
_headers: Remembered[_Header] = Remembered(HEADERS_KEPT)
_KEPT = Keep(array=0)


def kernel_call(
    kernel: str, operands: Sequence[Any], params: Mapping[str, Any], options: Mapping[str, Any], defaults: Defaults
) -> Outgoing:
    """A plain kernel call: a program of one step.

    Arguments:
        params: static parameters as the user gave them.
        options: `CallOptions` as the user gave them.

    Raises:
        UnsupportedArray: an argument that cannot be carried.
        ShardserveError: whatever the kernel's rule, the axes or the specs refuse.
    """
    leaves = tuple(as_leaf(operand, what=f"argument {index} of {kernel}") for index, operand in enumerate(operands))
    check_count(leaves)
    wired = wire_params(kernel, params)
    if kernel in BUILTIN:
        wired = significant(kernel, wired)
    defaults = defaults.updated(options)
    setting = _setting(kernel, wired, leaves, options, defaults)
    # 1, 1.0 and True are equal keys, but not equal parameters: hence repr.
    key = (kernel, repr(wired), describe(leaves), setting)
    header, expected = _headers.get(key, lambda: _kernel_header(kernel, wired, leaves, setting))
    outgoing = Outgoing(kernel, header, leaves, expected, _only, setting.timeout_s, defaults.progress)
    return outgoing.keeping(1) if setting.keeps else outgoing


def check_count(leaves: Sequence[Any]) -> None:
    """Hold the number of arguments against the limit; the segment of ids is one of them.

    Raises:
        ProgramError: too many.
    """
    if len(leaves) > LIMITS.segments:
        raise ProgramError(f"the call has {len(leaves)} arguments, at most {LIMITS.segments} are allowed; stack them")


def _only(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


def _setting(
    kernel: str,
    params: dict[str, Param],
    leaves: Sequence[Leaf],
    options: Mapping[str, Any],
    defaults: Defaults,
) -> Setting:
    if not options:  # the usual small call
        keeps = kept_results(leaves, defaults, 1)
        return Setting(None, None, None, defaults.mesh, defaults.precision, defaults.timeout_s, keeps)
    tree = Tree(tuple, (), (LEAF,) * len(leaves))
    into = read_shardings(options.get("in_shardings", AUTO), tree, "in_shardings")
    out = read_shardings(options.get("out_shardings", AUTO), LEAF, "out_shardings")
    return Setting(
        kernel_mapping(kernel, params, leaves, options),
        into.specs,
        out.specs,
        defaults.mesh or into.mesh or out.mesh,
        defaults.precision,
        defaults.timeout_s,
        kept_results(leaves, defaults, 1),
    )


def kept_results(leaves: Sequence[Leaf], defaults: Defaults, results: int) -> tuple[Keep, ...] | None:
    """What to keep of the results: all of them if any argument is resident, unless the caller says otherwise."""
    keeps = bool(handles_of(leaves)) if defaults.keep is None else defaults.keep
    return (_KEPT,) * results if keeps else None


def _kernel_header(kernel: str, params: dict[str, Param], leaves: Sequence[Leaf], setting: Setting) -> _Header:
    program = Program.of_kernel(kernel, operands=len(leaves), params=params)
    expected = None
    if kernel in BUILTIN:
        mapping = without_labels(kernel, setting.mapping or identity_mapping(program))
        expected = tuple(evaluate_mapped(program, mapping, [aval_of(leaf) for leaf in leaves], Scope(), BUILTIN))
    return encode_call(program, leaves, setting), expected


def remembered_header(key: Hashable, make: Callable[[], bytes]) -> bytes:
    """The header of calls that are equal by their key."""
    header, _ = _headers.get(key, lambda: (make(), None))
    return header


def encode_call(program: Program, leaves: Sequence[Leaf], setting: Setting) -> bytes:
    """The header of a call, checked."""
    keeps = setting.keeps or ()
    arguments, segments = arguments_of(leaves, kept=len(keeps))
    check_body(sum(segment.nbytes for segment in segments))
    used = len(handles_of(leaves))
    if len(segments) > LIMITS.segments:
        raise ProgramError(f"the call has more than {LIMITS.segments - 1} arrays beside its ids; stack some of them")
    results = tuple(keep.model_copy(update={"array": used + row}) for row, keep in enumerate(keeps))
    fields = {
        "program": program,
        "arguments": arguments,
        "segments": segments,
        "mesh": setting.mesh,
        "mapping": setting.mapping,
        "in_shardings": setting.in_specs,
        "out_shardings": setting.out_specs,
        "precision": setting.precision,
        "timeout_s": setting.timeout_s,
        "ids": 0 if used or keeps else None,
        "results": results or None,
    }
    call = validate(CallRequest, fields)
    check_call(call)
    return encode_header(call.to_wire())


def function_call(function: Any, args: tuple[Any, ...], options: Mapping[str, Any], defaults: Defaults) -> Outgoing:
    """A call of a user's function, traced if it is new.

    Arguments:
        args: trees of arrays and scalars.
        options: `RunOptions` as the user gave them.

    Raises:
        ShardserveError: whatever cannot be carried or traced, or is refused by a rule.
    """
    given, tree = flatten(args)
    paths = [path.removeprefix("args") for path in tree.paths("args")]
    named = zip(given, paths, strict=True)
    leaves = tuple(
        as_leaf(leaf, what=f"argument {path.replace('[', '', 1).replace(']', '', 1)}") for leaf, path in named
    )
    check_count(leaves)
    program = traced(function, tree, leaves)
    defaults = defaults.updated(options)
    setting = Setting(
        program.mapping,
        program.in_specs,
        program.out_specs,
        defaults.mesh or program.mesh,
        defaults.precision,
        defaults.timeout_s,
        kept_results(leaves, defaults, len(program.outputs)),
    )
    leaves += program.captured
    header = program.headers.get(setting, lambda: encode_call(program.program, leaves, setting))
    title = getattr(function, "__name__", type(function).__name__)
    rebuild = _rebuilder(program)
    outgoing = Outgoing(title, header, leaves, program.outputs, rebuild, setting.timeout_s, defaults.progress)
    return outgoing.keeping(len(program.outputs)) if setting.keeps else outgoing


def _rebuilder(program: TracedFunction) -> Callable[[Sequence[Any]], Any]:
    return lambda values: unflatten(program.out_tree, iter(values))
