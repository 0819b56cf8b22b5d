"""What both clients do with resident arrays, written once: what to ask, in which order; a client sends it or awaits it.

A method here makes a generator of calls and questions, whose answers come back to it; `_drive` of the client runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Generic, TypedDict, TypeVar, Unpack

from shardserve_proto.dtypes import dtype_named
from shardserve_proto.errors import BadReply, Forbidden, InvalidRequest
from shardserve_proto.messages import ArrayInfo, Report
from shardserve_proto.specs import AUTO

from . import _asks
from ._array import Lease, RemoteArray, RemoteSlice
from ._arrays import Leaf, handles_of
from ._config import Address
from ._downloads import cut_call, get_calls
from ._keywords import check_keywords
from ._listing import ArrayList
from ._options import Defaults
from ._progress import ProgressCallback
from ._releases import Releases
from ._requests import Outgoing
from ._transfers import check_ttl, put_calls, reshard_call
from ._tree import flatten, unflatten

R = TypeVar("R")
Steps = Generator[Any, Any, Any]


class TransferOptions(TypedDict, total=False):
    """Keywords of put and get: `timeout` and `progress`, as of every call."""

    timeout: float | None
    progress: ProgressCallback | None


_GET_KEYWORDS = ("out", *TransferOptions.__annotations__)
_PUT_KEYWORDS = ("spec", "mesh", "name", "ttl", "pinned", "replace", *TransferOptions.__annotations__)


class ResidentMethods(Generic[R]):
    """put, get, attach, arrays, delete and memory of a client; with an `AsyncClient` each is awaited."""

    _address: Address
    _defaults: Defaults
    _releases: Releases
    _is_blocking = True

    def _drive(self, steps: Steps) -> Any:
        raise NotImplementedError

    def _current(self) -> Defaults:
        raise NotImplementedError

    def put(
        self,
        x: Any,
        spec: Any = AUTO,
        *,
        mesh: str | Mapping[str, int] | Sequence[tuple[str, int]] | None = None,
        name: Any = None,
        ttl: float | None = None,
        pinned: bool = False,
        replace: bool = False,
        **options: Unpack[TransferOptions],
    ) -> Any:
        """Put an array on the devices, where it stays for the calls to come.

        Arguments:
            x: an array, or a tree of them (tuples, lists, dicts), which is put by one call for each 255 arrays. A
                resident array is copied without leaving the devices. When a later call of several fails, what those
                before it made is released, but for named and pinned arrays.
            spec: how it is split over the mesh, one for all or a tree prefix; None replicates, AUTO leaves the choice
                to the server.
            mesh: default: that of the block or the client.
            name: a label by which other clients of the same key find it; a tree of labels for a tree.
            ttl: seconds that it stays after each use; default: the server's own.
            pinned: it stays until it is deleted, and outlives the engine by a copy in host memory.
            replace: move the label from the array that has it; calls that run keep the old one.
            options: timeout, progress.

        Returns: a `RemoteArray`, or a tree of them.

        Raises:
            UnsupportedArray: an array that cannot be carried, before a byte is sent.
            NameTaken: another array has this name.
            OutOfMemory, QuotaExceeded: there is no room, or the key has too many.

        Example:
            h = client.put(vectors, P("devices", None), name="catalogue", ttl=3600)
        """
        check_keywords(options, _PUT_KEYWORDS, what="client.put")
        labels = {"name": name, "ttl": ttl, "pinned": pinned, "replace": replace}
        return self._drive(self._put_steps(x, spec, mesh, labels, options))

    def get(self, x: Any, out: Any = None, **options: Unpack[TransferOptions]) -> Any:
        """Download arrays, however large they are: whole ones by one call, parts by another (255 of them by each).

        Arguments:
            x: a `RemoteArray`, a part of one (`h[:10]`), a name, or a tree of them.
            out: an array of the same shape and dtype that is filled in place, or a tree of them; after an error it may
                be filled in part.
            options: timeout, progress.

        Returns: NumPy arrays in the same tree; `out`, if given.
        """
        check_keywords(options, _GET_KEYWORDS, what="client.get")
        return self._drive(self._get_steps(x, out, options))

    def attach(self, name: str) -> Any:
        """A handle of an array that is on the server already.

        Arguments:
            name: its name, or its id (`RemoteArray.id`).

        Returns: a `RemoteArray`, which is not released with its last object.

        Raises:
            NotFound: no such array, with the nearest name; nor one that was lost when the server was started anew,
                since only a handle tells when its id was known.
            Expired: its lease is over, or it was lost with an engine.
        """
        return self._drive(self._attach_steps(name))

    def arrays(self) -> Any:
        """All arrays of this key, newest first, and those that the server's operator declared.

        Returns: a list of `ArrayInfo`, which prints as a table.
        """
        return self._drive(self._arrays_steps())

    def delete(self, *arrays: Any) -> Any:
        """Delete arrays. Calls that run with them end well; their handles are refused from now on.

        Arguments:
            arrays: handles, names or ids, or trees of them. A handle may be deleted twice; an unknown name is NotFound.

        Raises:
            Forbidden: an array that the server's operator declared.
        """
        return self._drive(self._delete_steps(arrays))

    def memory(self) -> Any:
        """The server's ledger: a `MemoryInfo` of what arrays, calls and transfers take, which prints as a table."""
        return self._drive(_ask(_asks.memory(self._defaults.timeout_s)))

    # --- of a handle -------------------------------------------------------------------------------------------------

    def _reshard(self, handle: RemoteArray, spec: Any, mesh: Any) -> Any:
        return self._drive(self._value(reshard_call(handle, spec, mesh, self._current())))

    def _cut(self, part: RemoteSlice) -> Any:
        return self._drive(self._value(cut_call(part, self._current())))

    def _lease(self, handle: RemoteArray) -> Any:
        return self._drive(self._lease_steps(handle))

    def _renew(self, handle: RemoteArray, ttl: float | None) -> Any:
        return self._drive(self._renew_steps(handle, check_ttl(ttl)))

    def _pin(self, handle: RemoteArray) -> Any:
        return self._drive(self._new_lease_steps(handle, {"pinned": True}))

    # --- step by step ------------------------------------------------------------------------------------------------

    def _value(self, outgoing: Outgoing) -> Steps:
        self._check_handles(outgoing.leaves)
        return (yield outgoing).value

    def _values(self, calls: Sequence[Outgoing], rebuild: Callable[[Sequence[Any]], Any]) -> Steps:
        for outgoing in calls:
            self._check_handles(outgoing.leaves)
        values = []
        for outgoing in calls:
            values.append((yield outgoing).value)
        return rebuild(values)

    def _put_steps(self, x: Any, spec: Any, mesh: Any, labels: Mapping[str, Any], options: Any) -> Steps:
        (x,) = yield from self._settled((x,))
        defaults = self._current().updated(options)
        return (yield from self._values(*put_calls(x, spec, labels, mesh=mesh, defaults=defaults)))

    def _whole(self, operands: Sequence[Any]) -> Steps:
        """The operands of a kernel, which are no trees, with the parts of arrays among them cut out."""
        whole = []
        for operand in operands:
            is_part = isinstance(operand, RemoteSlice)
            whole.append((yield from self._value(cut_call(operand, self._current()))) if is_part else operand)
        return whole

    def _settled(self, args: tuple[Any, ...]) -> Steps:
        """The arguments of a function, with the parts of arrays among them cut out."""
        leaves, tree = flatten(args)
        return unflatten(tree, iter((yield from self._whole(leaves))))

    def _get_steps(self, x: Any, out: Any, options: Any) -> Steps:
        sources, tree = flatten(x)
        for number, source in enumerate(sources):
            if isinstance(source, str):
                sources[number] = yield from self._attach_steps(source)
            elif not isinstance(source, RemoteArray | RemoteSlice):
                raise InvalidRequest(
                    f"client.get takes resident arrays and their names, not a {type(source).__name__}; "
                    "client.put makes one"
                )
        if not sources:
            return x
        return (yield from self._values(*get_calls(sources, tree, out, self._current().updated(options))))

    def _attach_steps(self, name: str) -> Steps:
        question = _asks.info(name, self._defaults.timeout_s)
        info: ArrayInfo = yield question
        return RemoteArray.attached(self, info, question.epoch)

    def _arrays_steps(self) -> Steps:
        return ArrayList((yield _asks.listing(self._defaults.timeout_s)))

    def _delete_steps(self, arrays: tuple[Any, ...]) -> Steps:
        leaves, _ = flatten(arrays)
        for leaf in leaves:
            if not isinstance(leaf, RemoteArray | str):
                raise InvalidRequest(f"client.delete takes handles, names and ids, not a {type(leaf).__name__}")
        handles = [handle for handle in handles_of(leaves) if not handle.is_deleted]
        self._check_own(handles)
        for start in range(0, len(handles), _asks.MOST_RELEASED):
            some = handles[start : start + _asks.MOST_RELEASED]
            yield _asks.release([handle.id for handle in some], self._defaults.timeout_s)
        for handle in handles:
            handle._forget()
        for name in leaves:
            if isinstance(name, str):
                yield _asks.delete(name, self._defaults.timeout_s)

    def _lease_steps(self, handle: RemoteArray) -> Steps:
        self._check_handles([handle])
        return Lease.of((yield _asks.info(handle.id, self._defaults.timeout_s, epoch=handle.epoch)))

    def _renew_steps(self, handle: RemoteArray, ttl_s: float | None) -> Steps:
        self._check_own([handle])
        if ttl_s is None:
            ttl_s = (yield from self._lease_steps(handle)).ttl_s
        if ttl_s is None:
            raise InvalidRequest(f"{handle!r} has no lease to renew; renew(ttl) with a number of seconds gives it one")
        return (yield from self._new_lease_steps(handle, {"ttl_s": ttl_s}))

    def _new_lease_steps(self, handle: RemoteArray, wanted: Mapping[str, Any]) -> Steps:
        self._check_own([handle])
        lease = Lease.of((yield _asks.lease(handle.id, wanted, self._defaults.timeout_s, epoch=handle.epoch)))
        if lease.pinned:
            handle.detach()
        return lease

    # --- handles in and out ------------------------------------------------------------------------------------------

    def _check_handles(self, leaves: Sequence[Leaf]) -> None:
        """Refuse handles that this server cannot know, before anything is sent.

        Raises:
            InvalidRequest: of another server or key, or deleted.
        """
        for handle in handles_of(leaves):
            other = handle._client._address
            if other != self._address:
                whose = "another key" if other.url == self._address.url else f"the server at {other.url}"
                raise InvalidRequest(f"{handle!r} belongs to {whose}; this client speaks to {self._address.url}")
            if handle.is_deleted:
                raise InvalidRequest(f"{handle!r} was deleted; put it again")

    def _check_own(self, handles: Sequence[RemoteArray]) -> None:
        """Refuse also those that nobody may change.

        Raises:
            Forbidden: a declared array.
        """
        self._check_handles(handles)
        for handle in handles:
            if handle._is_declared:
                raise Forbidden(
                    f"array {handle.name!r} is declared by the operator; everybody may use it, nobody may change it"
                )

    def _handles(self, outgoing: Outgoing, report: Report, epoch: str) -> list[RemoteArray]:
        """Handles of the results that stayed."""
        if len(report.outputs) != len(outgoing.kept):
            raise BadReply(f"the server kept {len(report.outputs)} results, the call has {len(outgoing.kept)}")
        names = outgoing.names or (None,) * len(outgoing.kept)
        releases = None if outgoing.is_pinned else self._releases.watch()
        for index, (placement, aval) in enumerate(zip(report.outputs, outgoing.stays or (), strict=False)):
            if placement.shape != aval.shape or dtype_named(placement.dtype) != aval.strong_dtype:
                raise BadReply(
                    f"result {index} of the server is {placement.dtype}{list(placement.shape)}, but the program gives "
                    f"{aval}"
                )
        return [
            RemoteArray(
                self, key, placement, mesh=report.mesh, devices=report.devices, name=name,
                releases=None if name else releases, epoch=epoch,
            )
            for key, placement, name in zip(outgoing.kept, report.outputs, names, strict=True)
        ]  # fmt: skip


def _ask(question: Any) -> Steps:
    return (yield question)
