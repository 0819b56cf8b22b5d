"""Resident arrays: they never change, whatever happens to the memory that they came in; and calls on them."""

from __future__ import annotations

import secrets
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardserve_proto.dtypes import DTYPES
from shardserve_proto.errors import Expired, NameTaken
from shardserve_proto.frames import decode_header, encode_header
from shardserve_proto.messages import ArrayArgument, CallRequest, Keep, Segment, SegmentArgument, ids_segment
from shardserve_proto.programs import Program
from shardserve_server.engine.engine import Engine
from tests.residents import TRANSFER, Handle, aligned, get, put, run

SPECS: list[dict[str, Any]] = [
    {},
    {"mesh": "default", "out_shardings": (("devices",),)},
    {"mesh": "default", "out_shardings": ((None, "devices"),)},
    {"out_shardings": (None,)},
    {"mesh": (("d", 5),), "out_shardings": (("d",),)},
    {"mesh": "grid", "out_shardings": (("x", "y"),)},
    {"mesh": "grid", "out_shardings": ((("y", "x"),),)},
    {"mesh": "grid", "out_shardings": (("y",),)},
]


@given(
    first=st.sampled_from(SPECS), then=st.sampled_from(SPECS), shape=st.tuples(st.integers(0, 20), st.integers(0, 20))
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_an_array_moves_from_any_place_to_any_other_unchanged(
    engine: Engine, first: dict[str, Any], then: dict[str, Any], shape: tuple[int, int]
) -> None:
    x = np.random.default_rng(0).random(shape)
    here = put(engine, x, **first)
    there = Handle(secrets.token_bytes(16))
    outcome = run(engine, TRANSFER, here, keep=[there.id], **then)
    if "out_shardings" in then:
        assert outcome.report.outputs[0].spec == then["out_shardings"][0]
    np.testing.assert_array_equal(get(engine, there), x)
    np.testing.assert_array_equal(get(engine, here), x)
    engine.delete("", [here.id, there.id])


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_stays_as_it_is(engine: Engine, name: str) -> None:
    x = np.array([[1, 0, 1], [0, 1, 1]]).astype(DTYPES[name])
    handle = put(engine, x, out_shardings=(("devices",),))
    found = get(engine, handle)
    assert found.dtype == x.dtype
    assert found.tobytes() == x.tobytes()


def test_the_bits_of_nan_and_of_zeros_stay(engine: Engine) -> None:
    """H2: NaN payloads, signed zeros, infinities and denormals pass through storage bit for bit."""
    bits = np.array([0x7FC00001, 0xFFC0DEAD, 0x80000000, 1, 0x7F800000, 0xFF800000], np.uint32)
    x = bits.view(np.float32)
    np.testing.assert_array_equal(get(engine, put(engine, x)).view(np.uint32), bits)


@pytest.mark.parametrize("spec", [("devices",), (None, "devices"), None])
def test_a_stored_array_owns_its_memory_or_says_that_it_uses_the_buffer(engine: Engine, spec: Any) -> None:
    """D4, F9: JAX aliases aligned host memory on CPU. Whoever owns it learns so; else it may write there at once."""
    x = np.arange(512 * 1024, dtype=np.float32).reshape(64, -1)
    handle = Handle(secrets.token_bytes(16))
    segment = aligned(x)
    outcome = _put_segment(engine, segment, x, handle, spec)
    if not outcome.adopted:
        segment[:] = 0xA5
    np.testing.assert_array_equal(get(engine, handle), x)


def test_a_buffer_that_is_reused_too_early_would_change_the_array(engine: Engine) -> None:
    """The control of the test above: an adopted buffer really is the array, so the promise is needed."""
    x = np.arange(512 * 1024, dtype=np.float32).reshape(64, -1)
    handle = Handle(secrets.token_bytes(16))
    segment = aligned(x)
    outcome = _put_segment(engine, segment, x, handle, ("devices",))
    assert outcome.adopted
    segment[:] = 0
    assert not np.array_equal(get(engine, handle), x)


def _put_segment(engine: Engine, segment: Any, x: Any, handle: Handle, spec: Any) -> Any:
    request = CallRequest(
        program=TRANSFER,
        arguments=(SegmentArgument(segment=0),),
        segments=(
            Segment(dtype=x.dtype.name, shape=x.shape, nbytes=x.nbytes),
            ids_segment(),
        ),
        ids=1,
        results=(Keep(array=0),),
        out_shardings=(spec,),
    )
    return engine.submit(encode_header(request.to_wire()), [segment], ids=[handle.id]).result(20)


def test_a_call_on_a_resident_array_runs_where_it_lies(engine: Engine) -> None:
    x, w = np.random.default_rng(0).random((101, 30)), np.random.default_rng(1).random((30, 7))
    handle = put(engine, x, mesh="grid", out_shardings=(("x",),))
    outcome = run(engine, Program.of_kernel("matmul", operands=2), handle, w)
    assert outcome.report.mesh == (("x", 4), ("y", 2))
    assert outcome.report.arguments[0].spec == ("x",)
    assert not outcome.report.arguments[0].moved
    np.testing.assert_allclose(outcome.values[0], x @ w, rtol=1e-12)


def test_a_call_on_another_mesh_moves_the_array_for_itself_and_says_so(engine: Engine) -> None:
    x = np.random.default_rng(0).random((101, 8))
    handle = put(engine, x, out_shardings=(("devices",),))
    outcome = run(engine, Program.of_kernel("sum", operands=1), handle, mesh=(("a", 5),), in_shardings=(("a",),))
    assert outcome.report.mesh == (("a", 5),)
    assert outcome.report.arguments[0].moved
    np.testing.assert_allclose(outcome.values[0], x.sum(), rtol=1e-12)
    again = run(engine, TRANSFER, handle)
    assert again.report.outputs[0].spec == ("devices",)  # the stored array keeps its spec


def test_results_that_are_kept_and_results_that_are_data_mix(engine: Engine) -> None:
    x = np.arange(12.0).reshape(3, 4)
    program = Program.model_validate(
        {
            "inputs": 1,
            "steps": ({"kernel": "exp", "operands": (0,)}, {"kernel": "sum", "operands": (0,)}),
            "outputs": (1, 2),
        }
    )

    key = secrets.token_bytes(16)
    request = CallRequest(
        program=program,
        arguments=(SegmentArgument(segment=0),),
        segments=(
            Segment(dtype="float64", shape=(3, 4), nbytes=96),
            ids_segment(),
        ),
        ids=1,
        results=(Keep(array=0), None),
    )
    reply = engine.submit(encode_header(request.to_wire()), [aligned(x)], ids=[key]).result(20)
    assert len(reply.segments) == len(decode_header(reply.header)["segments"]) == 1
    assert np.frombuffer(reply.segments[0], np.float64)[0] == x.sum()
    np.testing.assert_allclose(get(engine, Handle(key)), np.exp(x), rtol=1e-12)


def test_an_array_that_is_deleted_is_gone_for_new_calls_and_there_for_running_ones(engine: Engine) -> None:
    x = np.random.default_rng(0).random((2000, 2000))
    handle = put(engine, x)
    program = Program.of_kernel("sum", operands=1)

    request = CallRequest(
        program=program,
        arguments=(ArrayArgument(array=0),),
        segments=(ids_segment(),),
        ids=0,
    )
    header = encode_header(request.to_wire())
    running = [engine.submit(header, [], ids=[handle.id]) for _ in range(5)]
    engine.delete("", [handle.id])
    for future in running:
        assert np.frombuffer(future.result(20).segments[0], np.float64)[0] == pytest.approx(x.sum())
    with pytest.raises(Expired, match=handle.id.hex()):
        get(engine, handle)


def test_owners_do_not_see_each_other(engine: Engine) -> None:
    """C5: the store is keyed by owner and id, below whatever the front checks."""
    handle = put(engine, np.ones(3), owner="a")
    with pytest.raises(Expired):
        get(engine, handle, owner="b")
    engine.delete("b", [handle.id])
    assert get(engine, handle, owner="a").sum() == 3


def test_a_repeat_has_no_second_effect_and_another_array_is_refused(engine: Engine) -> None:
    """G5: arrays never change. Equal headers do not make equal arrays, so their bytes are compared."""
    key = secrets.token_bytes(16)
    first = run(engine, TRANSFER, np.ones(3), keep=[key])
    again = run(engine, TRANSFER, np.ones(3), keep=[key])
    assert [is_new for _, _, is_new in (*first.reply.stored, *again.reply.stored)] == [True, False]
    for other in (np.zeros(3), np.ones(4), np.ones(3, np.float32), np.array([1, 1, -0.0])):
        with pytest.raises(NameTaken, match=key.hex()):
            run(engine, TRANSFER, other, keep=[key])
    assert get(engine, Handle(key)).tolist() == [1, 1, 1]


def test_a_small_array_does_not_keep_the_large_buffer_that_it_came_in(engine: Engine) -> None:
    """What stays is paid for by the array that stays in it; so a buffer stays with what is most of it only."""
    large, small = np.zeros((64, 8192)), np.arange(8.0 * 1024).reshape(8, -1)
    program = Program(inputs=2, outputs=(0, 1))
    keys = [secrets.token_bytes(16) for _ in range(2)]
    specs = (("devices",), ("devices",))
    outcome = run(engine, program, large, small, keep=keys, out_shardings=specs)
    assert outcome.reply.adopted  # with the large one
    outcome = run(engine, program, small, small, keep=[b"a" * 16, b"b" * 16], out_shardings=specs)
    assert not outcome.reply.adopted
    engine.delete("", [*keys, b"a" * 16, b"b" * 16])


def test_bfloat16_calls_work_on_resident_arrays(engine: Engine) -> None:
    x = np.arange(16).astype(ml_dtypes.bfloat16)
    outcome = run(engine, Program.of_kernel("sum", operands=1), put(engine, x))
    assert outcome.values[0].dtype == x.dtype
    assert outcome.values[0] == 120


def test_a_call_stays_on_the_device_where_its_large_arguments_lie(engine: Engine) -> None:
    """Together they would be worth spreading, but they would be moved anew by each call."""
    x = np.random.default_rng(0).random(2**19)
    pair = [put(engine, x), put(engine, x)]
    outcome = run(engine, Program.of_kernel("dot", operands=2), *pair)
    assert outcome.report.mesh == ()
    assert not any(placed.moved for placed in outcome.report.arguments)
    np.testing.assert_allclose(outcome.values[0], x @ x, rtol=1e-12)


@pytest.mark.parametrize("shape", [(9, 0), (0, 9), (8, 16, 0)])
def test_what_is_empty_moves_too(engine: Engine, shape: tuple[int, ...]) -> None:
    handle = put(engine, np.zeros(shape), mesh=(("a", 3),), out_shardings=(("a",),))
    outcome = run(engine, Program.of_kernel("exp", operands=1), handle, mesh="default", in_shardings=(("devices",),))
    assert outcome.values[0].shape == shape


def test_large_results_are_padded_where_they_are_split_and_nowhere_else(engine: Engine) -> None:
    x = np.ones((40_000, 3, 3))
    handle = put(engine, x, mesh=(("x", 4),), out_shardings=(("x",),))
    key = secrets.token_bytes(16)
    outcome = run(engine, Program.of_kernel("exp", operands=1), handle, keep=[key])
    assert outcome.report.outputs[0].padded_shape == x.shape
    engine.delete("", [handle.id, key])
