"""Headers of calls: what options become on the wire, and that equal calls are equal bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import shardserve as ss
from shardserve import P
from shardserve._options import Defaults
from shardserve._requests import function_call, kernel_call
from shardserve_proto.frames import decode_header
from shardserve_proto.messages import CallRequest
from shardserve_proto.programs import validate

V = np.ones((3, 10))
M = np.ones((4, 4))


def request(kernel: str, *operands: Any, params: dict[str, Any] | None = None, **options: Any) -> CallRequest:
    outgoing = kernel_call(kernel, operands, params or {}, options, Defaults())
    return validate(CallRequest, decode_header(outgoing.header))


def test_a_plain_call_is_a_program_of_one_step_and_says_nothing_else() -> None:
    call = request("dot", M, M)
    (step,) = call.program.steps
    assert (step.kernel, step.operands, step.params) == ("dot", (0, 1), {})
    assert (call.mesh, call.mapping, call.in_shardings, call.out_shardings) == (None, None, None, None)
    assert (call.precision, call.timeout_s) == ("highest", None)


def test_equal_calls_have_equal_headers_however_they_are_spelled() -> None:
    first = kernel_call("sum", [M], {"axis": 0, "dtype": None, "keepdims": False}, {}, Defaults())
    second = kernel_call("sum", [M * 2], {"axis": np.int64(0)}, {"mesh": None}, Defaults())
    assert first.header == second.header
    assert kernel_call("sum", [M], {"dtype": np.float32}, {}, Defaults()).header == (
        kernel_call("sum", [M], {"dtype": "float32"}, {}, Defaults()).header
    )


def test_parameters_that_are_equal_in_python_only_have_headers_of_their_own() -> None:
    headers = {kernel_call("mine", [M], {"alpha": alpha}, {}, Defaults()).header for alpha in (1, 1.0, True, "1")}
    assert len(headers) == 4


def test_a_function_s_header_is_made_once_for_equal_calls() -> None:
    function = lambda x: x + 1  # noqa: E731
    first = function_call(function, (M,), {}, Defaults())
    assert function_call(function, (M * 3,), {}, Defaults()).header is first.header
    assert function_call(function, (M,), {"precision": "high"}, Defaults()).header != first.header


def test_ints_in_in_axes_mean_what_they_mean_to_vmap() -> None:
    call = request("dot", M, M, in_axes=(0, 1))
    assert call.mapping is not None
    (left, right), (out,) = call.mapping.in_axes, call.mapping.out_axes
    assert [left.names[0][0], right.names[0][0], out.names[0][0]] == [0, 1, 0]
    assert left.names[0][1] == right.names[0][1] == out.names[0][1]


def test_negative_ints_count_from_the_back_and_none_is_whole() -> None:
    call = request("matmul", np.ones((2, 3, 4)), np.ones((4, 5)), in_axes=(-2, None), out_axes=-1)
    assert call.mapping is not None
    assert [position for position, _ in call.mapping.in_axes[0].names] == [1]
    assert call.mapping.in_axes[1].names == ()
    assert [position for position, _ in call.mapping.out_axes[0].names] == [2]


def test_one_specification_stands_for_all_arguments() -> None:
    call = request("dot", V, V, in_axes={1: "batch"}, out_axes=["batch", ...])
    assert call.mapping is not None
    assert [axes.names for axes in call.mapping.in_axes] == [((1, "batch"),)] * 2


def test_names_need_out_axes() -> None:
    with pytest.raises(ss.AxisError, match=r"out_axes is required.*\['batch', \.\.\.\]"):
        request("dot", V, V, in_axes={1: "batch"})
    with pytest.raises(ss.AxisError, match="out_axes is required"):
        request("axis_index", params={"axis_name": "i"}, axis_sizes={"i": 4})


def test_labels_of_einsum_travel_as_resources_without_axes() -> None:
    call = request("einsum", V, V, params={"subscripts": "ki,ki->i"}, axis_resources={"i": "devices"})
    assert call.mapping is not None
    assert call.mapping.to_wire() == {
        "in_axes": ({}, {}), "out_axes": ({},), "axis_resources": (("i", ("devices",)),),
    }  # fmt: skip


def test_resources_for_a_name_that_nobody_binds_are_refused_at_once() -> None:
    with pytest.raises(ss.AxisError, match="axis_resources name axis 'bath'; .*did you mean 'batch'"):
        request("dot", V, V, in_axes={1: "batch"}, out_axes=["batch"], axis_resources={"bath": "x"})


def test_one_spec_stands_for_several_arguments() -> None:
    call = request("add", M, M, in_shardings=P("x", None), out_shardings=None)
    assert call.in_shardings == (("x", None), ("x", None))
    assert call.out_shardings == (None,)
    call = request("add", M, M, in_shardings=(P("x"), ss.AUTO))
    assert call.in_shardings == (("x",), "auto")
    assert call.out_shardings is None


@pytest.mark.parametrize(
    ("mesh", "wire"),
    [("grid", "grid"), ({"x": 4, "y": -1}, (("x", 4), ("y", -1))), ([("x", np.int64(2))], (("x", 2),))],
    ids=str,
)
def test_a_mesh_is_a_name_or_axes_and_sizes(mesh: Any, wire: Any) -> None:
    assert request("add", M, M, mesh=mesh).mesh == wire


@pytest.mark.parametrize("mesh", [{}, 4, {"x": 2.5}, {3: 4}, [("x",)]], ids=str)
def test_what_is_no_mesh_is_refused(mesh: Any) -> None:
    with pytest.raises(ss.ShardingError, match="mesh"):
        request("add", M, M, mesh=mesh)


def test_precision_and_timeout_are_checked() -> None:
    assert request("add", M, M, precision="high", timeout=2).timeout_s == 2.0
    with pytest.raises(ss.ProgramError, match="'highest'.*did you mean 'highest'"):
        request("add", M, M, precision="hihgest")
    for timeout in (0, -1, float("nan"), float("inf"), "3", True):
        with pytest.raises(ss.InvalidRequest, match="timeout is a positive number of seconds"):
            request("add", M, M, timeout=timeout)


def test_mistakes_are_told_before_anything_is_sent() -> None:
    with pytest.raises(ss.ShapeError, match="do not fit"):
        request("matmul", M, np.ones((3, 3)))
    with pytest.raises(ss.DTypeError, match="unknown dtype 'flaot32'; did you mean 'float32'"):
        request("sum", M, params={"dtype": "flaot32"})
    with pytest.raises(ss.ProgramError, match="norm"):
        request("normalize", M)
    with pytest.raises(ss.ProgramError, match="parameter 'alpha' of mine is static.*arrays are given"):
        request("mine", M, params={"alpha": np.ones(3)})
    with pytest.raises(ss.ProgramError, match="300 arguments, at most 256"):
        request("einsum", *[M] * 300, params={"subscripts": "ij"})


def test_a_program_of_too_many_steps_is_refused_by_name() -> None:
    def long(x: Any) -> Any:
        for _ in range(1100):
            x = x + 1
        return x

    with pytest.raises(ss.ProgramError, match="more than 1024 steps"):
        function_call(long, (M,), {}, Defaults())


def test_programs_nested_too_deeply_are_refused_by_name() -> None:
    def nest(depth: int) -> Any:
        return (lambda x: x + 1) if depth == 0 else ss.vmap(nest(depth - 1))

    with pytest.raises(ss.ProgramError, match="nest deeper"):
        function_call(nest(12), (np.ones((1,) * 12),), {}, Defaults())


def test_the_defaults_of_a_client_go_behind_the_options_of_a_call() -> None:
    defaults = Defaults(mesh="grid", precision="default", timeout_s=5.0)
    plain = validate(CallRequest, decode_header(kernel_call("add", [M, M], {}, {}, defaults).header))
    assert (plain.mesh, plain.precision, plain.timeout_s) == ("grid", "default", 5.0)
    options = {"mesh": {"x": 8}, "precision": "highest", "timeout": None}
    own = validate(CallRequest, decode_header(kernel_call("add", [M, M], {}, options, defaults).header))
    assert (own.mesh, own.precision, own.timeout_s) == ((("x", 8),), "highest", None)


def test_a_kernel_that_only_the_server_knows_is_sent_as_it_is() -> None:
    outgoing = kernel_call(
        "mine", [M], {"alpha": 2, "sizes": [1, 2], "kind": np.float32, "n": np.int64(3)}, {}, Defaults()
    )
    assert outgoing.expected is None
    (step,) = validate(CallRequest, decode_header(outgoing.header)).program.steps
    assert step.params == {"alpha": 2, "sizes": (1, 2), "kind": "float32", "n": 3}


def test_what_no_server_takes_is_refused_before_it_is_copied() -> None:
    huge = np.broadcast_to(np.float32(1), (5 * 2**30,))  # 20 GiB that take four bytes
    for _ in range(2):
        with pytest.raises(ss.TooLarge, match="21474836480 bytes, at most 17179869184"):
            kernel_call("sum", [huge], {}, {}, Defaults())
        with pytest.raises(ss.TooLarge):
            function_call(lambda x: x.sum(), (huge,), {}, Defaults())
