"""The ledger of device memory: what is resident, what is reserved, and what neither may exceed."""

from __future__ import annotations

import gc
import secrets
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from shardserve_proto.abstract import Aval
from shardserve_proto.errors import Expired, InternalError, OutOfMemory, TooLarge
from shardserve_proto.frames import encode_header
from shardserve_proto.messages import CallRequest, Keep, Segment, SegmentArgument, ids_segment
from shardserve_proto.programs import Program, Step
from shardserve_proto.specs import P
from shardserve_server.engine import call as call_module
from shardserve_server.engine.call import RunningCall
from shardserve_server.engine.engine import Engine, EngineSettings
from shardserve_server.engine.executable import Executable
from shardserve_server.engine.ledger import Ledger
from shardserve_server.engine.placement import Where, place
from shardserve_server.engine.store import Store
from tests.calls import encode
from tests.residents import TRANSFER, Handle, aligned, get, put, run


@pytest.fixture
def small() -> Iterator[Engine]:
    """An engine with a budget of one MiB."""
    engine = Engine(EngineSettings(devices=8, memory_bytes=2**20))
    yield engine
    engine.close()


def _settled(engine: Engine) -> dict[str, Any]:
    gc.collect()
    return engine.memory()


def test_every_resident_byte_is_counted_with_padding_and_replicas(small: Engine) -> None:
    x = np.ones((9, 4))
    split = put(small, x, out_shardings=(("devices",),))
    assert _settled(small)["resident_bytes"] == 16 * 4 * 8
    whole = put(small, x, out_shardings=(None,))
    assert _settled(small)["resident_bytes"] == 16 * 4 * 8 + 8 * x.nbytes
    small.delete("", [split.id, whole.id])
    assert _settled(small)["resident_bytes"] == 0


def test_reservations_return_to_zero_whatever_happens_to_the_call(small: Engine) -> None:
    """D3: success, refusal by the planner, failure at the launch, cancellation."""
    x = np.ones((64, 64))
    handle = put(small, x)
    for _ in range(20):
        run(small, Program.of_kernel("sum", operands=1), handle)
        with pytest.raises(Expired):
            get(small, Handle(b"0" * 16))
    memory = _settled(small)
    assert memory["reserved_bytes"] == 0
    assert memory["resident_bytes"] == sum(holder["device_bytes"] for holder in memory["holders"])


