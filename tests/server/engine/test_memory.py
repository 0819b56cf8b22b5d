"""What never fits is refused by size; what does not fit now is refused by name."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from shardserve_proto.errors import InternalError, OutOfMemory, TooLarge
from shardserve_proto.programs import Constant, Program, Step
from shardserve_server.engine.call import named
from shardserve_server.engine.engine import Engine, EngineSettings
from shardserve_server.engine.products import largest_product_bytes
from tests.calls import encode, run


def chained(*steps: Step) -> Program:
    return Program(inputs=1, steps=steps, outputs=(len(steps),))


def squared_and_summed() -> Program:
    return chained(Step(kernel="matmul", operands=(0, 0)), Step(kernel="sum", operands=(1,)))


@pytest.mark.parametrize("middle", ["exp", "negative", "identity"])
@pytest.mark.parametrize("last", ["sum", "max", "mean"])
def test_a_product_that_never_fits_is_refused_although_a_library_computes_it(
    engine: Engine, middle: str, last: str
) -> None:
    size = 2**18
    program = chained(
        Step(kernel="broadcast_to", operands=(0,), params={"shape": (size, size)}),
        Step(kernel=middle, operands=(1,)),
        Step(kernel="matmul", operands=(2, 2)),
        Step(kernel=last, operands=(3,)),
    )
    with pytest.raises(TooLarge, match="a product inside the program has an array of 549755813888 bytes"):
        run(engine, program, 1.5)
    assert run(engine, "add", 1, 2).value == 3


def test_the_largest_array_of_a_product_is_read_from_the_program() -> None:
    text = """
    %1 = stablehlo.multiply %0, %0 : tensor<9000x9000xf64>
    %2 = stablehlo.dot_general %0, %1, p = [HIGHEST] : (tensor<4x3xf16>, tensor<3x5xf16>) -> tensor<4x5xf32>
    %3 = stablehlo.dot_general %0, %1 : (tensor<7x3xcomplex<f64>>, tensor<3xcomplex<f64>>) -> tensor<7xcomplex<f64>>
    """
    assert largest_product_bytes(text) == 7 * 3 * 16
    assert largest_product_bytes("stablehlo.dot_general %0, %1 : (tensor<3xi1>, tensor<3xi1>) -> tensor<i1>") == 3
    assert largest_product_bytes("") == 0


def test_the_product_inside_a_program_counts_as_memory() -> None:
    """It is a temporary of the compiled program, not of the library that multiplies."""
    small = Engine(EngineSettings(devices=8, memory_bytes=3 * 2**20))
    header, _ = encode(squared_and_summed(), np.ones((512, 512), np.float32))
    assert small.executable(header).bytes_per_device()["temporaries"] >= 2**20
    large, segments = encode(squared_and_summed(), np.ones((640, 640), np.float32))
    with pytest.raises(TooLarge):
        small.submit(large, segments).result(30)
    small.close()


@pytest.mark.parametrize(
    "text",
    [
        "RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 bytes.",
        "INTERNAL: YNNPACK operation failed: error",
        "INTERNAL: Failed to allocate 123 bytes for a workspace",
        "INTERNAL: CUBLAS_STATUS_ALLOC_FAILED",
    ],
)
def test_a_library_that_finds_no_room_is_out_of_memory(text: str) -> None:
    assert isinstance(named(jax.errors.JaxRuntimeError(text)), OutOfMemory)


def test_any_other_failure_of_the_runtime_stays_unforeseen() -> None:
    assert isinstance(named(jax.errors.JaxRuntimeError("INTERNAL: something else")), InternalError)


def test_a_sum_over_a_huge_broadcast_needs_no_memory(engine: Engine) -> None:
    """2**26 elements, never written: the refusal is for what would be allocated, not for what is only named."""
    program = chained(
        Step(kernel="broadcast_to", operands=(0,), params={"shape": (2**26,)}),
        Step(kernel="multiply", operands=(1, Constant.of(2.0))),
        Step(kernel="sum", operands=(2,)),
    )
    header, segments = encode(program, np.float32(0.5))
    assert engine.executable(header).bytes_per_device()["temporaries"] < 2**20
    engine.submit(header, segments).result(30)
