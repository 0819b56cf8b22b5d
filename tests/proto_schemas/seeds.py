"""Headers of real calls, from which the fuzz tests start."""

from __future__ import annotations

from shardserve_proto import frames
from shardserve_proto.messages import CallRequest, Segment, SegmentArgument
from shardserve_proto.programs import Constant, Mapping, Program, Step
from shardserve_proto.specs import parse_axes

_TWO = (
    Segment(dtype="float32", shape=(3, 1000), nbytes=12000),
    Segment(dtype="float32", shape=(3, 1000), nbytes=12000),
)
_ARGUMENTS = (SegmentArgument(segment=0), SegmentArgument(segment=1))


def seed_calls() -> list[CallRequest]:
    """A plain kernel, a mapped one, a sharded one, constants, and programs within programs."""
    plain = CallRequest(
        program=Program.of_kernel("matmul", operands=2, params={"dtype": "float64"}),
        arguments=_ARGUMENTS, segments=_TWO,
    )  # fmt: skip
    batch = parse_axes({1: "batch"})
    mapped = CallRequest(
        program=Program.of_kernel("dot", operands=2), arguments=_ARGUMENTS, segments=_TWO,
        mesh=(("x", 4), ("y", -1)),
        mapping=Mapping(
            in_axes=(batch, batch), out_axes=(parse_axes(["batch", ...]),),
            axis_sizes=(("batch", 1000),), axis_resources=(("batch", ("x", "y")),),
        ),
    )  # fmt: skip
    sharded = CallRequest(
        program=Program.of_kernel("identity", operands=2), arguments=_ARGUMENTS, segments=_TWO,
        mesh="default", in_shardings=((None, ("x", "y")), "auto"), out_shardings=(None,),
        precision="default", timeout_s=2.5,
    )  # fmt: skip
    inner = Program(
        inputs=1,
        steps=(
            Step(kernel="psum", operands=(0,), params={"axis_name": ("rows", "cols")}),
            Step(kernel="divide", operands=(0, 1), specs=(("x", None),)),
            Step(kernel="add", operands=(2, Constant.of(1 + 2j))),
        ),
        outputs=(3,),
    )
    axes = parse_axes(["rows", "cols"])
    nested = CallRequest(
        program=Program(
            inputs=2,
            steps=(
                Step(kernel="multiply", operands=(0, Constant.of(2.0))),
                Step(program=inner, mapping=Mapping(in_axes=(axes,), out_axes=(axes,)), operands=(2,)),
            ),
            outputs=(3, 1),
        ),
        arguments=(SegmentArgument(segment=1), Constant.of(3)), segments=_TWO,
    )  # fmt: skip
    return [plain, mapped, sharded, nested]


SEED_HEADERS = [frames.encode_header(call.to_wire()) for call in seed_calls()]