def test_what_never_fits_and_what_does_not_fit_now_are_two_errors(small: Engine) -> None:
    """D1, D2: refused before anything is allocated, with what is needed, what is free and who has it."""
    with pytest.raises(TooLarge):
        put(small, np.zeros(2**20 // 8 + 1))
    kept = put(small, np.zeros(90_000))
    with pytest.raises(OutOfMemory) as caught:
        put(small, np.zeros(90_000))
    details = caught.value.details
    assert details["needed_bytes"] == 720_000
    assert details["free_bytes"] == 2**20 - 720_000
    assert details["holders"][0]["id"] == kept.id.hex()
    assert (details["is_transient"], caught.value.retry_after_s) == (False, 10.0)
    small.delete("", [kept.id])
    gc.collect()
    put(small, np.zeros(90_000))


def test_many_calls_that_fit_alone_wait_for_each_other(small: Engine) -> None:
    """D2: together they would take more than there is; the sum of reservations never passes the limit."""
    x = np.ones(40_000)  # 640 kB with its result
    most = 0
    program = Program.of_kernel("exp", operands=1)
    header, segments = encode(program, x)
    futures = [small.submit(header, segments) for _ in range(20)]
    while not all(future.done() for future in futures):
        memory = small.memory()
        most = max(most, memory["reserved_bytes"] + memory["resident_bytes"])
    assert all(future.exception() is None for future in futures)
    assert most <= 2**20
    assert _settled(small)["reserved_bytes"] == 0


HOOKS = [
    (RunningCall, "_check_deadline"), (RunningCall, "_reserve"), (RunningCall, "_upload"), (RunningCall, "_keep"),
    (RunningCall, "_gather"), (Executable, "reply"),
    (call_module, "upload"), (call_module, "gather"), (call_module, "Stream"), (jax, "block_until_ready"),
]  # fmt: skip


@pytest.mark.parametrize(("owner", "hook"), HOOKS, ids=[hook for _, hook in HOOKS])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_fault_anywhere_in_the_engine_leaves_nothing_reserved_and_nothing_kept(
    small: Engine, monkeypatch: pytest.MonkeyPatch, owner: Any, hook: str, when: str
) -> None:
    """D3: raise before and after every step of a call that has one result as data and keeps another."""
    monkeypatch.setattr(call_module, "STREAM_BYTES", 80_000 if hook == "Stream" else 2**20)
    original, failed = getattr(owner, hook), []

    def broken(*args: Any, **kwargs: Any) -> Any:
        if when == "after":
            original(*args, **kwargs)
        failed.append(hook)
        raise RuntimeError("a fault of the test")

    x = np.ones((100, 128))  # a call on it is large enough to take every step
    request, segments, ids = two_results(x)
    first = small.submit(request, segments, ids=ids, streams=True).result(50)
    if first.stream is not None:
        first.stream.close()
    small.delete("", ids)
    with monkeypatch.context() as patch:
        patch.setattr(owner, hook, broken)
        with pytest.raises(InternalError):
            small.submit(request, segments, ids=ids, streams=True).result(50)
    assert failed
    memory = _settled(small)
    assert (memory["reserved_bytes"], memory["resident_bytes"]) == (0, 0)
    small.submit(request, segments, ids=ids, streams=True).result(50)


def two_results(x: Any) -> tuple[bytes, list[Any], list[bytes]]:
    """A call that gives its argument's exponential twice: as data, and kept."""
    steps = (Step(kernel="exp", operands=(0,)), Step(kernel="negative", operands=(0,)))
    request = CallRequest(
        program=Program(inputs=1, steps=steps, outputs=(1, 2)),
        arguments=(SegmentArgument(segment=0),),
        segments=(
            Segment(dtype=x.dtype.name, shape=x.shape, nbytes=x.nbytes),
            ids_segment(),
        ),
        ids=1,
        mesh="default",
        results=(None, Keep(array=0)),
    )
    key = secrets.token_bytes(16)
    return encode_header(request.to_wire()), [aligned(x), np.frombuffer(key, np.uint8)], [key]


def test_the_result_of_a_call_that_kept_an_id_twice_is_not_counted_twice() -> None:
    ledger = Ledger(1000)
    store = Store(ledger)
    array = jax.numpy.ones(4, "float32")
    where = Where(place(Aval((4,), np.dtype("float32")), P(), ()), None)
    for _ in range(2):
        call = ledger.reserve(100, owner="")
        store.keep("", b"k", array, where, call)
        call.release()
    assert ledger.held_bytes("array") == 16
    assert ledger.held_bytes("call") == 0


@pytest.mark.parametrize("end", ["room comes", "nobody waits"])
def test_a_call_that_waits_for_room_holds_up_nobody(small: Engine, end: str) -> None:
    """A stream that is not read holds memory; a large put waits for it beside its lane, and small ones pass."""
    held = small._around.ledger.reserve(700_000, owner="slow reader")
    key = secrets.token_bytes(16)
    header = encode_header(
        CallRequest(
            program=TRANSFER,
            arguments=(SegmentArgument(segment=0),),
            segments=(
                Segment(dtype="float64", shape=(75_000,), nbytes=600_000),
                ids_segment(),
            ),
            ids=1,
            results=(Keep(array=0),),
        ).to_wire()
    )
    large = small.submit(header, [aligned(np.ones(75_000))], ids=[key])
    for _ in range(5):
        assert get(small, put(small, np.ones(10))).sum() == 10
    assert not large.done()
    if end == "nobody waits":
        assert large.cancel()
    held.release()
    if end == "room comes":
        large.result(10)
        assert get(small, Handle(key)).sum() == 75_000
    deadline = time.monotonic() + 10
    while small.memory()["reserved_bytes"]:
        assert time.monotonic() < deadline


def test_another_name_of_an_array_takes_no_memory_and_keeps_the_first_one(small: Engine) -> None:
    """An array that is put again from its handle stays where it lies, and is counted once, as long as either is."""
    x = np.arange(75_000.0)
    first = put(small, x)
    taken = _settled(small)["resident_bytes"]
    others = [Handle(secrets.token_bytes(16)) for _ in range(3)]
    for other in others:
        run(small, TRANSFER, first, keep=[other.id])
    assert _settled(small)["resident_bytes"] == taken
    small.delete("", [first.id, others[0].id])
    assert _settled(small)["resident_bytes"] == taken
    np.testing.assert_array_equal(get(small, others[1]), x)
    small.delete("", [other.id for other in others])
    assert _settled(small)["resident_bytes"] == 0


@pytest.mark.parametrize("count", [1000, 75_000])
def test_one_array_that_a_call_keeps_many_times_is_counted_once(small: Engine, count: int) -> None:
    before = _settled(small)["resident_bytes"]
    keys = [secrets.token_bytes(16) for _ in range(50)]
    run(small, Program(inputs=1, outputs=(0,) * 50), np.ones(count), keep=keys)
    assert _settled(small)["resident_bytes"] - before == 8 * count
    assert get(small, Handle(keys[-1])).sum() == count
    small.delete("", keys)
    assert _settled(small)["resident_bytes"] == before
