"""What the compiled programs do: their collectives, and the bytes on each device."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

from shardserve_proto.errors import TooLarge
from shardserve_proto.programs import Program, Step
from shardserve_server.engine.engine import Engine, EngineSettings
from shardserve_server.engine.executable import Executable
from tests.calls import encode, mapping

GRID = (("x", 4), ("y", 2))
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


def compiled(engine: Engine, program: str | Program, *arguments: Any, **fields: Any) -> Executable:
    header, _ = encode(program, *arguments, **fields)
    return engine.executable(header)


def collectives(executable: Executable) -> Counter[str]:
    """How many of each collective the optimised HLO has."""
    found = re.findall(rf"= \S+(?: \S+)?? ({'|'.join(KINDS)})(?:-start)?\(", executable.hlo())
    return Counter(found)


NORMALIZE = Program(
    inputs=1,
    steps=(
        Step(kernel="psum", operands=(0,), params={"axis_name": ("rows", "cols")}),
        Step(kernel="divide", operands=(0, 1)),
    ),
    outputs=(2,),
)
ROWS_COLS = mapping([["rows", "cols"]], [["rows", "cols"]], {"rows": "x", "cols": "y"})
BATCH = mapping([{1: "b"}, {1: "b"}], [["b", ...]], {"b": "devices"})


@pytest.mark.parametrize(("shape", "shard"), [((100, 100), 25 * 50), ((101, 99), 26 * 50)])
@pytest.mark.parametrize("program", [NORMALIZE, "normalize"])
def test_normalize_reduces_once_for_each_mesh_axis_and_copies_nothing(
    engine: Engine, program: Any, shape: tuple[int, int], shard: int
) -> None:
    params = {"params": {"norm": "sum"}} if program == "normalize" else {}
    found = compiled(engine, program, np.zeros(shape, np.float32), mapping=ROWS_COLS, mesh=GRID, **params)
    assert collectives(found) == {"all-reduce": 2}
    assert found.bytes_per_device()["arguments"] == shard * 4
    assert found.bytes_per_device()["outputs"] == shard * 4


@pytest.mark.parametrize("columns", [1000, 1001])
def test_a_batched_dot_needs_no_communication(engine: Engine, columns: int) -> None:
    v = np.zeros((3, columns), np.float32)
    found = compiled(engine, "dot", v, v, mapping=BATCH)
    assert not collectives(found)
    assert found.bytes_per_device()["arguments"] == 2 * 3 * -(-columns // 8) * 4


def test_a_dot_over_a_split_dimension_reduces_once(engine: Engine) -> None:
    """4,000 pairs of 10,000-vectors in small: both inputs split P("x", "y"), the result P("x")."""
    v = np.zeros((40, 100), np.float32)
    spec = ("x", "y")
    mesh = (("x", 2), ("y", 4))
    found = compiled(engine, "vecdot", v, v, mesh=mesh, in_shardings=(spec, spec), out_shardings=(("x",),))
    assert collectives(found) == {"all-reduce": 1}
    assert found.bytes_per_device()["arguments"] == 2 * 20 * 25 * 4


@pytest.mark.parametrize(
    ("left", "right", "out", "expected"),
    [
        (("data", None), (None, "model"), ("data", "model"), {}),
        ((None, "model"), ("model", None), (None, None), {"all-reduce": 1}),
    ],
)
def test_a_tensor_parallel_matmul_communicates_only_over_a_split_inner_dimension(
    engine: Engine, left: Any, right: Any, out: Any, expected: dict[str, int]
) -> None:
    x, w = np.zeros((64, 128), np.float32), np.zeros((128, 64), np.float32)
    mesh = (("data", 4), ("model", 2))
    found = compiled(engine, "matmul", x, w, mesh=mesh, in_shardings=(left, right), out_shardings=(out,))
    assert collectives(found) == expected
    assert re.search(r" dot\(", found.hlo()), "the product stays a dot, local to each device"
    split = {"data": 4, "model": 2}
    parts = [np.prod([split[axis] for axis in spec if axis]) for spec in (left, right)]
    assert found.bytes_per_device()["arguments"] == sum(64 * 128 * 4 // part for part in parts)


def test_an_uneven_dimension_is_padded_and_not_replicated(engine: Engine) -> None:
    """B17: (17, 16) over 8 devices holds 3 rows on each, not 17."""
    x = np.zeros((17, 16), np.float32)
    found = compiled(engine, "multiply", x, 2.0, in_shardings=(("devices",), None))
    assert found.bytes_per_device()["arguments"] == 3 * 16 * 4 + 4
    assert not collectives(found)


def test_float32_products_ask_for_the_highest_precision_unless_told_otherwise(engine: Engine) -> None:
    """B02: on TPU and GPU the default would be bf16 or TF32."""
    x = np.zeros((4, 4), np.float32)
    assert "HIGHEST" in compiled(engine, "matmul", x, x).lowered_text
    assert "HIGHEST" not in compiled(engine, "matmul", x, x, precision="default").lowered_text


def test_float64_stays_split_in_the_compiled_program(engine: Engine) -> None:
    """B26, as far as a CPU shows it."""
    x = np.zeros((64, 64))
    found = compiled(engine, "multiply", x, 2.0, mesh=GRID, in_shardings=(("x", "y"), None))
    assert found.bytes_per_device()["outputs"] == 16 * 32 * 8


def test_temporaries_that_can_never_fit_are_refused_before_anything_runs() -> None:
    small = Engine(EngineSettings(devices=8, memory_bytes=2**20))
    x = np.zeros((64, 64, 1), np.float32)
    transposed = Program(
        inputs=1,
        steps=(
            Step(kernel="broadcast_to", operands=(0,), params={"shape": (64, 64, 512)}),
            Step(kernel="tanh", operands=(1,)),
            Step(kernel="transpose", operands=(2,), params={"axes": (2, 1, 0)}),
            Step(kernel="identity", operands=(3,)),
        ),
        outputs=(4,),
    )
    with pytest.raises(TooLarge, match="8404992 bytes"):
        small.submit(*encode(transposed, x)).result(10)
    assert small.cache.compilations == 0
    small.close()
