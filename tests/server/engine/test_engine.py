"""The engine's promises to its caller: deadlines, cancellation, bounds, errors, aliasing, repeatability."""

from __future__ import annotations

import gc
import pickle
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any

import jax
import numpy as np
import pytest

from shardserve_proto.errors import (
    CompileFailed,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    Overloaded,
    ShapeError,
    TooLarge,
)
from shardserve_proto.frames import encode_header
from shardserve_proto.signatures import Signature
from shardserve_server.engine.engine import CallResult, Engine, EngineSettings
from shardserve_server.kernels import Context, Kernel, default_registry
from tests.calls import encode, mapping, run


def test_a_product_that_needs_terabytes_is_refused_by_size_before_compilation(engine: Engine) -> None:
    """B68: `matmul (2**20, 1) @ (1, 2**20)` in float32 takes 2**42 bytes."""
    before = engine.cache.compilations
    x = np.ones((2**20, 1), np.float32)
    with pytest.raises(TooLarge, match=str(2**42)) as raised:
        run(engine, "matmul", x, x.T)
    assert raised.value.details["needed_bytes"] >= 2**42
    assert engine.cache.compilations == before
    assert run(engine, "matmul", x.T, x).value == 2**20


def test_the_same_call_repeats_bit_for_bit(engine: Engine) -> None:
    """B51."""
    x = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    spec = ((("devices",)),)
    first = run(engine, "sum", x, in_shardings=(spec[0],)).value.tobytes()
    assert all(run(engine, "sum", x, in_shardings=(spec[0],)).value.tobytes() == first for _ in range(50))


def test_a_total_differs_between_meshes_only_in_its_last_digits(engine: Engine) -> None:
    """B51: 1, 2, 4 and 8 devices."""
    x = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    totals = [float(run(engine, "sum", x, mesh=(("d", n),), in_shardings=(("d",),)).value) for n in (1, 2, 4, 8)]
    magnitude = float(np.abs(x).sum())
    assert max(totals) - min(totals) <= 1e-6 * magnitude
    counts = {int(run(engine, "sum", np.arange(4096), mesh=(("d", n),), in_shardings=(("d",),)).value) for n in (1, 8)}
    assert counts == {4095 * 2048}


def test_a_call_whose_deadline_passed_in_the_queue_never_reaches_the_devices(engine: Engine) -> None:
    header, segments = encode("exp", np.arange(3.0))
    engine.submit(header, segments).result(10)
    with pytest.raises(DeadlineExceeded):
        engine.submit(header, segments, deadline=time.monotonic() - 1).result(10)


def test_a_broken_header_is_a_named_error_and_the_engine_goes_on(engine: Engine) -> None:
    for header in (b"", b"\xc1", encode_header({"program": 3}), encode_header({})):
        with pytest.raises(InvalidRequest):
            engine.submit(header, []).result(10)
    assert run(engine, "add", 1, 2).value == 3


@pytest.fixture
def gate() -> threading.Event:
    return threading.Event()


@pytest.fixture
def gated(gate: threading.Event) -> Any:
    """An engine of two places whose kernel `gated` waits while it is traced, that is, while it compiles."""

    def implementation(context: Context, x: jax.Array) -> jax.Array:
        assert gate.wait(30)
        return x

    registry = default_registry()
    identity = registry["identity"].signature
    registry.add(Kernel(Signature("gated", ("x",), identity.rule), implementation, "Waits."))
    engine = Engine(EngineSettings(devices=8, queue_depth=2), registry=registry)
    yield engine
    gate.set()
    engine.close()


def test_one_call_more_than_the_queue_holds_is_refused_with_a_time_to_retry(
    gated: Engine, gate: threading.Event
) -> None:
    waiting = [gated.submit(*encode("gated", np.arange(3.0))) for _ in range(2)]
    with pytest.raises(Overloaded) as raised:
        gated.submit(*encode("gated", np.arange(3.0))).result(10)
    assert raised.value.retry_after_s == 1.0
    gate.set()
    assert all(len(future.result(30).segments) == 1 for future in waiting)
    gated.submit(*encode("gated", np.arange(3.0))).result(10)


def test_a_call_that_is_cancelled_before_its_launch_leaves_the_queue(gated: Engine, gate: threading.Event) -> None:
    future: Future[CallResult] = gated.submit(*encode("gated", np.arange(3.0)))
    assert future.cancel()
    gate.set()
    with pytest.raises(CancelledError):
        future.result(10)
    for _ in range(3):  # the place is free again, each time
        gated.submit(*encode("gated", np.arange(3.0))).result(10)


def _engine_with(implementation: Callable[..., Any]) -> Engine:
    registry = default_registry()
    rule = registry["identity"].signature.rule
    registry.add(Kernel(Signature("mine", ("x",), rule), implementation, "Mine."))
    return Engine(EngineSettings(devices=8), registry=registry)


def test_a_kernel_of_an_operators_own_runs_by_name() -> None:
    engine = _engine_with(lambda _, x: x + x.dtype.type(1))
    np.testing.assert_array_equal(run(engine, "mine", np.arange(3.0)).value, [1.0, 2.0, 3.0])
    assert "mine" in {kernel.name for kernel in engine.info().kernels}
    engine.close()


def test_a_fault_in_a_kernel_is_logged_under_an_id_and_tells_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    def broken(context: Context, x: jax.Array) -> jax.Array:
        raise KeyError("/etc/secret")

    engine = _engine_with(broken)
    with pytest.raises(InternalError) as raised:
        run(engine, "mine", np.arange(3.0))
    assert "secret" not in str(raised.value)
    assert raised.value.error_id is not None
    assert sum(raised.value.error_id in record.getMessage() for record in caplog.records) == 1
    assert run(engine, "add", 1, 2).value == 3
    engine.close()


def test_what_the_compiler_refuses_is_a_compile_error() -> None:
    def refused(context: Context, x: jax.Array) -> jax.Array:
        return jax.ffi.ffi_call("no_such_target", x)(x)

    engine = _engine_with(refused)
    with pytest.raises((CompileFailed, InternalError)):
        run(engine, "mine", np.arange(3.0))
    assert run(engine, "add", 1, 2).value == 3
    engine.close()


@pytest.mark.parametrize(
    ("shape", "spec"), [((64, 64), "auto"), ((128, 128), "auto"), ((64, 64), ("devices",)), ((9, 64), ("devices",))]
)
def test_buffers_of_a_call_are_let_go_when_it_is_done(engine: Engine, shape: Any, spec: Any) -> None:
    """The front reuses an upload's buffer once the root array dies; nothing on a device may alias it then."""
    x = np.random.default_rng(0).random(shape)
    header, _ = encode("tanh", x, in_shardings=(spec,))
    root = np.frombuffer(x.tobytes(), np.uint8).copy()
    freed = threading.Event()
    weakref.finalize(root, freed.set)
    reply = engine.submit(header, [root[:]]).result(30)
    del root
    if x.nbytes <= 64 * 1024:
        gc.collect()  # such a segment rides in the message itself, no buffer waits for it
    assert freed.wait(10)
    np.testing.assert_allclose(np.frombuffer(reply.segments[0]).reshape(shape), np.tanh(x), rtol=1e-14)


def test_open_small_calls_run_on_one_device_and_large_ones_on_the_mesh(engine: Engine) -> None:
    small, large = np.zeros((8, 8), np.float32), np.zeros((2048, 1024), np.float32)
    assert run(engine, "tanh", small).report.mesh == ()
    report = run(engine, "tanh", large).report
    assert report.mesh == (("devices", 8),)
    assert report.arguments[0].spec == ("devices",)
    assert report.outputs[0].shard_shape == (256, 1024)


def test_an_open_call_never_splits_a_name_without_resources(engine: Engine) -> None:
    x = np.zeros((4096, 1024), np.float32)
    report = run(engine, "tanh", x, mapping=mapping([["i", ...]], [["i", ...]])).report
    assert report.arguments[0].spec == (None, "devices")


def test_errors_cross_a_process_boundary_whole(engine: Engine) -> None:
    with pytest.raises(ShapeError, match="do not fit") as raised:
        run(engine, "matmul", np.zeros((2, 3)), np.zeros((2, 3)))
    copy = pickle.loads(pickle.dumps(raised.value))  # noqa: S301 - our own bytes
    assert (type(copy), str(copy), copy.details) == (type(raised.value), str(raised.value), raised.value.details)
